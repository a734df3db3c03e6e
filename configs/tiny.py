"""Seconds on any machine: a two-layer model that learns to reverse short sequences.

Question: does everything work, from data to report?
Command:  jaxformer train --config=configs/tiny.py --workdir=runs/tiny
Hardware: any CPU.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.vocab_size = 0
    config.model.d_model = 48
    config.model.d_ff = 96
    config.model.num_heads = 3
    config.model.num_layers = 2
    config.model.residual = 'pre'
    config.optim.schedule = 'constant'
    config.optim.learning_rate = 3e-3
    config.optim.warmup_steps = 20
    config.train.num_steps = 200
    config.train.batch_size = 32
    config.train.log_every = 20
    config.train.checkpoint_every = 100
    config.eval.every = 100
    config.eval.max_decode_length = 12
    config.data.name = 'reverse'
    config.data.num_examples = 1000
    config.data.max_length = 8
    config.data.num_symbols = 11
    config.data.buckets = ((5, 5), (9, 9))
    return config
