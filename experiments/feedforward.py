"""Which feed-forward, and is one needed at all?

Question: at the same number of parameters, do smooth activations or gates beat relu, and can wider values stand in for
          the whole feed-forward?
Command:  jaxformer ablate --grid=experiments/feedforward.py --workdir=runs/feedforward --seeds=3
Result:   compares phoneme error rate and loss on dev of relu (baseline), gelu and silu (the same shapes), geglu and
          swiglu (three matrices, each narrower), and none (its parameters go into d_v).
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, chain, product
from jaxformer.ablate.match import EQUAL_PARAMETERS

get_config = quickstart.get_config
AXIS = 'model.feed_forward'


def grid() -> Iterator[Overrides]:
    return chain(
        product({'model.feed_forward': ('relu', 'gelu', 'silu')}),
        product({'model.feed_forward': ('geglu', 'swiglu'), 'model.d_ff': (EQUAL_PARAMETERS,)}),
        [{'model.feed_forward': 'none', 'model.d_v': EQUAL_PARAMETERS}],
    )
