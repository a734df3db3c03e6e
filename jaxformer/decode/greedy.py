"""Greedy search as a pure function of a step function and its cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.data.vocab import BOS, EOS, PAD

Array = jax.Array
Extend = Callable[[Array, Any], tuple[Array, Any]]


def greedy(extend: Extend, cache: Any, batch_size: int, max_length: int) -> tuple[Array, Array]:
    """Takes the most probable symbol at each position until every row has ended.

    Args:
      extend: (tokens [B, 1], cache) → (logits [B, 1, V], cache), as `Seq2Seq.extend`.
      cache: with room for max_length positions.
      batch_size: B. max_length: T, symbols at most, EOS included.

    Returns:
      (tokens [B, T] int32: the symbols with their EOS, then PAD; a row without EOS was cut at max_length,
      log-probability [B] float32 of these symbols, EOS included).
    """

    def step(carry: tuple[Array, Array, Array, Array, Array, Any]) -> tuple[Array, Array, Array, Array, Array, Any]:
        index, token_B, done_B, tokens_BT, logprob_B, cache = carry
        logits, cache = extend(token_B[:, None], cache)
        logprob_BV = jax.nn.log_softmax(logits[:, -1])
        # PAD and BOS are never outputs, however probable: they would make a row that no reader can tell from a short one.
        choice_B = jnp.argmax(logprob_BV.at[:, jnp.array([PAD, BOS])].set(-jnp.inf), axis=-1).astype(jnp.int32)
        gain_B = jnp.take_along_axis(logprob_BV, choice_B[:, None], axis=-1)[:, 0]
        token_B = jnp.where(done_B, PAD, choice_B)
        tokens_BT = jax.lax.dynamic_update_slice(tokens_BT, token_B[:, None], (0, index))
        logprob_B = logprob_B + jnp.where(done_B, 0.0, gain_B)
        return index + 1, token_B, done_B | (token_B == EOS), tokens_BT, logprob_B, cache

    start = (
        jnp.int32(0),
        jnp.full((batch_size,), BOS, jnp.int32),
        jnp.zeros((batch_size,), bool),
        jnp.full((batch_size, max_length), PAD, jnp.int32),
        jnp.zeros((batch_size,), jnp.float32),
        cache,
    )
    going = lambda carry: (carry[0] < max_length) & ~jnp.all(carry[2])  # noqa: E731
    _, _, _, tokens_BT, logprob_B, _ = jax.lax.while_loop(going, step, start)
    return tokens_BT, logprob_B
