"""BERT on the source of Python's standard library, byte by byte, in minutes.

Question: how well does a small encoder guess masked bytes of Python from both sides?
Command:  jaxformer train --config=configs/bert_tiny.py --workdir=runs/bert_tiny
Hardware: two CPU cores, 4 minutes (measured on a busy machine).
Score:    dev loss 2.520 per masked byte, 32.3 % of them guessed; one seed. For the first 500 updates it learns little
          more than how frequent each byte is, and then begins to look around.
"""

from ml_collections import ConfigDict

from configs import bert


def get_config() -> ConfigDict:
    config = bert.get_config()
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
    config.optim.clip_norm = 1.0
    config.train.num_steps = 1000
    config.train.batch_size = 16
    config.train.log_every = 50
    config.train.checkpoint_every = 500
    config.eval.every = 500
    config.eval.batch_size = 64
    config.data.tokenizer = 'bytes'
    config.data.buckets = ((128,),)
    return config
