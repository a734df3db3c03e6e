"""Token mixers: the part of a block that lets positions see one another.

Each is a module (cfg, causal, gain) called as (x_BTD, cache, context, layer, dropout) → (y_BTD, cache, maps): `layer`
is the index of its block, `cache` what `empty_cache` made, with a leading N axis (None without one), `maps`
{'self': weights [B, H, T, S]} of a mixer that has a weight for every key, else {}.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.model.attention import Linformer, Maps, SelfAttention, Static
from jaxformer.model.cache import Cache, of_layer, with_layer
from jaxformer.model.context import Context, Draw
from jaxformer.schema import ModelConfig

Array = jax.Array


class Convolution(nn.Module):
    """A convolution over W rows with a gated linear unit (Gehring et al. 2017, 3.2), dilated if so asked (ByteNet).

    Causal: the last tap is the row itself. Otherwise the taps are centred on it. Padding counts as zeros.
    """

    cfg: ModelConfig
    causal: bool
    gain: float = 1.0

    @staticmethod
    def empty_cache(cfg: ModelConfig, B: int, length: int, dtype: jnp.dtype) -> Cache:
        """The last rows that taps reach back to; how many does not depend on `length`."""
        return {'rows': jnp.zeros((B, (cfg.conv.width - 1) * max(cfg.conv.dilations), cfg.d_model), dtype)}

    @nn.compact
    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Draw
    ) -> tuple[Array, Cache | None, Maps]:
        cfg = self.cfg
        W, D, R, dilations = cfg.conv.width, cfg.d_model, 2 * cfg.d_model, cfg.conv.dilations
        dtype = jnp.dtype(cfg.precision.parameters)
        spread = nn.initializers.variance_scaling(self.gain**2, 'fan_in', 'normal', in_axis=(0, 1), out_axis=2)
        parameters = {
            'kernel': self.param('kernel', spread, (W, D, R), dtype),
            'bias': self.param('bias', nn.initializers.zeros, (R,), dtype),
        }
        x_BTD = jnp.where(context.valid_BT[:, :, None], x_BTD, 0)
        reach = (W - 1) * max(dilations)
        nothing = jnp.zeros((x_BTD.shape[0], reach, D), x_BTD.dtype)
        before = nothing if cache is None else of_layer(cache['rows'], layer)
        rows = jnp.concatenate([before, x_BTD], axis=1)
        if cache is not None:
            cache = with_layer(cache, layer, {'rows': rows[:, x_BTD.shape[1] :]})

        def dilated(dilation: int) -> Any:
            ahead = 0 if self.causal else (W - 1) * dilation // 2
            behind = (W - 1) * dilation - ahead

            def convolve(rows: Array) -> Any:
                rows = jnp.pad(rows[:, reach - behind :], ((0, 0), (0, ahead), (0, 0)))
                layer = nn.Conv(R, (W,), padding='VALID', kernel_dilation=dilation, dtype=rows.dtype, parent=None)
                return layer.apply({'params': parameters}, rows)

            return convolve

        branches = [dilated(dilation) for dilation in dilations]
        y_BTR = jax.lax.switch(layer % len(branches), branches, rows) if len(branches) > 1 else branches[0](rows)
        return nn.glu(y_BTR), cache, {}


class Recurrent(nn.Module):
    """A recurrent cell of the library over the rows, in both directions where nothing forbids it, and a projection.

    The state passes over padding as it is, and begins anew with every document.
    """

    cfg: ModelConfig
    causal: bool
    gain: float = 1.0

    kind = 'rnn'

    @classmethod
    def empty_cache(cls, cfg: ModelConfig, B: int, length: int, dtype: jnp.dtype) -> Cache:
        """The state of the cell."""
        return {'state': _zero_state(_cell(cls.kind, cfg, dtype, None), B, cfg.d_model)}

    @nn.compact
    def __call__(
        self, x_BTD: Array, cache: Cache | None, context: Context, layer: Array, dropout: Draw
    ) -> tuple[Array, Cache | None, Maps]:
        cfg, B = self.cfg, x_BTD.shape[0]
        segment_BT = context.segment_BT
        changed_BT = jnp.zeros((B, x_BTD.shape[1]), bool)
        if segment_BT is not None:
            changed_BT = changed_BT.at[:, 1:].set(segment_BT[:, 1:] != segment_BT[:, :-1])

        def run(name: str, reset_BT: Array, state: Any, reverse: bool) -> tuple[Any, Array]:
            def step(cell: nn.RNNCellBase, state: Any, row: tuple[Array, Array, Array]) -> tuple[Any, Array]:
                x_BD, valid_B, reset_B = row
                state = jax.tree.map(lambda part: jnp.where(reset_B[:, None], 0, part), state)
                new, y_BR = cell(state, x_BD)
                return jax.tree.map(lambda a, b: jnp.where(valid_B[:, None], a, b), new, state), y_BR

            scan = nn.scan(
                step,
                variable_broadcast='params',
                split_rngs={'params': False},
                in_axes=1,
                out_axes=1,
                reverse=reverse,
            )
            cell = _cell(self.kind, cfg, x_BTD.dtype, name)
            state = _zero_state(cell, B, cfg.d_model) if state is None else state
            return scan(cell, state, (x_BTD, context.valid_BT, reset_BT))

        before = None if cache is None else of_layer(cache['state'], layer)
        state, h_BTR = run('forward', changed_BT, before, reverse=False)
        if cache is not None:
            cache = with_layer(cache, layer, {'state': state})
        if not self.causal:
            # In reverse a document begins at its last row.
            last_BT = jnp.roll(changed_BT, -1, axis=1).at[:, -1].set(False)
            _, back_BTR = run('backward', last_BT, None, reverse=True)
            h_BTR = jnp.concatenate([h_BTR, back_BTR], axis=-1)
        dtype = jnp.dtype(cfg.precision.parameters)
        spread = nn.initializers.variance_scaling(self.gain**2, 'fan_avg', 'uniform')
        out = self.param('out', spread, (h_BTR.shape[-1], cfg.d_model), dtype).astype(x_BTD.dtype)
        bias_D = self.param('out_bias', nn.initializers.zeros, (cfg.d_model,), dtype).astype(x_BTD.dtype)
        return jnp.einsum('BTR,RD->BTD', h_BTR, out) + bias_D, cache, {}


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    kind = 'lstm'


class GRU(Recurrent):
    """Gated recurrent unit (Cho et al. 2014)."""

    kind = 'gru'


def _float32_orthogonal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """The decomposition behind it has no bfloat16."""
    return nn.initializers.orthogonal()(key, shape, jnp.float32).astype(dtype)


_CELLS: dict[str, Any] = {'rnn': nn.SimpleCell, 'lstm': nn.OptimizedLSTMCell, 'gru': nn.GRUCell}


def _cell(kind: str, cfg: ModelConfig, dtype: Any, name: str | None) -> nn.RNNCellBase:
    return _CELLS[kind](
        cfg.recurrent.width,
        dtype=dtype,
        param_dtype=jnp.dtype(cfg.precision.parameters),
        recurrent_kernel_init=_float32_orthogonal,
        **({'name': name} if name else {'parent': None}),
    )


def _zero_state(cell: nn.RNNCellBase, B: int, D: int) -> Any:
    shapes = jax.eval_shape(lambda: cell.initialize_carry(jax.random.key(0), (B, D)))
    return jax.tree.map(lambda part: jnp.zeros(part.shape, cell.dtype), shapes)


MIXERS: dict[str, Any] = {
    'attention': SelfAttention,
    'static': Static,
    'linformer': Linformer,
    'conv': Convolution,
    'rnn': Recurrent,
    'lstm': LSTM,
    'gru': GRU,
}
