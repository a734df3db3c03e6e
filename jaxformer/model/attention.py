"""Mixers that weigh values: attention to the stack itself or to a memory, a static matrix, and Linformer's slots."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jaxformer.config import AttentionConfig, ModelConfig
from jaxformer.model import blockwise, ops
from jaxformer.model.masks import Sight, rows
from jaxformer.model.positions import POSITIONS, refuse_longer

Array = jax.Array
Maps = dict[str, Array]
Cache = dict[str, Array]
Dropout = Callable[..., Array]  # of an array, or of a block, its origin and the shape of the whole
Rates = Mapping[str, Array]


class Context(flax.struct.PyTreeNode):
    """What every block of a stack is given beside its own input.

    valid_BT: rows of x that are no padding. sight: the keys that self-attention may look at, but for its pattern.
    position_BT, key_BS: positions of the rows of x and of the keys that self-attention looks at (those of the cache
      where there is one), int32; a leading axis of 1 where all rows share them.
    memory_BSD: encoder output, or None where its keys and values are in the cache. memory_BS: its rows that are no
      padding.
    kernel: how attention is computed (config.model.attention.kernel).
    bias: [B, H, T, S] float32 on the scores of self-attention, broadcastable. table: where the kernel works the biases
      out by block, what they are read from.
    segment_BT: number of the document that each row belongs to, or None for one per row.
    start: how many rows the cache holds already.
    key_2: dropout key, or None for a deterministic pass.
    rates: dropout rate [] by place (a field of config.model.dropout); None: those of the config.
    """

    valid_BT: Array
    sight: Sight
    position_BT: Array
    key_BS: Array
    memory_BSD: Array | None = None
    memory_BS: Array | None = None
    bias: Array | float = 0.0
    table: Array | None = None
    segment_BT: Array | None = None
    start: Array | int = 0
    key_2: Array | None = None
    rates: Rates | None = None
    kernel: str = flax.struct.field(pytree_node=False, default='plain')

    def dropout(self, cfg: ModelConfig, place: str, *site: Array | int) -> Dropout:
        """What draws the mask of a site of its own; nothing in a deterministic pass, or where the rate is zero."""
        if self.key_2 is None or not getattr(cfg.dropout, place):
            return lambda x, *block: x
        key_2 = ops.fold(self.key_2, *site)
        rate = getattr(cfg.dropout, place) if self.rates is None else self.rates[place]
        return lambda x, *block: ops.dropout(x, rate, key_2, *block)


def _full(cfg: AttentionConfig, query_BT: Array, key_BS: Array, layer: Array) -> Array:
    return jnp.ones((1, 1, 1, 1), bool)


def _local(cfg: AttentionConfig, query_BT: Array, key_BS: Array, layer: Array) -> Array:
    return ops.local_mask(query_BT, key_BS, cfg.window)


def _global_local(cfg: AttentionConfig, query_BT: Array, key_BS: Array, layer: Array) -> Array:
    return ops.global_local_mask(query_BT, key_BS, cfg.window, cfg.global_positions)


def _window2d(cfg: AttentionConfig, query_BT: Array, key_BS: Array, layer: Array) -> Array:
    return ops.window2d_mask(query_BT, key_BS, cfg.window, cfg.grid_width, jnp.where(layer % 2 == 0, 0, cfg.shift))


PATTERNS: dict[str, Callable[[AttentionConfig, Array, Array, Array], Array]] = {
    'full': _full,
    'local': _local,
    'global_local': _global_local,
    'window2d': _window2d,
}
"""model.attention.pattern → mask [B, 1, T, S] of the keys that a layer's self-attention may look at."""


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

    def weigh(self, scores_BHTS: Array, v_BSGE: Array, mask_BHTS: Array, dropout: Dropout) -> tuple[Array, Array]:
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
        self, q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, seen: 'Seen', kernel: str, dropout: Dropout
    ) -> tuple[Array, Array | None]:
        """(y_BTD, weights_BHTS where the kernel has them) of queries that look at keys."""
        score = SCORES[self.cfg.attention.score]
        if kernel == 'blockwise':

            def scores(q_BTHK: Array, k_BSGK: Array, query_T: Array, key_S: Array) -> Array:
                return score(self, q_BTHK, k_BSGK) + seen.bias(query_T, key_S)

            block = self.cfg.attention.block
            y_BTHE = blockwise.attention(q_BTHK, k_BSGK, v_BSGE, scores, seen.mask, block=block, dropout=dropout)
            return self.projected(y_BTHE), None
        T, S = q_BTHK.shape[1], k_BSGK.shape[1]
        return self.weigh(score(self, q_BTHK, k_BSGK) + seen.bias(T, S), v_BSGE, seen.mask(T, S), dropout)


class Seen(NamedTuple):
    """Of queries and keys, by their numbers or for the first so many: `mask` [B, H, T, S] boolean, `bias` float32."""

    mask: Callable[[Array | int, Array | int], Array]
    bias: Callable[[Array | int, Array | int], Array | float]


