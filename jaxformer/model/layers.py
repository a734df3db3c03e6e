"""What a block is made of: norm, feed-forward, the residual wrapper, and the block itself."""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.model import ops
from jaxformer.model.mixers import MIXERS, MultiHeadAttention

Array = jax.Array
Maps = dict[str, Array]

# Numbers of the places where a block draws a dropout mask, folded into its key.
SELF, CROSS, FEED_FORWARD, WEIGHTS, INNER, OUTPUT = range(6)


@flax.struct.dataclass
class Context:
    """What every block of a stack is given beside its own input.

    memory_BSD: encoder output, or None where its keys and values are in the cache.
    self_mask, memory_mask: boolean, broadcastable to [B, H, T, S].
    start: position of the first row of x (0, or the length of what the cache holds).
    key_2: dropout key, or None for a deterministic pass.
    """

    self_mask: Array
    memory_BSD: Array | None = None
    memory_mask: Array | None = None
    start: Array | int = 0
    key_2: Array | None = None


class Norm(nn.Module):
    """The norm that cfg.norm names, with its own parameters; `none` has none."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: Array) -> Array:
        cfg = self.cfg
        if cfg.norm == 'none':
            return x_BTD
        dtype = jnp.dtype(cfg.precision.parameters)
        scale_D = self.param('scale', nn.initializers.ones, (cfg.d_model,), dtype)
        if cfg.norm == 'rmsnorm':
            return ops.rms_norm(x_BTD, scale_D, cfg.norm_epsilon)
        bias_D = self.param('bias', nn.initializers.zeros, (cfg.d_model,), dtype)
        return ops.layer_norm(x_BTD, scale_D, bias_D, cfg.norm_epsilon)


class FeedForward(nn.Module):
    """Position-wise feed-forward (AIAYN eq. 2); geglu and swiglu gate it (Shazeer 2020) with a third matrix."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: Array, dropout: Callable[[Array], Array]) -> Array:
        cfg = self.cfg
        activation, gated = ACTIVATIONS[cfg.feed_forward]
        dtype = jnp.dtype(cfg.precision.parameters)
        glorot, zeros = nn.initializers.xavier_uniform(), nn.initializers.zeros
        inner = self.param('inner', glorot, (cfg.d_model, cfg.d_ff), dtype).astype(x_BTD.dtype)
        inner_bias = self.param('inner_bias', zeros, (cfg.d_ff,), dtype).astype(x_BTD.dtype)
        outer = self.param('outer', glorot, (cfg.d_ff, cfg.d_model), dtype).astype(x_BTD.dtype)
        outer_bias = self.param('outer_bias', zeros, (cfg.d_model,), dtype).astype(x_BTD.dtype)
        h_BTF = activation(jnp.einsum('BTD,DF->BTF', x_BTD, inner) + inner_bias)
        if gated:
            gate = self.param('gate', glorot, (cfg.d_model, cfg.d_ff), dtype).astype(x_BTD.dtype)
            h_BTF = h_BTF * jnp.einsum('BTD,DF->BTF', x_BTD, gate)
        return jnp.einsum('BTF,FD->BTD', dropout(h_BTF), outer) + outer_bias


ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], bool]] = {
    'relu': (jax.nn.relu, False),
    'gelu': (jax.nn.gelu, False),
    'silu': (jax.nn.silu, False),
    'geglu': (jax.nn.gelu, True),
    'swiglu': (jax.nn.silu, True),
}


def residual(order: str, x_BTD: Array, branch: Callable[[Array], Array], norm: Callable[[Array], Array]) -> Array:
    """Puts a sublayer into its shell: the only place where residual and norm meet.

    Args:
      order: post LN(x+F(x)) (AIAYN 3.1) | pre x+F(LN(x)) | branch x+LN(F(x)) | none LN(F(x)), a chain.
      branch: F, dropout included.
    """
    y_BTD = branch(norm(x_BTD) if order == 'pre' else x_BTD)
    if order == 'post':
        return norm(x_BTD + y_BTD)
    if order == 'pre':
        return x_BTD + y_BTD
    if order == 'branch':
        return x_BTD + norm(y_BTD)
    return norm(y_BTD)


class Block(nn.Module):
    """One layer: self-attention, attention to a memory where `cross`, feed-forward, each in the residual wrapper."""

    cfg: ModelConfig
    cross: bool

    @nn.compact
    def __call__(
        self, x_BTD: Array, layer: Array, cache: dict[str, Array] | None, context: Context, keep_maps: bool
    ) -> tuple[Array, tuple[dict[str, Array] | None, Maps]]:
        """Runs the layer.

        Args:
          layer: its index, for the dropout masks.
          cache: key/value [B, S, G, K|E] and cross_key/cross_value of this layer, or None without a cache.

        Returns:
          (x_BTD, (the cache with this input written, attention maps [B, H, T, S] by name if `keep_maps`)).
        """
        cfg = self.cfg
        maps: Maps = {}
        cache = dict(cache) if cache is not None else None

        def drop(rate: float, *site: int) -> Callable[[Array], Array]:
            key_2 = context.key_2
            if key_2 is None or rate == 0:
                return lambda x: x
            return lambda x: ops.dropout(x, rate, ops.fold(key_2, layer, *site))

        def sublayer(x: Array, site: int, name: str, function: Callable[[Array], Array]) -> Array:
            def branch(h: Array) -> Array:
                return drop(cfg.dropout.residual, site, OUTPUT)(function(h))

            return residual(cfg.residual, x, branch, Norm(cfg, name=f'{name}_norm'))

        def self_attention(h: Array) -> Array:
            attention = MIXERS[cfg.mixer](cfg, name='self_attention')
            k, v = attention.keys_values(h)
            if cache is not None:
                k = cache['key'] = jax.lax.dynamic_update_slice_in_dim(cache['key'], k, context.start, axis=1)
                v = cache['value'] = jax.lax.dynamic_update_slice_in_dim(cache['value'], v, context.start, axis=1)
            y, maps['self'] = attention(h, k, v, context.self_mask, drop(cfg.dropout.attention, SELF, WEIGHTS))
            return y

        def cross_attention(h: Array) -> Array:
            attention = MultiHeadAttention(cfg, name='cross_attention')
            assert context.memory_mask is not None
            if context.memory_BSD is not None:
                k, v = attention.keys_values(context.memory_BSD)
            else:
                assert cache is not None
                k, v = cache['cross_key'], cache['cross_value']
            if cache is not None:
                cache['cross_key'], cache['cross_value'] = k, v
            y, maps['cross'] = attention(h, k, v, context.memory_mask, drop(cfg.dropout.attention, CROSS, WEIGHTS))
            return y

        def feed_forward(h: Array) -> Array:
            return FeedForward(cfg, name='feed_forward')(h, drop(cfg.dropout.feed_forward, FEED_FORWARD, INNER))

        x_BTD = sublayer(x_BTD, SELF, 'self_attention', self_attention)
        if self.cross:
            x_BTD = sublayer(x_BTD, CROSS, 'cross_attention', cross_attention)
        if cfg.feed_forward != 'none':
            x_BTD = sublayer(x_BTD, FEED_FORWARD, 'feed_forward', feed_forward)
        return x_BTD, (cache, maps if keep_maps else {})
