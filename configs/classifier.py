"""A classifier of texts of the size of BERT base: its encoder, its pooler on the first symbol, and a layer of classes.

Question: none; the published encoder by config alone, 109,482,240 parameters and 769 for each class.
Command:  jaxformer params --config=configs/classifier.py
          on lines of your own (label, tab, text): --config.data.name=labelled '--config.data.source=my.{split}.tsv'
          with a class for each symbol: --config.data.labels=syntax --config.model.head.pooling=tokens
          --config.model.head.pooler=off
Hardware: training at this size wants accelerators; configs/classifier_tiny.py trains on a laptop.
Score:    not measured here.
"""

from ml_collections import ConfigDict

from configs import bert


def get_config() -> ConfigDict:
    config = bert.get_config()
    config.model.family = 'classifier'
    config.model.embedding.softmax_bias = 'off'  # no symbol is put out
    config.model.head.transform = 'off'
    config.model.head.pooler = 'on'
    config.optim.learning_rate = 5e-5
    config.optim.warmup_steps = 1000
    config.train.num_steps = 10_000
    config.train.batch_size = 32
    config.data.name = 'stdlib_labels'
    return config
