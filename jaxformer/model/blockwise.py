"""Attention block by block, as pure functions: the numbers of plain attention in memory that grows with T, not T².

The softmax over the keys is summed up as they come (Milakov and Gimelshein 2018), and the backward pass works the
weights of a block out again from the sum (FlashAttention, Dao et al. 2022, Algorithms 1 and 4). It is what a backend
does without a kernel of its own, and what the devices of a ring do with the keys that come by (`ring.py`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.model import ops

Array = jax.Array
Tree = Any


@dataclasses.dataclass(frozen=True)
class Look:
    """What a query makes of a key, for any block of them. Queries and keys are known by their numbers [t] and [s].

    scores: (q [B, t, H, K], k [B, s, G, K], numbers, numbers, learned, given) → [B, H, t, s].
    mask: (numbers, numbers, given) → boolean, broadcastable to [B, H, t, s]. A number beyond the end may be asked for;
      what is said of it does not matter.
    dropout: (weights of a block, its origin in [B, H, T, S], that shape, given) → weights; None: nothing is dropped.
    block: queries and keys that are looked at together. Blocks without an allowed pair are passed over.
    """

    scores: Callable[..., Array]
    mask: Callable[..., Array]
    dropout: Callable[..., Array] | None
    block: int


class Place(NamedTuple):
    """Numbers of the first query and of the first key here, and B, H, T, S of the whole."""

    query: Array | int
    key: Array | int
    whole: tuple[int, ...]


class Sums(NamedTuple):
    """What a softmax has seen of its keys: the greatest score, Σ exp(score − peak), and Σ exp(score − peak) · value."""

    peak_BHT: Array
    total_BHT: Array
    values_BTHE: Array


def nothing(B: int, T: int, H: int, E: int) -> Sums:
    """No key seen."""
    zeros_BHT = jnp.zeros((B, H, T), jnp.float32)
    return Sums(zeros_BHT - jnp.inf, zeros_BHT, jnp.zeros((B, T, H, E), jnp.float32))


def attended(sums: Sums) -> tuple[Array, Array]:
    """(y_BTHE float32, log Σ exp score [B, H, T]) when all keys were seen; zeros where none was allowed."""
    total_BTH = jnp.moveaxis(sums.total_BHT, 1, 2)
    y_BTHE = sums.values_BTHE / jnp.where(total_BTH == 0, 1, total_BTH)[..., None]
    some_BHT = sums.total_BHT != 0
    return y_BTHE, jnp.where(some_BHT, sums.peak_BHT, 0) + jnp.log(jnp.where(some_BHT, sums.total_BHT, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(look: Look, q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, learned: Tree, given: Tree) -> Array:
    """The values under the softmax of the scores over the allowed keys, as `ops.attend`.

    Args:
      q_BTHK, k_BSGK, v_BSGE: of any lengths; G divides H.
      learned: tree of arrays that `look.scores` reads, and that have gradients. given: those that have none.

    Returns:
      y_BTHE in the dtype of v; zeros for a query that may look at nothing.
    """
    return _forward(look, q_BTHK, k_BSGK, v_BSGE, learned, given)[0]


def _forward(look: Look, q: Array, k: Array, v: Array, learned: Tree, given: Tree) -> tuple[Array, Tree]:
    (B, T, H, _), (_, S, _, E) = q.shape, v.shape
    place = Place(0, 0, (B, H, T, S))
    y_BTHE, total_BHT = attended(seen(look, nothing(B, T, H, E), q, k, v, learned, given, place))
    y_BTHE = y_BTHE.astype(v.dtype)
    return y_BTHE, (q, k, v, learned, given, y_BTHE, total_BHT)


def backward(look: Look, kept: Tree, dy_BTHE: Array) -> tuple[Tree, ...]:
    """Gradients of (q, k, v, learned, given), the last None, by those of y.

    kept: (q, k, v, learned, given, y_BTHE, log Σ exp score [B, H, T]) of the forward pass.
    """
    q, k, v, learned, given, y_BTHE, total_BHT = kept
    (B, T, H, _), S = q.shape, k.shape[1]
    zeros = no_gradients(q, k, v, learned)
    found = gradients(look, zeros, q, k, v, learned, given, dy_BTHE, y_BTHE, total_BHT, Place(0, 0, (B, H, T, S)))
    return *as_primal(found, (q, k, v, learned)), None


attention.defvjp(_forward, backward)


def seen(
    look: Look, sums: Sums, q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, learned: Tree, given: Tree, place: Place
) -> Sums:
    """The sums of all these queries with all these keys on top."""
    (T, S), (t, s) = _sizes(q_BTHK, k_BSGK, look)
    q_BTHK, k_BSGK, v_BSGE = _padded(q_BTHK, t), _padded(k_BSGK, s), _padded(v_BSGE, s)
    padded = Sums(*(_padded(part, t, axis) for part, axis in zip(sums, (2, 2, 1), strict=True)))

    def of_queries(start_t: Array) -> Sums:
        q = _rows(q_BTHK, start_t, t)
        own = Sums(*(_rows(part, start_t, t, axis) for part, axis in zip(padded, (2, 2, 1), strict=True)))

        def further(own: Sums, start_s: Array) -> tuple[Sums, None]:
            mask, drop = _block(look, start_t, start_s, t, s, T, S, given, place)

            def more(own: Sums) -> Sums:
                k, v = _rows(k_BSGK, start_s, s), _rows(v_BSGE, start_s, s)
                numbers = place.query + start_t + jnp.arange(t), place.key + start_s + jnp.arange(s)
                scores = jnp.where(mask, look.scores(q, k, *numbers, learned, given).astype(jnp.float32), -jnp.inf)
                peak = jnp.maximum(own.peak_BHT, jnp.max(scores, axis=-1))
                shift = jnp.where(jnp.isfinite(peak), peak, 0)
                shrunk, p = jnp.exp(own.peak_BHT - shift), jnp.exp(scores - shift[..., None])
                values = ops.weighted_values(drop(p).astype(v.dtype), v)
                values = own.values_BTHE * jnp.moveaxis(shrunk, 1, 2)[..., None] + values
                return Sums(peak, own.total_BHT * shrunk + jnp.sum(p, axis=-1), values)

            return lax.cond(jnp.any(mask), more, lambda own: own, own), None

        return lax.scan(further, own, jnp.arange(0, k_BSGK.shape[1], s))[0]

    blocks = lax.map(of_queries, jnp.arange(0, q_BTHK.shape[1], t))
    return Sums(*(_joined(part, axis, T) for part, axis in zip(blocks, (2, 2, 1), strict=True)))


def gradients(
    look: Look,
    so_far: tuple[Tree, ...],
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    learned: Tree,
    given: Tree,
    dy_BTHE: Array,
    y_BTHE: Array,
    total_BHT: Array,
    place: Place,
) -> tuple[Tree, ...]:
    """Gradients of (q, k, v, learned) by these queries and these keys, on top of those so far (float32).

    Args:
      y_BTHE, total_BHT: of `attended`, all keys seen. dy_BTHE: gradient of y.
    """
    (T, S), (t, s) = _sizes(q_BTHK, k_BSGK, look)
    # The softmax's own part: a weight p has the gradient p · (dp − Σ p dp), and Σ p dp is y · dy.
    inner_BHT = jnp.einsum('BTHE,BTHE->BHT', y_BTHE.astype(jnp.float32), dy_BTHE.astype(jnp.float32))
    q_BTHK, dy_BTHE = _padded(q_BTHK, t), _padded(dy_BTHE, t)
    inner_BHT, total_BHT = _padded(inner_BHT, t, 2), _padded(total_BHT, t, 2)
    k_BSGK, v_BSGE = _padded(k_BSGK, s), _padded(v_BSGE, s)
    dq, dk, dv, dlearned = so_far

    def of_keys(carry: tuple[Array, Tree], start_s: Array) -> tuple[tuple[Array, Tree], tuple[Array, Array]]:
        dq_BTHK, dlearned = carry
        k, v = _rows(k_BSGK, start_s, s), _rows(v_BSGE, start_s, s)

        def further(sums: tuple[Array, Array, Tree], start_t: Array) -> tuple[tuple[Array, Array, Tree], Array]:
            mask, drop = _block(look, start_t, start_s, t, s, T, S, given, place)
            q, dy = _rows(q_BTHK, start_t, t), _rows(dy_BTHE, start_t, t).astype(jnp.float32)
            inner, total = _rows(inner_BHT, start_t, t, 2), _rows(total_BHT, start_t, t, 2)

            def share(q: Array, k: Array, v: Array, learned: Tree) -> Array:
                """Whose gradients are those of the block: Σ dy · y − inner · Σ p, with the sums of all keys fixed."""
                numbers = place.query + start_t + jnp.arange(t), place.key + start_s + jnp.arange(s)
                scores = jnp.where(mask, look.scores(q, k, *numbers, learned, given).astype(jnp.float32), -jnp.inf)
                p = jnp.exp(scores - total[..., None])
                y = ops.weighted_values(drop(p).astype(v.dtype), v).astype(jnp.float32)
                return jnp.sum(dy * y) - jnp.sum(inner * jnp.sum(p, axis=-1))

            def more(sums: tuple[Array, Array, Tree]) -> tuple[tuple[Array, Array, Tree], Array]:
                dq, *others = jax.grad(share, (0, 1, 2, 3))(q, k, v, learned)
                return jax.tree.map(lambda a, b: a + b, sums, tuple(others)), dq.astype(jnp.float32)

            return lax.cond(jnp.any(mask), more, lambda sums: (sums, jnp.zeros(q.shape, jnp.float32)), sums)

        zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32), dlearned
        (dk, dv, dlearned), blocks = lax.scan(further, zeros, jnp.arange(0, q_BTHK.shape[1], t))
        return (dq_BTHK + _joined(blocks, 1, T), dlearned), (dk, dv)

    (dq, dlearned), (dk_blocks, dv_blocks) = lax.scan(of_keys, (dq, dlearned), jnp.arange(0, k_BSGK.shape[1], s))
    return dq, dk + _joined(dk_blocks, 1, S), dv + _joined(dv_blocks, 1, S), dlearned


def no_gradients(*trees: Tree) -> tuple[Tree, ...]:
    """Zeros in float32, for each tree."""
    return tuple(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), tree) for tree in trees)


def as_primal(found: Tree, primal: Tree) -> Tree:
    """Gradients in the dtypes of what they are gradients of."""
    return jax.tree.map(lambda gradient, leaf: gradient.astype(leaf.dtype), found, primal)


def _sizes(q_BTHK: Array, k_BSGK: Array, look: Look) -> tuple[tuple[int, int], tuple[int, int]]:
    T, S = q_BTHK.shape[1], k_BSGK.shape[1]
    return (T, S), (min(look.block, T), min(look.block, S))


def _block(
    look: Look, start_t: Array, start_s: Array, t: int, s: int, T: int, S: int, given: Tree, place: Place
) -> tuple[Array, Callable[[Array], Array]]:
    """(which pairs of a block count, dropout of its weights)."""
    query_T, key_S = start_t + jnp.arange(t), start_s + jnp.arange(s)
    mask = look.mask(place.query + query_T, place.key + key_S, given) & (query_T < T)[:, None] & (key_S < S)
    origin = (0, 0, place.query + start_t, place.key + start_s)
    drop = look.dropout
    return mask, (lambda p: p) if drop is None else (lambda p: drop(p, origin, place.whole, given))


def _padded(rows: Array, size: int, axis: int = 1) -> Array:
    """Zeros behind, up to a multiple of `size`."""
    widths = [(0, 0)] * rows.ndim
    widths[axis] = (0, -rows.shape[axis] % size)
    return jnp.pad(rows, widths)


def _rows(table: Array, start: Array, size: int, axis: int = 1) -> Array:
    return lax.dynamic_slice_in_dim(table, start, size, axis)


def _joined(blocks: Array, axis: int, length: int) -> Array:
    """Blocks along a new first axis, behind one another along `axis`, without what was padded."""
    joined = jnp.moveaxis(blocks, 0, axis)
    joined = joined.reshape(*joined.shape[:axis], -1, *joined.shape[axis + 2 :])
    return lax.slice_in_dim(joined, 0, length, axis=axis)
