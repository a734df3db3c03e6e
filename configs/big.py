"""AIAYN big (Table 3, last row).

Question: what does three times the size buy?
Command:  jaxformer params --config=configs/big.py --config.model.vocab_size=36000
Hardware: an accelerator; the paper trained it for 300,000 steps on eight P100.
Score:    26.4 BLEU on newstest2013 in the paper; 213 M parameters.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout.residual = 0.3
    config.model.dropout.embedding = 0.3
    config.train.num_steps = 300_000
    return config
