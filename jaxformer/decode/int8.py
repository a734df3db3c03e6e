"""Weights as int8 with a scale for each output channel, symmetric: w ≈ scale · q, q = −127 … 127, and 0 stays 0.

An output channel is what is left of an array when the dimensions that a product sums over are taken away: those that
share a scale. What is no matrix of a product (biases, norms, tables by position) keeps its type. An array that is
rounded stands in the tree of parameters as {'int8': q, 'scale': scale}, with the scale in the type of the weight.
"""

import re
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import sharding
from jaxformer.model.family import Family

SUMMED: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r'^((source_)?embedding|softmax)$', (1,)),  # V D: as what makes logits of activations
    (r'^(transform|pooler|classes)$', (0,)),
    (r'/(self|cross)_\w+/(query|key|value)$', (1,)),
    (r'/self_(rnn|lstm|gru)/out$', (1,)),
    (r'/(self|cross)_\w+/out$', (1, 2)),
    (r'/self_linformer/(key|value)_projection$', (2,)),
    (r'/self_conv/kernel$', (1, 2)),
    (r'/self_(rnn|lstm|gru)/(forward|backward)/\w+/kernel$', (1,)),
    (r'/feed_forward/(inner|gate|outer)$', (1,)),
)
"""Pattern of a parameter's path → its dimensions that are summed over; the first that matches counts, others stay."""

Q, SCALE = 'int8', 'scale'


def rounded(params: Any) -> Any:
    """The tree with the arrays of SUMMED as int8."""

    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        name = sharding.path_name(path)
        axes = next((axes for pattern, axes in SUMMED if re.search(pattern, name)), None)
        return np.asarray(leaf) if axes is None else of_array(np.asarray(leaf), axes)

    return jax.tree_util.tree_map_with_path(one, params)


def of_array(array: np.ndarray, axes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The int8 form of an array, the dimensions `axes` being summed over; |array − scale · q| ≤ scale / 2 everywhere.

    The greatest of a channel becomes ±127. A channel of zeros has scale 1.
    """
    wide = array.astype(np.float64)
    largest = np.abs(wide).max(axis=axes, keepdims=True)
    scale = (largest / 127).astype(array.dtype)
    scale = np.where(scale > 0, scale, np.ones_like(scale))  # the least numbers there are have a scale of 0, too
    return {Q: np.clip(np.rint(wide / scale.astype(np.float64)), -127, 127).astype(np.int8), SCALE: scale}


def floats(params: Any) -> Any:
    """The tree with every array as the numbers that it stands for; a tree without int8 is given back as it is."""
    return jax.tree.map(lambda leaf: _float(leaf) if is_rounded(leaf) else leaf, params, is_leaf=is_rounded)


def is_rounded(tree: Any) -> bool:
    """Whether `tree` is what `of_array` gives."""
    return isinstance(tree, dict) and tree.keys() == {Q, SCALE}


def any_rounded(params: Any) -> bool:
    """Whether a tree has such arrays."""
    return any(is_rounded(leaf) for leaf in jax.tree.leaves(params, is_leaf=is_rounded))


def _float(leaf: dict[str, Any]) -> jax.Array:
    scale = jnp.asarray(leaf[SCALE])
    return (jnp.asarray(leaf[Q]).astype(jnp.float32) * scale.astype(jnp.float32)).astype(scale.dtype)


class _OfInt8:
    """A model that is called with int8 weights as the model itself; they are numbers while a compiled call goes on."""

    def __init__(self, model: Family) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def apply(self, variables: Any, *args: Any, **options: Any) -> Any:
        return self._model.apply({**variables, 'params': floats(variables['params'])}, *args, **options)


def reading(model: Family) -> Family:
    """The model as one that takes int8 weights, too."""
    return cast(Family, _OfInt8(model))
