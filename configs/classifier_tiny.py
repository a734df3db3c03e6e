"""Which package of the standard library does a piece of code come from? A small encoder reads it, in minutes.

Question: how far does a small encoder get on a text classification that needs no download?
Command:  jaxformer train --config=configs/classifier_tiny.py --workdir=runs/classifier_tiny
Hardware: two CPU cores, 4 minutes (measured on a busy machine).
Score:    66.2 % of 856 pieces of code from modules that training never saw, among 12 packages; one seed.
"""

from ml_collections import ConfigDict

from configs import classifier


def get_config() -> ConfigDict:
    config = classifier.get_config()
    model = config.model
    model.vocab_size = 0
    model.d_model = 128
    model.num_heads = 4
    model.d_ff = 512
    model.num_layers = 2
    model.max_length = 128
    config.optim.learning_rate = 1e-3
    config.optim.warmup_steps = 100
    config.optim.clip_norm = 1.0
    config.train.num_steps = 600
    config.train.log_every = 50
    config.train.checkpoint_every = 300
    config.eval.every = 300
    config.eval.batch_size = 64
    config.data.tokenizer_size = 1024
    config.data.buckets = ((128,),)  # pieces of code are cut to this length
    return config
