"""AIAYN Table 3, every row, scaled down to CMUdict and minutes.

Question: which differences of the paper's table show at a size that a laptop trains, and which way do they point?
Command:  jaxformer ablate --grid=experiments/table3_toy.py --workdir=runs/table3_toy --seeds=3
          on two files of your own, line by line (train, dev and test in place of {split}):
          … --config.data.name=parallel '--config.data.source=my.{split}.en' '--config.data.target=my.{split}.de'
          --config.data.tokenizer=bpe '--config.data.buckets=((16,16),(32,32),(64,64))'
          --config.eval.max_decode_length=64
Result:   the rows of experiments/table3.py relative to this base (8 heads of width 12, 3 + 3 layers, d_model 96, d_ff
          384), with the paper's figures beside: a column to compare directions with, as task and size are others.
"""

from ml_collections import ConfigDict

from configs import quickstart
from experiments import table3

REFERENCE, METRIC = table3.REFERENCE, table3.METRIC
grid, reference, notes = table3.grid, table3.reference, table3.notes


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.model.num_heads = 8
    config.model.num_layers = 3
    config.model.dropout.residual = 0.1
    config.model.dropout.embedding = 0.1
    return config
