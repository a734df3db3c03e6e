"""Letters to phonemes on CMUdict: the default real task, at a size a laptop CPU trains.

Command:  jaxformer train --config=configs/g2p.py --workdir=runs/g2p
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    model = config.model
    model.vocab_size = 0
    model.d_model = 192
    model.d_ff = 768
    model.num_heads = 4
    model.num_layers = 3
    model.residual = 'pre'
    model.scan_unroll = 0
    config.optim.learning_rate = 1.5e-3
    config.optim.schedule = 'cosine'
    config.optim.warmup_steps = 500
    config.optim.clip_norm = 1.0
    config.train.num_steps = 12_000  # 26 epochs
    config.train.checkpoint_every = 500
    config.train.keep_checkpoints = 5
    config.eval.every = 1000
    config.eval.decode_every = 2000
    config.eval.max_decode_length = 40
    return config
