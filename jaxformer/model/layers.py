"""What a block is made of: norm, feed-forward, the residual wrapper, and the block itself."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.model import ops
from jaxformer.model.attention import CrossAttention, Maps
from jaxformer.model.context import Context, Draw
from jaxformer.model.heads import narrowed
from jaxformer.model.mixers import MIXERS
from jaxformer.schema import ModelConfig

Array = jax.Array

# Numbers of the places where a block draws a dropout mask, folded into its key.
SELF, CROSS, FEED_FORWARD, WEIGHTS, INNER, OUTPUT = range(6)


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
    """Position-wise feed-forward (AIAYN eq. 2); geglu and swiglu gate it (Shazeer 2020) with a third matrix.

    gain: factor on the initial matrices (DeepNorm's β).
    """

    cfg: ModelConfig
    gain: float = 1.0

    @nn.compact
    def __call__(self, x_BTD: Array, dropout: Callable[[Array], Array]) -> Array:
        cfg = self.cfg
        kind, gated = ACTIVATIONS[cfg.feed_forward]
        activation = activation_function(kind, cfg.gelu)
        parameters, dtype = jnp.dtype(cfg.precision.parameters), x_BTD.dtype
        glorot = nn.initializers.variance_scaling(self.gain**2, 'fan_avg', 'uniform')

        def bias(name: str, size: int) -> Array | float:
            if cfg.feed_forward_bias == 'off':
                return 0.0
            return self.param(name, nn.initializers.zeros, (size,), parameters).astype(dtype)

        inner = self.param('inner', glorot, (cfg.d_model, cfg.d_ff), parameters).astype(dtype)
        h_BTF = activation(jnp.einsum('BTD,DF->BTF', x_BTD, inner) + bias('inner_bias', cfg.d_ff))
        outer = self.param('outer', glorot, (cfg.d_ff, cfg.d_model), parameters).astype(dtype)
        if gated:
            gate = self.param('gate', glorot, (cfg.d_model, cfg.d_ff), parameters).astype(dtype)
            h_BTF = h_BTF * jnp.einsum('BTD,DF->BTF', x_BTD, gate)
        return jnp.einsum('BTF,FD->BTD', dropout(h_BTF), outer) + bias('outer_bias', cfg.d_model)


ACTIVATIONS: dict[str, tuple[str, bool]] = {
    'relu': ('relu', False),
    'gelu': ('gelu', False),
    'silu': ('silu', False),
    'geglu': ('gelu', True),
    'swiglu': ('silu', True),
}
"""model.feed_forward → (activation, whether it is gated)."""


def activation_function(kind: str, gelu: str) -> Callable[[Array], Array]:
    """relu, silu, or the gelu that model.gelu names: by the error function, or its approximation by tanh."""
    if kind == 'gelu':
        return functools.partial(jax.nn.gelu, approximate=gelu == 'tanh')
    return {'relu': jax.nn.relu, 'silu': jax.nn.silu}[kind]


def deepnorm(cfg: ModelConfig, causal: bool) -> tuple[float, float]:
    """(α of the residual, β of the initial values) of a stack (Wang et al. 2022, Figure 2); (1, 1) in other orders.

    Args:
      causal: the decoder's, or that of a decoder-only model.
    """
    if cfg.residual != 'deepnorm':
        return 1.0, 1.0
    N, M = cfg.encoder_layers, cfg.decoder_layers
    if cfg.family == 'seq2seq' and causal:
        return (3 * M) ** 0.25, (12 * M) ** -0.25
    if cfg.family == 'seq2seq':
        return 0.81 * (N**4 * M) ** 0.0625, 0.87 * (N**4 * M) ** -0.0625
    layers = M if causal else N
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25


def residual(
    order: str,
    x_BTD: Array,
    branch: Callable[[Array], Array],
    norm: Callable[[Array], Array],
    out_norm: Callable[[Array], Array] | None = None,
    alpha: float = 1.0,
) -> Array:
    """Puts a sublayer into its shell: the only place where residual and norm meet.

    Args:
      order: post LN(x+F(x)) (AIAYN 3.1) | pre x+F(LN(x)) | branch x+LN(F(x)) | sandwich x+LN'(F(LN(x))) (Ding et al.
        2021, 2.3) | deepnorm LN(αx+F(x)) (Wang et al. 2022) | none LN(F(x)), a chain.
      branch: F, dropout included. out_norm: LN' of sandwich. alpha: α of deepnorm.
    """
    y_BTD = branch(norm(x_BTD) if order in ('pre', 'sandwich') else x_BTD)
    if order == 'post':
        return norm(x_BTD + y_BTD)
    if order == 'pre':
        return x_BTD + y_BTD
    if order == 'branch':
        return x_BTD + norm(y_BTD)
    if order == 'sandwich':
        assert out_norm is not None
        return x_BTD + out_norm(y_BTD)
    if order == 'deepnorm':
        return norm(alpha * x_BTD + y_BTD)
    return norm(y_BTD)


class Block(nn.Module):
    """One layer: self mixer, attention to a memory where `cross`, feed-forward, each in the residual wrapper."""

    cfg: ModelConfig
    mixer: str
    causal: bool
    cross: bool

    @nn.compact
    def __call__(
        self, x_BTD: Array, layer: Array, cache: dict[str, Any] | None, context: Context, keep_maps: bool
    ) -> tuple[Array, dict[str, Any] | None, Maps]:
        """Runs the layer.

        Args:
          layer: its index, for dropout masks, patterns, dilations and the cache.
          cache: of all layers {'self': the mixer's, 'cross': {'key', 'value'}}, or None without a cache.

        Returns:
          (x_BTD, the cache with this input written, attention maps [B, H, T, S] by name if `keep_maps`).
        """
        cfg = self.cfg
        alpha, gain = deepnorm(cfg, self.causal)
        own = narrowed(cfg, 'decoder' if self.causal else 'encoder')
        maps: Maps = {}
        new_cache: dict[str, Any] = {}

        def drop(place: str, *site: int) -> Draw:
            return context.dropout(cfg, place, layer, *site)

        def sublayer(x: Array, site: int, name: str, function: Callable[[Array], Array]) -> Array:
            def branch(h: Array) -> Array:
                return drop('residual', site, OUTPUT)(function(h))

            out_norm = Norm(cfg, name=f'{name}_out_norm') if cfg.residual == 'sandwich' else None
            return residual(cfg.residual, x, branch, Norm(cfg, name=f'{name}_norm'), out_norm, alpha)

        def self_mixer(h: Array) -> Array:
            mixer = MIXERS[self.mixer](own, causal=self.causal, gain=gain, name=f'self_{self.mixer}')
            weights = drop('attention', SELF, WEIGHTS)
            y, new_cache['self'], more = mixer(h, cache and cache['self'], context, layer, weights)
            maps.update(more)
            return y

        def cross_attention(h: Array) -> Array:
            attention = CrossAttention(narrowed(cfg, 'cross'), gain, name='cross_attention')
            weights = drop('attention', CROSS, WEIGHTS)
            y, new_cache['cross'], more = attention(h, cache and cache['cross'], context, layer, weights)
            maps.update(more)
            return y

        def feed_forward(h: Array) -> Array:
            return FeedForward(cfg, gain, name='feed_forward')(h, drop('feed_forward', FEED_FORWARD, INNER))

        x_BTD = sublayer(x_BTD, SELF, f'self_{self.mixer}', self_mixer)
        if self.cross:
            x_BTD = sublayer(x_BTD, CROSS, 'cross_attention', cross_attention)
        if cfg.feed_forward != 'none':
            x_BTD = sublayer(x_BTD, FEED_FORWARD, 'feed_forward', feed_forward)
        return x_BTD, None if cache is None else new_cache, maps if keep_maps else {}
