"""How many heads, at a fixed width? (AIAYN Table 3, rows A.)

Question: with d_model fixed and d_k = d_v = d_model / heads, does splitting attention into heads pay, and how far?
Command:  jaxformer ablate --grid=experiments/heads.py --workdir=runs/heads --seeds=3
Result:   compares phoneme error rate and loss on dev of 1, 4 (baseline) and 8 heads; the parameter count is the same.
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, product

get_config = quickstart.get_config
AXIS = 'model.num_heads'


def grid() -> Iterator[Overrides]:
    return product({'model.num_heads': (4, 1, 8)})
