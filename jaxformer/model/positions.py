"""How a stack learns the order of its inputs. Each kind shares one interface that is the identity by default."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.errors import UserError
from jaxformer.model import ops


class NoPosition(nn.Module):
    """No positions: the stack is permutation-equivariant."""

    cfg: ModelConfig

    def embed(self, x_BTD: jax.Array, start: jax.Array | int) -> jax.Array:
        """Adds positions start … start + T − 1 to embeddings."""
        return x_BTD


class Sinusoidal(NoPosition):
    """Fixed sines and cosines (AIAYN 3.5); any length."""

    def embed(self, x_BTD: jax.Array, start: jax.Array | int) -> jax.Array:
        T, D = x_BTD.shape[1:]
        return x_BTD + ops.sinusoids(start + jnp.arange(T), D).astype(x_BTD.dtype)


class Learned(NoPosition):
    """A trained row per position (AIAYN Table 3, row E); lengths up to model.max_length, others are refused."""

    def setup(self) -> None:
        shape = (self.cfg.max_length, self.cfg.d_model)
        dtype = jnp.dtype(self.cfg.precision.parameters)
        self.table = self.param('table', nn.initializers.normal(self.cfg.d_model**-0.5), shape, dtype)

    def embed(self, x_BTD: jax.Array, start: jax.Array | int) -> jax.Array:
        if x_BTD.shape[1] > self.cfg.max_length:
            raise UserError(
                f'config.model.max_length={self.cfg.max_length}: an input of {x_BTD.shape[1]} positions is longer than '
                'the learned table; give a shorter one, or train with a longer table'
            )
        rows_TD = jax.lax.dynamic_slice_in_dim(self.table, start, x_BTD.shape[1])
        return x_BTD + rows_TD.astype(x_BTD.dtype)


POSITIONS = {'sinusoidal': Sinusoidal, 'learned': Learned, 'none': NoPosition}
