"""What mixes the positions: attention, a learned matrix, low-rank attention, convolution, or recurrence?

Question: in the same residual shell, on the same data, with the same number of parameters, how far does attention
          lead? (The decoder keeps its attention to the source in every cell.)
Command:  jaxformer ablate --grid=experiments/mixers.py --workdir=runs/mixers --seeds=3
Result:   compares phoneme error rate and loss on dev of all seven (baseline: attention). Parameters that a mixer needs
          more or less are taken from or given to the feed-forward, for the recurrent ones to their own width. Linformer
          stands in the encoder only, as its slots would show a decoder the future.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import quickstart
from jaxformer.ablate.grid import Overrides, chain, product
from jaxformer.ablate.match import EQUAL_PARAMETERS

AXIS = ('model.mixer', 'model.decoder_mixer')


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.model.max_length = 40  # a static mixer has a row per position; no example is longer
    config.model.scan_unroll = 0  # on a CPU a convolution inside a loop is an order of magnitude slower
    return config


def grid() -> Iterator[Overrides]:
    linformer = {'model.mixer': 'linformer', 'model.decoder_mixer': 'attention', 'model.d_ff': EQUAL_PARAMETERS}
    return chain(
        [{'model.mixer': 'attention'}],
        product({'model.mixer': ('static',), 'model.d_ff': (EQUAL_PARAMETERS,)}),
        [linformer],
        product({'model.mixer': ('conv',), 'model.d_ff': (EQUAL_PARAMETERS,)}),
        product({'model.mixer': ('rnn', 'lstm', 'gru'), 'model.recurrent.width': (EQUAL_PARAMETERS,)}),
    )
