"""Which norm, and where in the block?

Question: does it matter whether the norm takes the mean out, whether it stands before, after or on both sides of a
          sublayer, or whether the residual is scaled with the depth?
Command:  jaxformer ablate --grid=experiments/norms.py --workdir=runs/norms --seeds=3
Result:   compares phoneme error rate and loss on dev of layernorm and rmsnorm in five orders (baseline: layernorm, pre)
          and of no norm at all, where the orders pre, post, branch and sandwich are one; the parameter counts differ by
          the scales and biases of the norms.
"""

from collections.abc import Iterator

from configs import quickstart
from jaxformer.ablate.grid import Overrides, chain, product

get_config = quickstart.get_config
AXIS = ('model.norm', 'model.residual')


def grid() -> Iterator[Overrides]:
    return chain(
        product(
            {
                'model.norm': ('layernorm', 'rmsnorm'),
                'model.residual': ('pre', 'post', 'branch', 'sandwich', 'deepnorm'),
            }
        ),
        [{'model.norm': 'none', 'model.residual': 'pre'}],
    )
