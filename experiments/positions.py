"""Does the model need to be told positions, and in which form? (AIAYN Table 3, row E.)

Question: sinusoidal against learned, rotary, ALiBi and T5's relative positions, and against none (attention alone is
          permutation-equivariant; a causal decoder is not).
Command:  jaxformer ablate --grid=experiments/positions.py --workdir=runs/positions --seeds=3
Result:   compares phoneme error rate and loss on dev of the six (baseline: sinusoidal); learned
          positions add a table of max_length rows, relative ones a small table per stack.
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, product

get_config = quickstart.get_config
AXIS = 'model.position'


def grid() -> Iterator[Overrides]:
    return product({'model.position': ('sinusoidal', 'learned', 'rotary', 'alibi', 't5_relative', 'none')})
