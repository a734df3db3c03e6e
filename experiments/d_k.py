"""How wide must keys be, and does the scale 1/sqrt(d_k) matter? (AIAYN Table 3, rows B, and section 3.2.1.)

Question: what does a smaller d_k cost, and does dropping the scale hurt more the wider the keys are?
Command:  jaxformer ablate --grid=experiments/d_k.py --workdir=runs/d_k --seeds=3
Result:   compares phoneme error rate and loss on dev of d_k 24 (baseline), 8 and 96, each with scaled and unscaled
          scores; d_v stays, so the parameter count changes with d_k.
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, product

get_config = quickstart.get_config
AXIS = ('model.d_k', 'model.attention.score')


def grid() -> Iterator[Overrides]:
    return product({'model.d_k': (24, 8, 96), 'model.attention.score': ('scaled_dot', 'dot')})
