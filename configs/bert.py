"""BERT base (Devlin et al. 2019): an encoder that guesses the symbols that were masked, norm after each sublayer.

Question: none; the published model by config alone, 109,514,298 parameters with its masked-symbol head.
Command:  jaxformer params --config=configs/bert.py
          on text of your own: --config.data.name=text '--config.data.source=my.{split}.txt'
Hardware: training at this size wants accelerators; configs/bert_tiny.py trains on a laptop.
Score:    not measured here.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    model = config.model
    model.family = 'mlm'
    model.vocab_size = 30_522
    model.d_model = 768
    model.num_heads = 12
    model.d_ff = 3072
    model.num_layers = 12
    model.norm_epsilon = 1e-12
    model.position = 'learned'
    model.feed_forward = 'gelu'
    model.gelu = 'exact'
    model.attention.bias = 'all'
    model.embedding.scale = 'none'
    model.embedding.norm = 'on'
    model.embedding.token_types = 2
    model.embedding.softmax_bias = 'on'
    model.head.transform = 'on'
    model.dropout.attention = 0.1
    config.optim.learning_rate = 1e-4
    config.optim.schedule = 'linear'
    config.optim.warmup_steps = 10_000
    config.optim.beta2 = 0.999
    config.optim.epsilon = 1e-6
    config.optim.weight_decay = 0.01
    config.optim.label_smoothing = 0.0
    config.train.num_steps = 1_000_000
    config.data.name = 'stdlib'
    config.data.tokenizer = 'bpe'
    config.data.tokenizer_size = 30_522
    config.data.buckets = ((512,),)
    return config
