"""Mixers that weigh values: attention to the stack itself or to a memory, a static matrix, and Linformer's slots."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.model import kernels, ops
from jaxformer.model.cache import Cache, no_rows, rows_of_layer, with_rows
from jaxformer.model.context import Context, Draw
from jaxformer.model.masks import Sight
from jaxformer.model.positions import POSITIONS, refuse_longer
from jaxformer.model.view import SCORES, View
from jaxformer.schema import ModelConfig

Array = jax.Array
Maps = dict[str, Array]


class MultiHeadAttention(nn.Module):
    """Projections around attention (AIAYN 3.2.2); H·K need not equal D.

    gain: factor on the initial values and output projections (DeepNorm's β).
    """

    cfg: ModelConfig
    gain: float = 1.0

    def setup(self) -> None:
        cfg = self.cfg
        self.query = self._projection('query', (cfg.d_model, cfg.num_heads, cfg.d_k))
        self.key = self._projection('key', (cfg.d_model, cfg.num_kv_heads, cfg.d_k))
        self.value = self._projection('value', (cfg.d_model, cfg.num_kv_heads, cfg.d_v), self.gain)
        self.out = self._projection('out', (cfg.num_heads, cfg.d_v, cfg.d_model), self.gain)
        if cfg.attention.bias != 'none':
            self.query_bias = self._bias('query_bias', (cfg.num_heads, cfg.d_k))
            self.key_bias = self._bias('key_bias', (cfg.num_kv_heads, cfg.d_k))
            self.value_bias = self._bias('value_bias', (cfg.num_kv_heads, cfg.d_v))
        if cfg.attention.bias == 'all':
            self.out_bias = self._bias('out_bias', (cfg.d_model,))
        if cfg.attention.score == 'additive':
            dtype = jnp.dtype(cfg.precision.parameters)
            shape = (cfg.num_heads, cfg.d_k)
            self.score = self.param('score', nn.initializers.normal(cfg.d_k**-0.5), shape, dtype)

    def _projection(self, name: str, shape: tuple[int, int, int], gain: float = 1.0) -> Array:
        """A matrix between D and heads, uniform by Glorot, times `gain`."""
        inputs, outputs = ((0, 1), 2) if name == 'out' else (0, (1, 2))
        initializer = nn.initializers.variance_scaling(gain**2, 'fan_avg', 'uniform', inputs, outputs)
        return self.param(name, initializer, shape, jnp.dtype(self.cfg.precision.parameters))

    def _bias(self, name: str, shape: tuple[int, ...]) -> Array:
        return self.param(name, nn.initializers.zeros, shape, jnp.dtype(self.cfg.precision.parameters))

    def queries(self, x_BTD: Array) -> Array:
        """q_BTHK."""
        q_BTHK = jnp.einsum('BTD,DHK->BTHK', x_BTD, self.query.astype(x_BTD.dtype))
        return q_BTHK + self.query_bias.astype(x_BTD.dtype) if self.cfg.attention.bias != 'none' else q_BTHK

    def keys(self, x_BSD: Array) -> Array:
        """k_BSGK of what is attended to."""
        k_BSGK = jnp.einsum('BSD,DGK->BSGK', x_BSD, self.key.astype(x_BSD.dtype))
        return k_BSGK + self.key_bias.astype(x_BSD.dtype) if self.cfg.attention.bias != 'none' else k_BSGK

    def values(self, x_BSD: Array) -> Array:
        """v_BSGE of what is attended to."""
        v_BSGE = jnp.einsum('BSD,DGE->BSGE', x_BSD, self.value.astype(x_BSD.dtype))
        return v_BSGE + self.value_bias.astype(x_BSD.dtype) if self.cfg.attention.bias != 'none' else v_BSGE

    def weigh(self, scores_BHTS: Array, v_BSGE: Array, mask_BHTS: Array, dropout: Draw) -> tuple[Array, Array]:
        """(y_BTD, weights_BHTS) of scores: their softmax, the values under it, the output projection."""
        dtype = jnp.float32 if self.cfg.precision.softmax == 'float32' else v_BSGE.dtype
        y_BTHE, weights_BHTS = ops.attend(scores_BHTS, v_BSGE, mask_BHTS, softmax_dtype=dtype, dropout=dropout)
        return self.projected(y_BTHE), weights_BHTS

    def projected(self, y_BTHE: Array) -> Array:
        """y_BTD of what the heads have found."""
        y_BTD = jnp.einsum('BTHE,HED->BTD', y_BTHE, self.out.astype(y_BTHE.dtype))
        if self.cfg.attention.bias == 'all':
            y_BTD = y_BTD + self.out_bias.astype(y_BTD.dtype)
        return y_BTD

    def look(
        self, q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, view: View, context: Context
    ) -> tuple[Array, Array | None]:
        """(y_BTD, weights_BHTS where the kernel has them) of queries that look at keys."""
        cfg = self.cfg
        score_HK = self.score if cfg.attention.score == 'additive' else None
        if context.kernel == 'plain':
            scores_BHTS = SCORES[cfg.attention.score](cfg, q_BTHK, k_BSGK, score_HK)
            if view.own:
                scores_BHTS = scores_BHTS + context.bias
            return self.weigh(scores_BHTS, v_BSGE, view.mask(cfg, q_BTHK.shape[1], k_BSGK.shape[1]), view.dropout)
        learned = {'score': score_HK, 'table': context.table}
        y_BTHE = kernels.attention(context.kernel, cfg, context.mesh, q_BTHK, k_BSGK, v_BSGE, learned, view)
        return self.projected(y_BTHE), None


class CrossAttention(MultiHeadAttention):
    """Attention of a decoder to the memory; keys and values of a cache are computed once."""

    @staticmethod
    def empty_cache(cfg: ModelConfig, B: int, length: int, dtype: jnp.dtype) -> Cache:
        """Room for the keys and values of a memory of `length` rows."""
        return SelfAttention.empty_cache(cfg, B, length, dtype)

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Draw
    ) -> tuple[Array, Cache | None, Maps]:
        assert context.memory_BS is not None
        if context.memory_BSD is not None:
            k_BSGK, v_BSGE = self.keys(context.memory_BSD), self.values(context.memory_BSD)
            if cache is not None:
                cache = with_rows(cache, layer, {'key': k_BSGK, 'value': v_BSGE}, 0)
        else:
            assert cache is not None
            k_BSGK, v_BSGE = rows_of_layer(cache['key'], layer), rows_of_layer(cache['value'], layer)
        view = View(Sight(context.memory_BS), dropout)
        y_BTD, weights_BHTS = self.look(self.queries(x_BTD), k_BSGK, v_BSGE, view, context)
        return y_BTD, cache, {} if weights_BHTS is None else {'cross': weights_BHTS}


class SelfAttention(MultiHeadAttention):
    """Attention of a stack to itself, or to the rows that its cache holds."""

    causal: bool = False

    @staticmethod
    def empty_cache(cfg: ModelConfig, B: int, length: int, dtype: jnp.dtype) -> Cache:
        """Room for the keys and values of `length` rows."""
        G = cfg.num_kv_heads
        return {'key': no_rows(B, length, G, cfg.d_k, dtype), 'value': no_rows(B, length, G, cfg.d_v, dtype)}

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Draw
    ) -> tuple[Array, Cache | None, Maps]:
        cfg, position = self.cfg, POSITIONS[self.cfg.position]
        q_BTHK = position.rotate(cfg, self.queries(x_BTD), context.position_BT)
        k_BSGK, v_BSGE = position.rotate(cfg, self.keys(x_BTD), context.position_BT), self.values(x_BTD)
        if cache is not None:
            cache = with_rows(cache, layer, {'key': k_BSGK, 'value': v_BSGE}, context.start)
            k_BSGK, v_BSGE = rows_of_layer(cache['key'], layer), rows_of_layer(cache['value'], layer)
        view = self.view(context, layer, dropout)
        y_BTD, weights_BHTS = self.look(q_BTHK, k_BSGK, v_BSGE, view, context)
        return y_BTD, cache, {} if weights_BHTS is None else {'self': weights_BHTS}

    def view(self, context: Context, layer: Array, dropout: Draw) -> View:
        """Of the stack on itself, in one layer."""
        return View(context.sight, dropout, layer, context.position_BT, context.key_BS, own=True, causal=self.causal)


class Static(SelfAttention):
    """One learned matrix of scores per head, the same for every input (Tay et al. 2021, 3.1.3: random synthesizer).

    Its M rows are positions up to model.max_length, others are refused.
    """

    def setup(self) -> None:
        cfg = self.cfg
        self.value = self._projection('value', (cfg.d_model, cfg.num_kv_heads, cfg.d_v), self.gain)
        self.out = self._projection('out', (cfg.num_heads, cfg.d_v, cfg.d_model), self.gain)
        if cfg.attention.bias != 'none':
            self.value_bias = self._bias('value_bias', (cfg.num_kv_heads, cfg.d_v))
        if cfg.attention.bias == 'all':
            self.out_bias = self._bias('out_bias', (cfg.d_model,))
        shape = (cfg.num_heads, cfg.max_length, cfg.max_length)
        dtype = jnp.dtype(cfg.precision.parameters)
        self.mixing = self.param('mixing', nn.initializers.normal(1.0), shape, dtype)

    @staticmethod
    def empty_cache(cfg: ModelConfig, B: int, length: int, dtype: jnp.dtype) -> Cache:
        """Room for the values of `length` rows."""
        return {'value': no_rows(B, length, cfg.num_kv_heads, cfg.d_v, dtype)}

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Draw
    ) -> tuple[Array, Cache | None, Maps]:
        cfg = self.cfg
        for length in (x_BTD.shape[1], context.key_BS.shape[1]):
            refuse_longer(cfg, length, 'the static matrix')
        v_BSGE = self.values(x_BTD)
        if cache is not None:
            cache = with_rows(cache, layer, {'value': v_BSGE}, context.start)
            v_BSGE = rows_of_layer(cache['value'], layer)
        cut = jax.vmap(lambda query_T, key_S: self.mixing[:, query_T][:, :, key_S])
        scores_BHTS = cut(context.position_BT, context.key_BS).astype(jnp.float32)
        mask = self.view(context, layer, dropout).mask(cfg, x_BTD.shape[1], v_BSGE.shape[1])
        scores_BHTS = jnp.broadcast_to(scores_BHTS, (x_BTD.shape[0], *scores_BHTS.shape[1:]))
        y_BTD, weights_BHTS = self.weigh(scores_BHTS, v_BSGE, mask, dropout)
        return y_BTD, cache, {'self': weights_BHTS}


class Linformer(SelfAttention):
    """Attention to P slots that keys and values are projected to along the positions (Wang et al. 2020, eq. 7).

    Padding is zeroed before the projection and so has no effect. Inputs up to model.max_length, others are refused. A
    slot holds the whole row, so that there is neither a causal form nor a cache (rules.py refuses a decoder).
    """

    def setup(self) -> None:
        super().setup()
        cfg = self.cfg
        shape, dtype = (cfg.linformer.rank, cfg.max_length), jnp.dtype(cfg.precision.parameters)
        spread = nn.initializers.normal(cfg.linformer.rank**-0.5)
        self.key_projection = self.param('key_projection', spread, shape, dtype)
        self.value_projection = self.param('value_projection', spread, shape, dtype)

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Draw
    ) -> tuple[Array, Cache | None, Maps]:
        assert cache is None
        cfg, position, S = self.cfg, POSITIONS[self.cfg.position], x_BTD.shape[1]
        refuse_longer(cfg, S, "Linformer's projection")
        real = context.valid_BT[:, :, None, None]
        k_BSGK = jnp.where(real, position.rotate(cfg, self.keys(x_BTD), context.position_BT), 0)
        v_BSGE = jnp.where(real, self.values(x_BTD), 0)
        # With the projection first XLA lays the slots out in a way whose scores no CPU can compute in bfloat16.
        k_BPGK = jnp.einsum('BSGK,PS->BPGK', k_BSGK, self.key_projection[:, :S].astype(k_BSGK.dtype))
        v_BPGE = jnp.einsum('BSGE,PS->BPGE', v_BSGE, self.value_projection[:, :S].astype(v_BSGE.dtype))
        q_BTHK = position.rotate(cfg, self.queries(x_BTD), context.position_BT)
        scores_BHTP = SCORES[cfg.attention.score](
            cfg, q_BTHK, k_BPGK, self.score if cfg.attention.score == 'additive' else None
        )
        some = jnp.any(context.valid_BT, axis=1)[:, None, None, None]  # a row of padding alone attends to nothing
        y_BTD, _ = self.weigh(scores_BHTP, v_BPGE, some, dropout)
        return y_BTD, None, {}
