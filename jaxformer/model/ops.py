"""The mathematics of the model as pure functions of arrays: no parameters, no config, no state.

Masks are boolean, True where a query may look at a key, and combine by logical AND; nothing is ever added to a score
to hide it. Dimensions are the letters of `jaxformer/config.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Array = jax.Array


def causal_mask(T: int, S: int, offset: Array | int = 0) -> Array:
    """[1, 1, T, S]: query i sees keys 0 … i + offset. `offset` counts the keys that precede the first query."""
    query_T = jnp.arange(T)[:, None] + offset
    return (jnp.arange(S)[None, :] <= query_T)[None, None]


def padding_mask(tokens_BS: Array, pad: int) -> Array:
    """[B, 1, 1, S]: keys that are not padding."""
    return (tokens_BS != pad)[:, None, None, :]


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


def dot_scores(q_BTHK: Array, k_BSGK: Array, scale: float) -> Array:
    """[B, H, T, S]: scale · q·k, accumulated in float32. G key heads serve H // G query heads each."""
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    q = (q_BTHK * jnp.asarray(scale, q_BTHK.dtype)).reshape(B, T, G, H // G, K)
    scores = jnp.einsum('BTGRK,BSGK->BGRTS', q, k_BSGK, preferred_element_type=jnp.float32)
    return scores.reshape(B, H, T, k_BSGK.shape[1])


def weighted_values(p_BHTS: Array, v_BSGE: Array) -> Array:
    """[B, T, H, E]: the mean of the values under the weights."""
    B, H, T, S = p_BHTS.shape
    G, E = v_BSGE.shape[2:]
    p = p_BHTS.reshape(B, G, H // G, T, S)
    return jnp.einsum('BGRTS,BSGE->BTGRE', p, v_BSGE).reshape(B, T, H, E)


def scaled_dot_product_attention(
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    mask_BHTS: Array,
    *,
    scale: float | None = None,
    softmax_dtype: DTypeLike = jnp.float32,
    dropout: Callable[[Array], Array] = lambda weights: weights,
) -> tuple[Array, Array]:
    """softmax(q kᵀ · scale) v over the allowed keys (AIAYN eq. 1).

    Args:
      q_BTHK: queries. k_BSGK, v_BSGE: keys and values; G divides H, E is free.
      mask_BHTS: boolean, broadcastable; True = may attend. A row that allows nothing gives zeros.
      scale: factor on q·k; None is 1/√K.
      softmax_dtype: precision of the softmax.
      dropout: applied to the weights.

    Returns:
      (y_BTHE in the dtype of v, weights_BHTS before dropout in `softmax_dtype`).
    """
    scale = q_BTHK.shape[-1] ** -0.5 if scale is None else scale
    weights = masked_softmax(dot_scores(q_BTHK, k_BSGK, scale), mask_BHTS, softmax_dtype)
    return weighted_values(dropout(weights).astype(v_BSGE.dtype), v_BSGE), weights


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


def sinusoids(position_T: Array, D: int) -> Array:
    """[T, D] float32: sin at even columns 2i and cos at odd ones, of position / 10000^(2i/D) (AIAYN 3.5).

    An odd D ends with a sine, whose cosine is left out.
    """
    column = jnp.arange(D)
    rate = 10_000.0 ** (-(column - column % 2) / D)
    angle_TD = position_T.astype(jnp.float32)[:, None] * rate
    return jnp.where(column % 2 == 0, jnp.sin(angle_TD), jnp.cos(angle_TD))


def fold(key_2: Array, *numbers: Array | int) -> Array:
    """A key (uint32[2]) for each list of numbers, as a hash: the same on every device, cheap inside a scan."""
    a, b = key_2[0], key_2[1]
    for number in numbers:
        word = jnp.asarray(number).astype(jnp.uint32)
        a = _avalanche(a ^ (word * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15)))
        b = _avalanche(b + a)
    return jnp.stack([a, b])


def dropout(x: Array, rate: float, key_2: Array) -> Array:
    """x with each element zeroed with probability `rate` and the others divided by 1 − rate.

    The mask is a hash of (key, position in the whole array), not a draw from a generator: it fuses with its neighbours,
    does not depend on how the array is laid out over devices, and is recomputed in the backward pass.

    Args:
      x: any shape with fewer than 2³² elements. rate: in [0, 1). key_2: uint32[2], from `fold`.
    """
    index = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    bits = _avalanche(_avalanche(index ^ key_2[0]) + key_2[1])
    keep = bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def _avalanche(h: Array) -> Array:
    """The finaliser of murmur3 (Appleby 2011): every input bit flips about half of the output bits."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
