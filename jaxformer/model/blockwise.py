"""Attention block by block, as pure functions: the numbers of plain attention in memory that grows with T, not T².

The softmax over the keys is summed up as they come (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022,
Algorithm 1): a block of scores exists while it is looked at, and again in the backward pass. It is what a backend does
without a kernel of its own, and what the devices of a ring do with the keys that come by.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.model import ops

Array = jax.Array
Scores = Callable[[Array, Array, Array, Array], Array]
Mask = Callable[[Array, Array], Array]
Dropout = Callable[[Array, tuple[Array | int, ...], tuple[int, ...]], Array]


class Sums(NamedTuple):
    """What a softmax has seen of its keys: the greatest score, Σ exp(score − peak), and Σ exp(score − peak) · value."""

    peak_BHT: Array
    total_BHT: Array
    values_BTHE: Array


def nothing(B: int, T: int, H: int, E: int) -> Sums:
    """No key seen."""
    zeros_BHT = jnp.zeros((B, H, T), jnp.float32)
    return Sums(zeros_BHT - jnp.inf, zeros_BHT, jnp.zeros((B, T, H, E), jnp.float32))


def seen(
    sums: Sums, scores_BHTS: Array, v_BSGE: Array, mask_BHTS: Array, dropout: Callable[[Array], Array] | None
) -> Sums:
    """The sums with further keys, of which those count that the mask allows."""
    scores = jnp.where(mask_BHTS, scores_BHTS.astype(jnp.float32), -jnp.inf)
    peak_BHT = lax.stop_gradient(jnp.maximum(sums.peak_BHT, jnp.max(scores, axis=-1)))
    shift_BHT = jnp.where(jnp.isfinite(peak_BHT), peak_BHT, 0)
    shrunk_BHT = jnp.exp(sums.peak_BHT - shift_BHT)
    p_BHTS = jnp.exp(scores - shift_BHT[..., None])
    total_BHT = sums.total_BHT * shrunk_BHT + jnp.sum(p_BHTS, axis=-1)
    p_BHTS = (dropout(p_BHTS) if dropout else p_BHTS).astype(v_BSGE.dtype)
    values_BTHE = sums.values_BTHE * jnp.moveaxis(shrunk_BHT, 1, 2)[..., None] + ops.weighted_values(p_BHTS, v_BSGE)
    return Sums(peak_BHT, total_BHT, values_BTHE)


def attended(sums: Sums) -> Array:
    """y_BTHE float32 when all keys were seen; zeros where none was allowed."""
    total_BTH = jnp.moveaxis(sums.total_BHT, 1, 2)
    return sums.values_BTHE / jnp.where(total_BTH == 0, 1, total_BTH)[..., None]


def over_keys(
    sums: Sums,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    query_T: Array,
    key_S: Array,
    scores: Scores,
    mask: Mask,
    *,
    block: int,
    dropout: Dropout | None,
    whole: tuple[int, ...],
) -> Sums:
    """The sums of some queries with all of these keys, `block` of which are looked at together.

    Args:
      query_T, key_S: numbers of the queries and of the keys, which are consecutive, in the whole sequences.
      others: as of `attention`. whole: B, H, T, S of the whole.
    """
    S = k_BSGK.shape[1]
    size = min(block, S)
    k_BSGK, v_BSGE = padded(k_BSGK, size), padded(v_BSGE, size)

    @jax.checkpoint
    def further(sums: Sums, start: Array) -> tuple[Sums, None]:
        local_S = start + jnp.arange(size)
        numbers_S = key_S[0] + local_S
        allowed = mask(query_T, numbers_S) & (local_S < S)

        def look(sums: Sums) -> Sums:
            k, v = (lax.dynamic_slice_in_dim(rows, start, size, axis=1) for rows in (k_BSGK, v_BSGE))
            place = (0, 0, query_T[0], numbers_S[0])
            drop = dropout and (lambda p_BHTS: dropout(p_BHTS, place, whole))
            return seen(sums, scores(q_BTHK, k, query_T, numbers_S), v, allowed, drop)

        return lax.cond(jnp.any(allowed), look, lambda sums: sums, sums), None

    return lax.scan(further, sums, jnp.arange(0, k_BSGK.shape[1], size))[0]


def attention(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    scores: Scores,
    mask: Mask,
    *,
    block: int,
    dropout: Dropout | None = None,
) -> Array:
    """The values under the softmax of the scores over the allowed keys, as `ops.attend`.

    Args:
      q_BTHK, k_BSGK, v_BSGE: of any lengths; G divides H.
      scores: (q [B, t, H, K], k [B, s, G, K], numbers of these queries [t], of these keys [s]) → [B, H, t, s].
      mask: the same numbers → boolean, broadcastable to [B, H, t, s]. A number beyond the end may be asked for; what is
        said of it does not matter.
      block: queries and keys that are looked at together. Blocks without an allowed pair are passed over.
      dropout: on the weights: (weights of a block, its origin, shape of the whole) → weights.

    Returns:
      y_BTHE in the dtype of v; zeros for a query that may look at nothing.
    """
    (B, T, H, _), (_, S, _, E) = q_BTHK.shape, v_BSGE.shape
    size = min(block, T)
    q_BTHK = padded(q_BTHK, size)

    @jax.checkpoint
    def of_queries(start: Array) -> Array:
        sums = over_keys(
            nothing(B, size, H, E),
            lax.dynamic_slice_in_dim(q_BTHK, start, size, axis=1),
            k_BSGK,
            v_BSGE,
            start + jnp.arange(size),
            jnp.arange(S),
            scores,
            mask,
            block=block,
            dropout=dropout,
            whole=(B, H, T, S),
        )
        return attended(sums).astype(v_BSGE.dtype)

    blocks = lax.map(of_queries, jnp.arange(0, q_BTHK.shape[1], size))
    return jnp.moveaxis(blocks, 0, 1).reshape(B, -1, H, E)[:, :T]


def padded(rows: Array, size: int) -> Array:
    """Rows [B, n, …] with zeros behind them up to a multiple of `size`."""
    return jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % size), *((0, 0),) * (rows.ndim - 2)))
