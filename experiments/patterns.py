"""How far must self-attention see?

Question: what does a window of k positions to each side cost against full attention, and does one global position make
          up for it? (Attention to the source is full in every cell.)
Command:  jaxformer ablate --grid=experiments/patterns.py --workdir=runs/patterns --seeds=3
Result:   compares phoneme error rate and loss on dev of full (baseline), windows of 1, 2 and 4, a window of 1 with a
          global first position (Longformer), and squares of 2 x 2 in rows of 4 that move in every other layer (Swin).
          The parameter count is the same.
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, chain, product

get_config = quickstart.get_config
AXIS = (
    'model.attention.pattern',
    'model.attention.window',
    'model.attention.grid_width',
    'model.attention.shift',
)


def grid() -> Iterator[Overrides]:
    return chain(
        [{'model.attention.pattern': 'full'}],
        product({'model.attention.pattern': ('local',), 'model.attention.window': (1, 2, 4)}),
        [
            {'model.attention.pattern': 'global_local', 'model.attention.window': 1},
            {
                'model.attention.pattern': 'window2d',
                'model.attention.window': 2,
                'model.attention.grid_width': 4,
                'model.attention.shift': 1,
            },
        ],
    )
