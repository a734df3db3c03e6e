"""Which keys the queries of a stack may look at: a rule, of which any block of queries and keys can be asked."""

import flax.struct
import jax
import jax.numpy as jnp

from jaxformer.model import ops

Array = jax.Array


class Sight(flax.struct.PyTreeNode):
    """Padding, direction and documents; patterns come on top.

    valid_BS: keys that are no padding; None: all. segment_BT: the document that each query, and the key of the same
      number, belongs to; None: one per row.
    start: how many keys come before the first query. causal: whether a query sees the keys up to itself only.
    """

    valid_BS: Array | None = None
    segment_BT: Array | None = None
    start: Array | int = 0
    causal: bool = flax.struct.field(pytree_node=False, default=False)

    def mask(self, query_T: Array | int, key_S: Array | int) -> Array:
        """[B or 1, 1, T, S] boolean, for the queries and the keys of these numbers, or for the first so many."""
        mask = jnp.ones((1, 1, 1, 1), bool)
        if self.causal:
            mask = ops.causal_mask(query_T, key_S, self.start)
        if self.valid_BS is not None:
            mask = mask & rows(self.valid_BS, key_S)[:, None, None, :]
        if self.segment_BT is not None:
            of_queries, of_keys = rows(self.segment_BT, query_T), rows(self.segment_BT, key_S)
            mask = mask & (of_queries[:, None, :, None] == of_keys[:, None, None, :])
        return mask


def rows(table_BT: Array, numbers: Array | int) -> Array:
    """Columns of a table [B or 1, T] by their numbers (for one beyond the end the last), or the whole of it."""
    return table_BT if ops.is_count(numbers) else jnp.take(table_BT, numbers, axis=1, mode='clip')
