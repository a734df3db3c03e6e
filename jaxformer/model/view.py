"""What decides how much a query makes of a key, as rules of which any block of queries and keys can be asked."""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxformer.model import ops
from jaxformer.model.blockwise import Look
from jaxformer.model.context import Draw
from jaxformer.model.masks import Sight, rows
from jaxformer.model.positions import POSITIONS, NoPosition
from jaxformer.schema import AttentionConfig, ModelConfig

Array = jax.Array

SCORES: dict[str, Callable[[ModelConfig, Array, Array, Any], Array]] = {
    'scaled_dot': lambda cfg, q, k, score: ops.dot_scores(q, k, dot_scale(cfg)),
    'dot': lambda cfg, q, k, score: ops.dot_scores(q, k, dot_scale(cfg)),
    'additive': lambda cfg, q, k, score: ops.additive_scores(q, k, score),
}
"""model.attention.score → (config, q_BTHK, k_BSGK, the parameter of additive scores) → [B, H, T, S]."""


def dot_scale(cfg: ModelConfig) -> float:
    """The factor on q·k, where that is the score."""
    return cfg.d_k**-0.5 if cfg.attention.score == 'scaled_dot' else 1.0


def _full(cfg: AttentionConfig, query: Array, key: Array, layer: Array) -> Array:
    return jnp.ones((1, 1, 1), bool)


def _local(cfg: AttentionConfig, query: Array, key: Array, layer: Array) -> Array:
    return ops.local_mask(query, key, cfg.window)


def _global_local(cfg: AttentionConfig, query: Array, key: Array, layer: Array) -> Array:
    return ops.global_local_mask(query, key, cfg.window, cfg.global_positions)


def _window2d(cfg: AttentionConfig, query: Array, key: Array, layer: Array) -> Array:
    return ops.window2d_mask(query, key, cfg.window, cfg.grid_width, jax.lax.rem(layer, 2) * cfg.shift)


PATTERNS: dict[str, Callable[[AttentionConfig, Array, Array, Array], Array]] = {
    'full': _full,
    'local': _local,
    'global_local': _global_local,
    'window2d': _window2d,
}
"""model.attention.pattern → (config, positions of queries and of keys in shapes that broadcast, the layer) → mask."""


class View(flax.struct.PyTreeNode):
    """What decides, beside scores, which keys count, and how much.

    own: whether a stack looks at itself; then patterns and the biases of positions apply, by position_BT and key_BS of
      the queries and the keys, and by the layer. causal: whether positions know one direction only.
    """

    sight: Sight
    dropout: Draw
    layer: Array | int = 0
    position_BT: Array | None = None
    key_BS: Array | None = None
    own: bool = flax.struct.field(pytree_node=False, default=False)
    causal: bool = flax.struct.field(pytree_node=False, default=False)

    def positions(self, query_T: Array | int, key_S: Array | int) -> tuple[Array, Array]:
        """Of the queries and keys of these numbers, or of the first so many."""
        assert self.position_BT is not None and self.key_BS is not None
        return rows(self.position_BT, query_T), rows(self.key_BS, key_S)

    def mask(self, cfg: ModelConfig, query_T: Array | int, key_S: Array | int) -> Array:
        """Boolean, broadcastable to [B, H, T, S]."""
        mask = self.sight.mask(query_T, key_S)
        if not self.own:
            return mask
        query_BT, key_BS = self.positions(query_T, key_S)
        pattern = PATTERNS[cfg.attention.pattern]
        found = pattern(cfg.attention, query_BT[:, :, None], key_BS[:, None, :], jnp.asarray(self.layer))
        return mask & found[:, None]

    def biased(self, cfg: ModelConfig) -> bool:
        """Whether `bias` has something to say."""
        return self.own and POSITIONS[cfg.position].bias is not NoPosition.bias

    def bias(self, cfg: ModelConfig, table: Array | None, query_T: Array | int, key_S: Array | int) -> Array | None:
        """[B or 1, H, T, S] float32 on the scores, read from the position's table; None: nothing."""
        if not self.own:
            return None
        return POSITIONS[cfg.position].bias(cfg, table, *self.positions(query_T, key_S), self.causal)

    def look(self, cfg: ModelConfig) -> Look:
        """What is said here, in the words of `blockwise.py`: learned is {'score', 'table'}, given is the view."""
        drop = None if self.dropout.key_2 is None else _drop_block
        return Look(
            functools.partial(_score_block, cfg), functools.partial(_mask_block, cfg), drop, cfg.attention.block
        )


def _score_block(
    cfg: ModelConfig, q: Array, k: Array, query_T: Array, key_S: Array, learned: dict[str, Array], view: View
) -> Array:
    scores_BHTS = SCORES[cfg.attention.score](cfg, q, k, learned['score'])
    bias_BHTS = view.bias(cfg, learned['table'], query_T, key_S)
    return scores_BHTS if bias_BHTS is None else scores_BHTS + bias_BHTS


def _mask_block(cfg: ModelConfig, query_T: Array, key_S: Array, view: View) -> Array:
    return view.mask(cfg, query_T, key_S)


def _drop_block(p_BHTS: Array, origin: tuple[Array | int, ...], whole: tuple[int, ...], view: View) -> Array:
    return view.dropout(p_BHTS, origin, whole)
