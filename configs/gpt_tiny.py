"""GPT on the source of Python's standard library, byte by byte, in minutes.

Question: does a small decoder learn to write something like Python?
Command:  jaxformer train --config=configs/gpt_tiny.py --workdir=runs/gpt_tiny
Hardware: two CPU cores, 2.5 minutes (measured on a busy machine, with the preparation of the data).
Score:    dev loss 1.573 per byte (2.269 bits), 58.1 % of the bytes guessed; one seed.
"""

from ml_collections import ConfigDict

from configs import gpt


def get_config() -> ConfigDict:
    config = gpt.get_config()
    model = config.model
    model.vocab_size = 0
    model.d_model = 128
    model.num_heads = 4
    model.d_ff = 512
    model.num_layers = 2
    model.max_length = 128
    model.dropout.attention = 0.0  # under one epoch: nothing is seen twice
    model.dropout.residual = 0.0
    model.dropout.embedding = 0.0
    config.optim.learning_rate = 3e-3
    config.optim.warmup_steps = 100
    config.train.num_steps = 1000
    config.train.batch_size = 16
    config.train.log_every = 50
    config.train.checkpoint_every = 500
    config.eval.every = 500
    config.eval.batch_size = 64
    config.data.tokenizer = 'bytes'
    config.data.buckets = ((128,),)
    return config
