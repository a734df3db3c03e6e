"""What of its layers a pass keeps, so that the weights of all layers and heads never lie side by side unasked."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jaxformer.errors import UserError

Array = jax.Array

KINDS = ('encoder', 'decoder', 'cross')
OUTPUT = 'output'
"""What a stack calls that which leaves a layer, [B, T, D]."""

ENCODER = {'self': 'encoder', OUTPUT: 'encoder_output'}
DECODER = {'self': 'decoder', 'cross': 'cross', OUTPUT: 'decoder_output'}
"""What a stack has to keep, by its own names → what a family calls it."""


@dataclasses.dataclass(frozen=True)
class Keep:
    """Numbers of layers, heads and rows (queries), from 0; None: all of them.

    reduce: what is kept in the place of the weights [B, H, T, S] of a layer, those of the chosen heads and rows; or in
      the place of its output [B, T, D], which has neither heads nor rows to choose.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None
    reduce: Callable[[Array], Array] | None = None

    def of_layer(self, weights_BHTS: Array) -> Array:
        """What is kept of one layer."""
        if self.heads is not None:
            weights_BHTS = weights_BHTS[:, jnp.asarray(self.heads)]
        if self.rows is not None:
            weights_BHTS = weights_BHTS[:, :, jnp.asarray(self.rows)]
        return weights_BHTS if self.reduce is None else self.reduce(weights_BHTS)

    def nothing(self, weights: jax.ShapeDtypeStruct, N: int) -> Array:
        """Room for what is kept of N layers whose weights are like `weights`."""
        one = jax.eval_shape(self.of_layer, weights)
        return jnp.zeros((N if self.layers is None else len(self.layers), *one.shape), one.dtype)

    def write(self, kept: Array, weights_BHTS: Array, layer: Array, N: int) -> Array:
        """`kept` with the layer of this number in its place, where it is one of the chosen."""
        layers = tuple(range(N)) if self.layers is None else self.layers
        beyond = len(layers)  # where nothing is written
        place_N = jnp.asarray([layers.index(n) if n in layers else beyond for n in range(N)])
        return jax.lax.cond(
            place_N[layer] < beyond,
            lambda: kept.at[place_N[layer]].set(self.of_layer(weights_BHTS), mode='drop'),
            lambda: kept,
        )


Collect = tuple[str | tuple[str, Keep], ...]
"""What a family is asked to give beside its logits: 'attention' (all weights), or pairs of a kind and what to keep.

The kinds are KINDS, 'encoder_output' and 'decoder_output'."""


def kept(collect: Collect) -> dict[str, Keep]:
    """{kind: what to keep of it} that a call asks for.

    Raises:
      UserError: it asks for something else, or in another form than a tuple.
    """
    if collect == ('attention',):
        return dict.fromkeys(KINDS, Keep())
    kinds = (*ENCODER.values(), *DECODER.values())
    if isinstance(collect, str) or any(isinstance(part, str) or part[0] not in kinds for part in collect):
        raise UserError(
            f"collect={collect!r}: a tuple is expected, (), ('attention',) or pairs of {', '.join(kinds)} and a Keep"
        )
    return dict(part for part in collect if not isinstance(part, str))


def of_stack(keep: Mapping[str, Keep], names: Mapping[str, str]) -> dict[str, Keep]:
    """What a stack keeps, by its own names; `names`: ENCODER or DECODER."""
    return {own: keep[kind] for own, kind in names.items() if kind in keep}
