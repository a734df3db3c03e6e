"""English to German on LibreOffice's help: real translation, at a size that two CPU cores train.

Question: what BLEU does a small Transformer reach on 28,000 pairs of technical text?
Command:  apt-get install libreoffice-help-en-us libreoffice-help-de
          jaxformer train --config=configs/help_en_de.py --workdir=runs/help_en_de
Hardware: two CPU cores, an hour: 26.9 BLEU on test by greedy search, 27.9 by beam 4 (experiments/README.md).
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.data.name = 'help_pages'
    config.data.source = '/usr/share/libreoffice/help/en-US'
    config.data.target = '/usr/share/libreoffice/help/de'
    config.data.tokenizer = 'bpe'
    config.data.tokenizer_size = 8000
    config.data.buckets = (  # 20 % of the positions are padding
        *((10, 13), (16, 20), (20, 25), (24, 29), (28, 34), (36, 43)),
        *((48, 57), (64, 75), (80, 94), (128, 160)),
    )
    model = config.model
    model.vocab_size = 0
    model.d_model = 256
    model.d_ff = 1024
    model.num_heads = 4
    model.num_layers = 3
    model.residual = 'pre'
    config.optim.learning_rate = 1e-3
    config.optim.schedule = 'cosine'
    config.optim.warmup_steps = 400
    config.optim.clip_norm = 1.0
    config.train.num_steps = 6000
    config.train.batch_size = 64
    config.train.checkpoint_every = 250
    config.train.keep_checkpoints = 5
    config.eval.batch_size = 64
    config.eval.every = 500
    config.eval.max_decode_length = 160
    return config
