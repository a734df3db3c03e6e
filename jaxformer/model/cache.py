"""What decoding keeps: arrays [N, B, …] of all layers at once, each of which reads and writes what is its own.

So a cache passes through the scan over the layers as one thing that is carried, and XLA writes it in place; as rows of
a scan's input and output all of it would be copied at every token.
"""

from typing import Any

import jax
from jax import lax

Array = jax.Array
Cache = dict[str, Any]


def of_layer(cache: Any, layer: Array) -> Any:
    """[B, …] of one layer, for each array."""
    return jax.tree.map(lambda kept: lax.dynamic_index_in_dim(kept, layer, keepdims=False), cache)


def with_layer(cache: Any, layer: Array, new: Any) -> Any:
    """The cache with [B, …] in the place of what one layer had."""

    def put(kept: Array, new: Array) -> Array:
        return lax.dynamic_update_index_in_dim(kept, new.astype(kept.dtype), layer, axis=0)

    return jax.tree.map(put, cache, new)


def with_rows(cache: Cache, layer: Array, new: Cache, start: Array | int) -> Cache:
    """The cache [N, B, S, …] with rows [B, T, …] of one layer at `start` … `start` + T − 1."""

    def put(kept: Array, new: Array) -> Array:
        at = layer, 0, start, *(0 for _ in new.shape[2:])
        return lax.dynamic_update_slice(kept, new[None].astype(kept.dtype), at)

    return jax.tree.map(put, cache, new)
