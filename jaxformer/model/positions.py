"""How a stack learns the order of its inputs. Each kind shares one interface that is the identity by default.

Positions are given as int32 [B, T], with a leading axis of 1 where all rows share them (the usual case).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import UserError
from jaxformer.model import ops
from jaxformer.schema import ModelConfig

Array = jax.Array


class NoPosition(nn.Module):
    """No positions: a stack without masks is permutation-equivariant.

    length: N, the layers of the stack. causal: whether they look back only.
    """

    cfg: ModelConfig
    length: int
    causal: bool

    def left(self) -> np.ndarray | None:
        """[N, H']: numbers of the heads that pruning has left in each layer; None: all of them."""
        rows = self.cfg.kept_heads.decoder if self.causal else self.cfg.kept_heads.encoder
        return np.array(rows) if rows else None

    def embed(self, x_BTD: Array, position_BT: Array) -> Array:
        """Adds to the embeddings what stands for their positions."""
        return x_BTD

    @staticmethod
    def rotate(cfg: ModelConfig, x_BTHK: Array, position_BT: Array) -> Array:
        """Turns queries or keys by their positions; values are never turned."""
        return x_BTHK

    def tables(self) -> Array | None:
        """[L, …]: what `bias` reads, L being 1 or N; None where it reads nothing."""
        return None

    @staticmethod
    def bias(cfg: ModelConfig, table: Array | None, query_BT: Array, key_BS: Array, causal: bool) -> Array | None:
        """[B or 1, H, T, S] float32 to be added to the scores of self-attention in one layer; None: nothing.

        Args:
          table: of the layer, out of `tables`.
        """
        return None


class Sinusoidal(NoPosition):
    """Fixed sines and cosines (AIAYN 3.5); any length."""

    def embed(self, x_BTD: Array, position_BT: Array) -> Array:
        rows_BTD = ops.sinusoids(position_BT, x_BTD.shape[-1], self.cfg.sinusoidal.layout)
        return x_BTD + rows_BTD.astype(x_BTD.dtype)


class Learned(NoPosition):
    """A trained row per position (AIAYN Table 3, row E); lengths up to model.max_length, others are refused."""

    def setup(self) -> None:
        shape = (self.cfg.max_length, self.cfg.d_model)
        dtype = jnp.dtype(self.cfg.precision.parameters)
        self.table = self.param('table', nn.initializers.normal(self.cfg.d_model**-0.5), shape, dtype)

    def embed(self, x_BTD: Array, position_BT: Array) -> Array:
        refuse_longer(self.cfg, x_BTD.shape[1], 'the learned table')
        return x_BTD + self.table[position_BT].astype(x_BTD.dtype)


class Rotary(NoPosition):
    """Queries and keys turned by their positions (Su et al. 2021); any length."""

    @staticmethod
    def rotate(cfg: ModelConfig, x_BTHK: Array, position_BT: Array) -> Array:
        return ops.rotary(x_BTHK, position_BT, cfg.rotary.base, cfg.rotary.layout)


class Alibi(NoPosition):
    """Scores fall with the distance, by a fixed slope per head (Press et al. 2022); any length, either direction."""

    def tables(self) -> Array | None:
        """[N, H]: the slopes, where each layer has heads of its own left."""
        left = self.left()
        return None if left is None else ops.alibi_slopes(self.cfg.num_heads)[left]

    @staticmethod
    def bias(cfg: ModelConfig, table: Array | None, query_BT: Array, key_BS: Array, causal: bool) -> Array:
        distance_BTS = jnp.abs(query_BT[:, :, None] - key_BS[:, None, :]).astype(jnp.float32)
        slopes_H = ops.alibi_slopes(cfg.num_heads) if table is None else table
        return -slopes_H[:, None, None] * distance_BTS[:, None]


class T5Relative(NoPosition):
    """A trained number per head and bucket of distances, added to the scores (Raffel et al. 2020, 2.1); any length."""

    def setup(self) -> None:
        cfg = self.cfg
        tables = 1 if cfg.relative.tables == 'shared' else self.length
        left = self.left()
        heads = cfg.num_heads if left is None or cfg.relative.tables == 'shared' else left.shape[1]
        shape = (tables, cfg.relative.num_buckets, heads)
        initializer = nn.initializers.normal(cfg.d_model**-0.5)
        self.relative_bias = self.param('relative_bias', initializer, shape, jnp.dtype(cfg.precision.parameters))

    def tables(self) -> Array:
        left = self.left()
        if left is None or self.cfg.relative.tables == 'per_layer':
            return self.relative_bias
        return jnp.moveaxis(self.relative_bias[0][:, left], 1, 0)

    @staticmethod
    def bias(cfg: ModelConfig, table: Array | None, query_BT: Array, key_BS: Array, causal: bool) -> Array:
        assert table is not None
        distance_BTS = key_BS[:, None, :] - query_BT[:, :, None]
        relative = cfg.relative
        bucket_BTS = ops.relative_buckets(distance_BTS, relative.num_buckets, relative.max_distance, causal)
        return jnp.moveaxis(table.astype(jnp.float32)[bucket_BTS], -1, 1)


def refuse_longer(cfg: ModelConfig, length: int, table: str) -> None:
    """Raises UserError where an input has more positions than a table by position has rows."""
    if length > cfg.max_length:
        raise UserError(
            f'config.model.max_length={cfg.max_length}: an input of {length} positions is longer than {table}; '
            'give a shorter one, or train with a longer table'
        )


POSITIONS: dict[str, type[NoPosition]] = {
    'sinusoidal': Sinusoidal,
    'learned': Learned,
    'rotary': Rotary,
    'alibi': Alibi,
    't5_relative': T5Relative,
    'none': NoPosition,
}
