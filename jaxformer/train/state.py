"""What a training step carries over: made from the seed, laid out over the mesh."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxformer import sharding
from jaxformer.model import transformer
from jaxformer.model.family import Family
from jaxformer.train import loss_scale
from jaxformer.train.loss_scale import LossScale


class TrainState(flax.struct.PyTreeNode):
    """step: updates tried. skipped: those of them undone as not finite. skipped_in_row: the latest of these
    (those that a lower loss scale mends left out)."""

    step: jax.Array
    params: Any
    opt_state: Any
    skipped: jax.Array
    skipped_in_row: jax.Array


class ScaledState(TrainState):
    """Of a model that computes in float16. A type of its own, as what others save has no place for a scale."""

    loss_scale: LossScale


def create(model: Family, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """A fresh state, a pure function of the seed."""
    params = transformer.init(model, seed)
    zero = jnp.int32(0)
    state = zero, params, optimizer.init(params), zero, zero
    if model.cfg.precision.compute == 'float16':
        return ScaledState(*state, loss_scale.first())
    return TrainState(*state)


def abstract(model: Family, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The state as shapes, dtypes and shardings; nothing is allocated."""
    shapes = jax.eval_shape(lambda: create(model, optimizer, 0))
    place = lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)  # noqa: E731
    return jax.tree.map(place, shapes, sharding.of_state(shapes, mesh))


def initialise(model: Family, optimizer: optax.GradientTransformation, seed: int, target: TrainState) -> TrainState:
    """A fresh state, born where `target` (of `abstract`) says it lies."""
    return initialiser(model, optimizer, target)(seed)


def initialiser(
    model: Family, optimizer: optax.GradientTransformation, target: TrainState
) -> Callable[[int], TrainState]:
    """`initialise` as a function of the seed, compiled once."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, target)
    return jax.jit(lambda seed: create(model, optimizer, seed), out_shardings=shardings)
