"""Where does the norm stand, and does a block need its residual?

Question: post LN(x+F(x)) as in AIAYN, pre x+F(LN(x)), branch x+LN(F(x)), sandwich x+LN(F(LN(x))), deepnorm
          LN(ax+F(x)), and no residual at all.
Command:  jaxformer ablate --grid=experiments/residual.py --workdir=runs/residual --seeds=3
Result:   compares phoneme error rate and loss on dev of the six (baseline: post) at the same learning-rate
          schedule; a run that diverges is reported as such.
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, product

get_config = quickstart.get_config
AXIS = 'model.residual'


def grid() -> Iterator[Overrides]:
    return product({'model.residual': ('post', 'pre', 'branch', 'sandwich', 'deepnorm', 'none')})
