"""Token mixers: the part of a block that lets positions see one another."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.model import ops

Array = jax.Array


class MultiHeadAttention(nn.Module):
    """Projections around scaled dot-product attention (AIAYN 3.2.2), without biases; H·K need not equal D."""

    cfg: ModelConfig

    def setup(self) -> None:
        cfg = self.cfg
        dtype = jnp.dtype(cfg.precision.parameters)
        spread_in = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform', in_axis=0, out_axis=(1, 2))
        spread_out = nn.initializers.variance_scaling(1.0, 'fan_avg', 'uniform', in_axis=(0, 1), out_axis=2)
        self.query = self.param('query', spread_in, (cfg.d_model, cfg.num_heads, cfg.d_k), dtype)
        self.key = self.param('key', spread_in, (cfg.d_model, cfg.num_kv_heads, cfg.d_k), dtype)
        self.value = self.param('value', spread_in, (cfg.d_model, cfg.num_kv_heads, cfg.d_v), dtype)
        self.out = self.param('out', spread_out, (cfg.num_heads, cfg.d_v, cfg.d_model), dtype)

    def keys_values(self, x_BSD: Array) -> tuple[Array, Array]:
        """(k_BSGK, v_BSGE) of what is attended to."""
        k_BSGK = jnp.einsum('BSD,DGK->BSGK', x_BSD, self.key.astype(x_BSD.dtype))
        v_BSGE = jnp.einsum('BSD,DGE->BSGE', x_BSD, self.value.astype(x_BSD.dtype))
        return k_BSGK, v_BSGE

    def __call__(
        self,
        x_BTD: Array,
        k_BSGK: Array,
        v_BSGE: Array,
        mask_BHTS: Array,
        dropout: Callable[[Array], Array],
    ) -> tuple[Array, Array]:
        """Returns (y_BTD, weights_BHTS)."""
        q_BTHK = jnp.einsum('BTD,DHK->BTHK', x_BTD, self.query.astype(x_BTD.dtype))
        y_BTHE, weights_BHTS = ops.scaled_dot_product_attention(
            q_BTHK,
            k_BSGK,
            v_BSGE,
            mask_BHTS,
            scale=SCALES[self.cfg.attention.score](self.cfg.d_k),
            softmax_dtype=jnp.float32 if self.cfg.precision.softmax == 'float32' else x_BTD.dtype,
            dropout=dropout,
        )
        return jnp.einsum('BTHE,HED->BTD', y_BTHE, self.out.astype(x_BTD.dtype)), weights_BHTS


SCALES: dict[str, Callable[[int], float]] = {'scaled_dot': lambda d_k: d_k**-0.5, 'dot': lambda d_k: 1.0}
MIXERS = {'attention': MultiHeadAttention}
