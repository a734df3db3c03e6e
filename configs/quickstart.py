"""CMUdict in half a minute: small enough that a grid of six runs ends before the coffee is ready.

Question: does the number of heads matter even in a small model? (experiments/heads.py starts from here)
Command:  jaxformer train --config=configs/quickstart.py --workdir=runs/one
Hardware: two CPU cores.
"""

from ml_collections import ConfigDict

from configs import g2p


def get_config() -> ConfigDict:
    config = g2p.get_config()
    config.model.d_model = 96
    config.model.d_ff = 384
    config.model.num_layers = 2
    config.model.scan_unroll = 1
    config.model.dropout.residual = 0.0  # under one epoch: nothing is seen twice
    config.model.dropout.embedding = 0.0
    config.optim.learning_rate = 4e-3
    config.optim.warmup_steps = 60
    config.train.num_steps = 250
    config.train.batch_size = 128
    config.train.log_every = 20
    config.train.checkpoint_every = 250
    config.eval.every = 100
    config.eval.decode_every = 0
    config.data.buckets = ((9, 8), (12, 11), (40, 40))
    return config
