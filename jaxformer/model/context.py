"""What the blocks of a stack are given beside their own input."""

from collections.abc import Mapping

import flax.struct
import jax
from jax.sharding import Mesh

from jaxformer.model import ops
from jaxformer.model.masks import Sight
from jaxformer.schema import ModelConfig

Array = jax.Array
Rates = Mapping[str, Array]


class Draw(flax.struct.PyTreeNode):
    """Dropout at one site. key_2: None where nothing is dropped."""

    key_2: Array | None = None
    rate: Array | float = 0.0

    def __call__(self, x: Array, origin: tuple[Array | int, ...] = (), whole: tuple[int, ...] = ()) -> Array:
        """As `ops.dropout`."""
        return x if self.key_2 is None else ops.dropout(x, self.rate, self.key_2, origin, whole)


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
    mesh: over which positions are divided along `seq`, where a kernel has to know.
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

    mesh: Mesh | None = flax.struct.field(pytree_node=False, default=None)

    def dropout(self, cfg: ModelConfig, place: str, *site: Array | int) -> Draw:
        """The masks of a site of its own; of a deterministic pass, or where the rate is zero, nothing is dropped."""
        if self.key_2 is None or not getattr(cfg.dropout, place):
            return Draw()
        rate = getattr(cfg.dropout, place) if self.rates is None else self.rates[place]
        return Draw(ops.fold(self.key_2, *site), rate)
