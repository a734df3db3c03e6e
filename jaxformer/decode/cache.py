"""Rows of the model's caches: one for each beam, in the order that a search wants them.

A cache is that of `Seq2Seq.start_cache` or `LanguageModel.start_cache`: under 'layers' every leaf is [N, B, …],
whatever the mixer keeps there, 'source_mask' is [B, S], and the rest belongs to no row.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.model import transformer
from jaxformer.schema import Config, ModelConfig

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


def num_bytes(cfg: ModelConfig, rows: int, length: int, source: int = 0) -> int:
    """Bytes of the cache of so many rows with room for `length` positions, from its shapes; no array is made.

    source: symbols of each source, of a seq2seq model.
    """
    model, V = transformer.build(cfg, max(cfg.vocab_size, 1)), max(cfg.vocab_size, 1)
    params = transformer.abstract_params(cfg, V)
    begin = lambda params, *args: model.apply({'params': params}, *args, method='start_cache')  # noqa: E731
    if cfg.family == 'seq2seq':
        given = jax.ShapeDtypeStruct((rows, source), jnp.int32)
        cache = jax.eval_shape(lambda params, source_BS: begin(params, source_BS, length), params, given)
    else:
        cache = jax.eval_shape(lambda params: begin(params, rows, length), params)
    return _bytes(cache)


def of_search(cfg: Config) -> int:
    """`num_bytes` of a batch of config.eval, a source (or a prompt) as long as the longest bucket.

    A beam search has as many rows of each as beams; with eval.unroll=on the parameters of the decoder's layers are
    there once more, apart. 0 for a family that goes on with no token.
    """
    if cfg.model.family not in ('seq2seq', 'lm'):
        return 0
    rows = cfg.eval.batch_size * (cfg.eval.beam_size if cfg.eval.search == 'beam' else 1)
    longest = max(bucket[0] for bucket in cfg.data.buckets)
    read = 0 if cfg.model.family == 'seq2seq' else longest
    apart = 0
    if cfg.eval.unroll == 'on':
        layers = transformer.abstract_params(cfg.model, max(cfg.model.vocab_size, 1))['decoder']['layers']
        apart = _bytes(layers)
    return num_bytes(cfg.model, rows, read + cfg.eval.max_decode_length, longest) + apart


def _bytes(arrays: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
