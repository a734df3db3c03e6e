"""Rows of the model's caches: one for each beam, in the order that a search wants them.

A cache is that of `Seq2Seq.start_cache` or `LanguageModel.start_cache`: under 'layers' every leaf is [N, B, …],
whatever the mixer keeps there, 'source_mask' is [B, S], and the rest belongs to no row.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Cache = Mapping[str, Any]


def repeat(cache: Cache, K: int) -> Cache:
    """The cache of B·K rows: K of each row, one after the other."""
    layers = jax.tree.map(lambda leaf: jnp.repeat(leaf, K, axis=1), cache['layers'])
    masks = {name: jnp.repeat(cache[name], K, axis=0) for name in ('source_mask',) if name in cache}
    return {**cache, 'layers': layers, **masks}


def reorder(cache: Cache, parent_BK: Array) -> Cache:
    """Row k of each b becomes what row parent[b, k] of the same b was.

    What is kept of the source ('cross') is the same for all rows of b, and stays where it is.
    """
    B, K = parent_BK.shape

    def taken(leaf: Array) -> Array:
        by_row = leaf.reshape(leaf.shape[0], B, K, *leaf.shape[2:])
        moved = jax.vmap(lambda rows, parent_K: rows[:, parent_K], in_axes=(1, 0), out_axes=1)(by_row, parent_BK)
        return moved.reshape(leaf.shape)

    own = jax.tree.map(taken, cache['layers']['self'])
    return {**cache, 'layers': {**cache['layers'], 'self': own}}