SCORES: dict[str, Callable[[MultiHeadAttention, Array, Array], Array]] = {
    'scaled_dot': lambda attention, q, k: ops.dot_scores(q, k, attention.cfg.d_k**-0.5),
    'dot': lambda attention, q, k: ops.dot_scores(q, k, 1.0),
    'additive': lambda attention, q, k: ops.additive_scores(q, k, attention.score),
}


class CrossAttention(MultiHeadAttention):
    """Attention of a decoder to the memory; keys and values of a cache are computed once."""

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, dropout: Dropout
    ) -> tuple[Array, Cache, Maps]:
        assert context.memory_BS is not None
        if context.memory_BSD is not None:
            k_BSGK, v_BSGE = self.keys(context.memory_BSD), self.values(context.memory_BSD)
        else:
            assert cache is not None
            k_BSGK, v_BSGE = cache['key'], cache['value']
        seen = Seen(Sight(context.memory_BS).mask, lambda query_T, key_S: 0.0)
        y_BTD, weights_BHTS = self.look(self.queries(x_BTD), k_BSGK, v_BSGE, seen, context.kernel, dropout)
        return y_BTD, {'key': k_BSGK, 'value': v_BSGE}, {} if weights_BHTS is None else {'cross': weights_BHTS}


class SelfAttention(MultiHeadAttention):
    """Attention of a stack to itself, or to the rows that its cache holds."""

    causal: bool = False

    @staticmethod
    def empty_cache(cfg: ModelConfig, B: int, length: int, dtype: jnp.dtype) -> Cache:
        """Room for the keys and values of `length` rows."""
        G = cfg.num_kv_heads
        return {'key': jnp.zeros((B, length, G, cfg.d_k), dtype), 'value': jnp.zeros((B, length, G, cfg.d_v), dtype)}

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Dropout
    ) -> tuple[Array, Cache | None, Maps]:
        cfg, position = self.cfg, POSITIONS[self.cfg.position]
        q_BTHK = position.rotate(cfg, self.queries(x_BTD), context.position_BT)
        k_BSGK, v_BSGE = position.rotate(cfg, self.keys(x_BTD), context.position_BT), self.values(x_BTD)
        if cache is not None:
            k_BSGK, v_BSGE = written(cache['key'], k_BSGK, context), written(cache['value'], v_BSGE, context)
            cache = {'key': k_BSGK, 'value': v_BSGE}
        seen = Seen(self.mask(context, layer), self.bias(context))
        y_BTD, weights_BHTS = self.look(q_BTHK, k_BSGK, v_BSGE, seen, context.kernel, dropout)
        return y_BTD, cache, {} if weights_BHTS is None else {'self': weights_BHTS}

    def mask(self, context: Context, layer: Array) -> Callable[[Array | int, Array | int], Array]:
        """Sight and pattern."""
        attention = self.cfg.attention

        def mask(query_T: Array | int, key_S: Array | int) -> Array:
            positions = rows(context.position_BT, query_T), rows(context.key_BS, key_S)
            return context.sight.mask(query_T, key_S) & PATTERNS[attention.pattern](attention, *positions, layer)

        return mask

    def bias(self, context: Context) -> Callable[[Array | int, Array | int], Array | float]:
        """That of the positions: given by the context, or of each block of its own."""

        def bias(query_T: Array | int, key_S: Array | int) -> Array | float:
            if context.kernel != 'blockwise':
                return context.bias
            positions = rows(context.position_BT, query_T), rows(context.key_BS, key_S)
            found = POSITIONS[self.cfg.position].bias(self.cfg, context.table, *positions, self.causal)
            return 0.0 if found is None else found

        return bias


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
        return {'value': jnp.zeros((B, length, cfg.num_kv_heads, cfg.d_v), dtype)}

    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Dropout
    ) -> tuple[Array, Cache | None, Maps]:
        cfg = self.cfg
        refuse_longer(cfg, max(x_BTD.shape[1], context.key_BS.shape[1]), 'the static matrix')
        v_BSGE = self.values(x_BTD)
        if cache is not None:
            v_BSGE = written(cache['value'], v_BSGE, context)
            cache = {'value': v_BSGE}
        cut = jax.vmap(lambda query_T, key_S: self.mixing[:, query_T][:, :, key_S])
        scores_BHTS = cut(context.position_BT, context.key_BS).astype(jnp.float32)
        mask = self.mask(context, layer)(x_BTD.shape[1], v_BSGE.shape[1])
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
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Dropout
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
        scores_BHTP = SCORES[cfg.attention.score](self, q_BTHK, k_BPGK)
        some = jnp.any(context.valid_BT, axis=1)[:, None, None, None]  # a row of padding alone attends to nothing
        y_BTD, _ = self.weigh(scores_BHTP, v_BPGE, some, dropout)
        return y_BTD, None, {}


def written(rows_BS: Array, new_BT: Array, context: Context) -> Array:
    """A cache's rows with new ones at `context.start` … `context.start` + T − 1."""
    return jax.lax.dynamic_update_slice_in_dim(rows_BS, new_BT.astype(rows_BS.dtype), context.start, axis=1)
