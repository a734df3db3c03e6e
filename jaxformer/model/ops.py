"""The mathematics of the model as pure functions of arrays: no parameters, no config, no state.

Masks are boolean, True where a query may look at a key, and combine by logical AND; nothing is ever added to a score
to hide it. Dimensions are the letters of `jaxformer/schema.py`.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Array = jax.Array


def is_count(numbers: Array | int) -> bool:
    """Whether these are so many (a number, or for `jax.export` the name of one), and no array of numbers."""
    return not hasattr(numbers, 'ndim')


def causal_mask(T: Array | int, S: Array | int, offset: Array | int = 0) -> Array:
    """[1, 1, T, S]: query i sees keys 0 … i + offset. `offset` counts the keys that precede the first query.

    T, S: how many queries and keys, or the numbers of some of them.
    """
    query_T, key_S = (jnp.arange(side) if is_count(side) else jnp.asarray(side) for side in (T, S))
    return (key_S[None, :] <= query_T[:, None] + offset)[None, None]


def local_mask(query: Array, key: Array, window: int) -> Array:
    """Keys at most `window` positions away from the query (Beltagy et al. 2020, 3.1).

    Args:
      query, key: positions, int32, in shapes that broadcast to that of the mask, as [B, T, 1] and [B, 1, S].
    """
    return jnp.abs(query - key) <= window


def global_local_mask(query: Array, key: Array, window: int, global_positions: tuple[int, ...]) -> Array:
    """The local mask, and all of the rows and columns of some positions (Beltagy et al. 2020, 3.1)."""
    mask = local_mask(query, key, window)
    for position in global_positions:
        mask = mask | (query == position) | (key == position)
    return mask


def window2d_mask(query: Array, key: Array, window: int, grid_width: int, shift: Array | int) -> Array:
    """Keys in the same square of `window` × `window` as the query (Liu et al. 2021, 3.2); positions as in `local_mask`.

    Position p lies at row p // grid_width and column p % grid_width. The squares begin `shift` rows and columns into
    the grid, and what is left over at its edges are smaller ones: the windows that Swin's cyclic shift leaves after its
    mask.
    """

    def square(position: Array) -> tuple[Array, Array]:
        # Nothing is below zero, so that the plainest division will do; a kernel has no other.
        row, column = jax.lax.div(position, grid_width), jax.lax.rem(position, grid_width)
        return jax.lax.div(row - shift + window, window), jax.lax.div(column - shift + window, window)

    (query_row, query_column), (key_row, key_column) = square(query), square(key)
    return (query_row == key_row) & (query_column == key_column)


def masked_softmax(scores: Array, mask: Array, dtype: DTypeLike) -> Array:
    """Softmax over the last axis among the positions that `mask` allows, computed in `dtype`.

    A row that allows nothing gives zeros (not NaN, not the uniform distribution): it attends to nothing, and passes no
    gradient on.
    """
    scores = jnp.where(mask, scores.astype(dtype), -jnp.inf)
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf))
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(peak), peak, 0))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)  # a total that is not a number stays one


def entropy(weights: Array) -> Array:
    """−Σ w·log w over the last axis, in nats and float32; a weight of 0 adds nothing."""
    w = weights.astype(jnp.float32)
    return -jnp.sum(jnp.where(w > 0, w * jnp.log(jnp.where(w > 0, w, 1)), 0), axis=-1)


def dot_scores(q_BTHK: Array, k_BSGK: Array, scale: float) -> Array:
    """[B, H, T, S]: scale · q·k, accumulated in float32. G key heads serve H // G query heads each."""
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    q = (q_BTHK * jnp.asarray(scale, q_BTHK.dtype)).reshape(B, T, G, H // G, K)
    scores = jnp.einsum('BTGRK,BSGK->BGRTS', q, k_BSGK, preferred_element_type=jnp.float32)
    return scores.reshape(B, H, T, k_BSGK.shape[1])


def additive_scores(q_BTHK: Array, k_BSGK: Array, v_HK: Array) -> Array:
    """[B, H, T, S]: v · tanh(q + k) of each head (Bahdanau et al. 2015, A.1.2), summed in float32."""
    H, G = q_BTHK.shape[2], k_BSGK.shape[2]
    k_BSHK = jnp.repeat(k_BSGK, H // G, axis=2)
    inner_BTSHK = jnp.tanh(q_BTHK[:, :, None] + k_BSHK[:, None])
    return jnp.einsum('BTSHK,HK->BHTS', inner_BTSHK, v_HK.astype(q_BTHK.dtype), preferred_element_type=jnp.float32)


def weighted_values(p_BHTS: Array, v_BSGE: Array) -> Array:
    """[B, T, H, E]: the mean of the values under the weights."""
    B, H, T, S = p_BHTS.shape
    G, E = v_BSGE.shape[2:]
    p = p_BHTS.reshape(B, G, H // G, T, S)
    return jnp.einsum('BGRTS,BSGE->BTGRE', p, v_BSGE).reshape(B, T, H, E)


def attend(
    scores_BHTS: Array,
    v_BSGE: Array,
    mask_BHTS: Array,
    *,
    softmax_dtype: DTypeLike = jnp.float32,
    dropout: Callable[[Array], Array] = lambda weights: weights,
) -> tuple[Array, Array]:
    """The values under the softmax of the scores over the allowed keys.

    Args:
      scores_BHTS: float. v_BSGE: values; G divides H.
      mask_BHTS: boolean, broadcastable; True = may attend. A row that allows nothing gives zeros.
      softmax_dtype: precision of the softmax.
      dropout: applied to the weights.

    Returns:
      (y_BTHE in the dtype of v, weights_BHTS before dropout in `softmax_dtype`).
    """
    weights = masked_softmax(scores_BHTS, mask_BHTS, softmax_dtype)
    return weighted_values(dropout(weights).astype(v_BSGE.dtype), v_BSGE), weights


def scaled_dot_product_attention(
    q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, mask_BHTS: Array, *, scale: float | None = None
) -> tuple[Array, Array]:
    """softmax(q kᵀ · scale) v over the allowed keys (AIAYN eq. 1).

    Args:
      q_BTHK: queries. k_BSGK, v_BSGE: keys and values; G divides H, E is free.
      mask_BHTS: boolean, broadcastable; True = may attend. A row that allows nothing gives zeros.
      scale: factor on q·k; None is 1/√K.

    Returns:
      (y_BTHE in the dtype of v, weights_BHTS in float32).
    """
    scale = q_BTHK.shape[-1] ** -0.5 if scale is None else scale
    return attend(dot_scores(q_BTHK, k_BSGK, scale), v_BSGE, mask_BHTS)


def layer_norm(x_BTD: Array, scale_D: Array, bias_D: Array, epsilon: float) -> Array:
    """(x − mean) / √(var + ε) · scale + bias over D (Ba et al. 2016, eq. 4), computed in float32."""
    x = x_BTD.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(variance + epsilon) * scale_D + bias_D).astype(x_BTD.dtype)


def rms_norm(x_BTD: Array, scale_D: Array, epsilon: float) -> Array:
    """x / √(mean x² + ε) · scale over D (Zhang and Sennrich 2019, eq. 4), computed in float32."""
    x = x_BTD.astype(jnp.float32)
    square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(square + epsilon) * scale_D).astype(x_BTD.dtype)


def sinusoids(position: Array, D: int, layout: str = 'interleaved') -> Array:
    """[…, D] float32: sin at even columns 2i and cos at odd ones, of position / 10000^(2i/D) (AIAYN 3.5).

    An odd D ends with a sine, whose cosine is left out. Layout 'halves' has the sines first, then the cosines.
    """
    column = jnp.arange(D)
    if layout == 'halves':
        column = jnp.concatenate([column[::2], column[1::2]])
    rate = 10_000.0 ** (-(column - column % 2) / D)
    angle = position.astype(jnp.float32)[..., None] * rate
    return jnp.where(column % 2 == 0, jnp.sin(angle), jnp.cos(angle))


def rotary(x_BTHK: Array, position_BT: Array, base: float, layout: str) -> Array:
    """Pairs of columns turned by position · base^(−2i/K) (Su et al. 2021, eq. 34), so that q·k depends on distance.

    Args:
      x_BTHK: queries or keys, K even. position_BT: int32, a leading axis of 1 where all rows share them.
      layout: 'halves' pairs columns i and i + K/2 (GPT-NeoX, Llama), 'interleaved' 2i and 2i + 1 (the paper).
    """
    K = x_BTHK.shape[-1]
    angle = position_BT.astype(jnp.float32)[:, :, None, None] * base ** (-jnp.arange(0, K, 2) / K)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x = x_BTHK.astype(jnp.float32)
    if layout == 'halves':
        a, b = x[..., : K // 2], x[..., K // 2 :]
        turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    else:
        a, b = x[..., ::2], x[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
    return turned.astype(x_BTHK.dtype)


def alibi_slopes(H: int) -> Array:
    """[H] float32: 2^(−8h/H) for h = 1 … H where H is a power of two (Press et al. 2022, 3).

    Otherwise those of the next smaller power, and every other one of the next larger power's.
    """
    power = 1 << (H.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * (H - power), 2)]
    return jnp.asarray(slopes, jnp.float32)


def relative_buckets(distance: Array, num_buckets: int, max_distance: int, causal: bool) -> Array:
    """Number of the bucket of each key position − query position, in [0, num_buckets) (Raffel et al. 2020, 2.1).

    Half of the buckets hold one distance each, the others grow up to max_distance by the logarithm, and the last one
    has all that is farther. Causal: one direction, distance 0 for keys that come later; else each direction has half.
    """
    behind = jnp.maximum(-distance, 0)
    first = jnp.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        first = jnp.where(distance > 0, num_buckets, 0)
        behind = jnp.abs(distance)
    exact = num_buckets // 2
    ratio = jnp.log(jnp.maximum(behind, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact)).astype(jnp.int32)
    return first + jnp.where(behind < exact, behind, jnp.minimum(far, num_buckets - 1))


def fold(key_2: Array, *numbers: Array | int) -> Array:
    """A key (uint32[2]) for each list of numbers, as a hash: the same on every device, cheap inside a scan.

    A key may end in two further numbers, which stay what they are: see `random_bits`.
    """
    a, b = key_2[0], key_2[1]
    for number in numbers:
        word = jnp.asarray(number).astype(jnp.uint32)
        a = _avalanche(a ^ (word * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15)))
        b = _avalanche(b + a)
    return jnp.concatenate([jnp.stack([a, b]), key_2[2:]])


def random_bits(
    key_2: Array | Sequence[Array],
    shape: tuple[int, ...],
    origin: tuple[Array | int, ...] = (),
    whole: tuple[int, ...] = (),
) -> Array:
    """uint32 of the shape, each a hash of (key, position in the whole array). At most 2³² elements.

    Args:
      key_2: from `fold`. A key of four (a, b, first, stride) is that of the rows first, first + stride, … of a whole.
      origin, whole: where the part of that shape begins in a greater array, and the shape of that one.
    """
    index = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(whole or shape):
        number = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        if origin:
            number = number + jnp.asarray(origin[axis]).astype(jnp.uint32)
        if axis == 0 and len(key_2) == 4:
            number = key_2[2] + key_2[3] * number
        index = index * jnp.uint32(size) + number
    return _avalanche(_avalanche(index ^ key_2[0]) + key_2[1])


def dropout(
    x: Array,
    rate: float | Array,
    key_2: Array | Sequence[Array],
    origin: tuple[Array | int, ...] = (),
    whole: tuple[int, ...] = (),
) -> Array:
    """x with each element zeroed with probability `rate` and the others divided by 1 − rate.

    The mask is a hash of (key, position in the whole array), not a draw from a generator: it fuses with its neighbours,
    does not depend on how the array is laid out over devices, and is recomputed in the backward pass.

    Args:
      x: any shape with fewer than 2³² elements. rate: in [0, 1), taken as a float32. key_2: uint32[2], from `fold`.
      origin, whole: of `random_bits`, where x is a part of a greater array.
    """
    rate = jnp.asarray(rate, jnp.float32)
    threshold = jnp.minimum(rate * 2.0**32, 2.0**32 - 2.0**8).astype(jnp.uint32)  # the largest float32 below 2³²
    keep = random_bits(key_2, x.shape, origin, whole) >= threshold
    return jnp.where(keep, (x.astype(jnp.float32) / (1 - rate)).astype(x.dtype), jnp.zeros((), x.dtype))


def _avalanche(h: Array) -> Array:
    """The finaliser of murmur3 (Appleby 2011): every input bit flips about half of the output bits."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
