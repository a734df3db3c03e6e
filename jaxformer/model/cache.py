"""What decoding keeps: arrays [N, B, …] of all layers at once, each of which reads and writes what is its own.

So a cache passes through the scan over the layers as one thing that is carried, and XLA writes it in place; as rows of
a scan's input and output all of it would be copied at every token.

A loop over tokens may have the layers apart (`apart`), a tuple with N = 1 in each: the parameters, and what is kept of
a memory, which are the same at every token, and of which a scan over the layers copies each layer's part at each of
them. What is written stays together, as XLA would copy whole caches if each had a write and a read of its own.

Rows of heads are kept heads first, [N, B, G, S, …], which is how a product of one query with all of them reads them:
rows first, they are put in another order for each token, which on a CPU takes longer than the product.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Cache = dict[str, Any]


def of_layer(cache: Any, layer: Array) -> Any:
    """[B, …] of one layer, for each array."""
    return jax.tree.map(lambda kept: lax.dynamic_index_in_dim(kept, _place(kept, layer), keepdims=False), cache)


def with_layer(cache: Any, layer: Array, new: Any) -> Any:
    """The cache with [B, …] in the place of what one layer had."""

    def put(kept: Array, new: Array) -> Array:
        return lax.dynamic_update_index_in_dim(kept, new.astype(kept.dtype), _place(kept, layer), axis=0)

    return jax.tree.map(put, cache, new)


def no_rows(B: int, length: int, G: int, size: int, dtype: Any) -> Array:
    """[B, G, S, size]: room for `length` rows of G heads in one layer."""
    return jnp.zeros((B, G, length, size), dtype)


def rows_of_layer(kept: Array, layer: Array) -> Array:
    """[B, S, G, …] of one layer of [N, B, G, S, …]."""
    return jnp.swapaxes(of_layer(kept, layer), 1, 2)


def with_rows(cache: Cache, layer: Array, new: Cache, start: Array | int) -> Cache:
    """The cache [N, B, G, S, …] with rows [B, T, G, …] of one layer at `start` … `start` + T − 1."""

    def put(kept: Array, new: Array) -> Array:
        at = _place(kept, layer), 0, 0, start, 0
        return lax.dynamic_update_slice(kept, jnp.swapaxes(new, 1, 2)[None].astype(kept.dtype), at)

    return jax.tree.map(put, cache, new)


def apart(layers: Any, N: int) -> tuple[Any, ...]:
    """One tree for each layer, N = 1 in its arrays, of a tree of arrays [N, …]."""
    return tuple(jax.tree.map(lambda leaf, n=n: leaf[n : n + 1], layers) for n in range(N))


def _place(kept: Array, layer: Array | int) -> Array | int:
    """Where an array has a layer: at its number, or it is that of one layer alone."""
    return layer if len(kept) > 1 else 0
