"""Greedy search as a pure function of a step function and its cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.data.ids import Ids

Array = jax.Array
Extend = Callable[[Array, Any], tuple[Array, Any]]


def outputs(V: int, num_symbols: int, special: Ids) -> np.ndarray:
    """[V] boolean: what decoding may put out of V rows of logits.

    Never the padding or the begin (unless one id is begin and end), which would make an output that no reader can tell
    from a short one, nor a row beyond the `num_symbols` of the data (`model.vocab_size` may ask for more), which stands
    for nothing.
    """
    ids = np.arange(V)
    never = {special.pad, special.bos} - {special.eos}
    return ~np.isin(ids, list(never)) & (ids < num_symbols)


def start_symbols(B: int, cfg: ModelConfig) -> Array:
    """[B] int32: what a decoder reads first."""
    return jnp.full((B,), cfg.ids.start, jnp.int32)


def greedy(
    extend: Extend, cache: Any, first_B: Array, max_length: int, num_symbols: int, special: Ids
) -> tuple[Array, Array]:
    """Takes the most probable symbol at each position until every row has ended.

    Args:
      extend: (tokens [B, 1], cache) → (logits [B, 1, V], cache), as `Seq2Seq.extend`.
      cache: with room for max_length positions.
      first_B: int32, the input that the first symbol follows.
      max_length: T, symbols at most, EOS included. num_symbols: of the data, at most V. special: its special ids.

    Returns:
      (tokens [B, T] int32: the symbols with their EOS, then padding; a row without EOS was cut at max_length,
      log-probability [B] float32 of these symbols, EOS included).
    """

    def step(carry: tuple[Array, Array, Array, Array, Array, Any]) -> tuple[Array, Array, Array, Array, Array, Any]:
        index, token_B, done_B, tokens_BT, logprob_B, cache = carry
        logits, cache = extend(token_B[:, None], cache)
        logprob_BV = jax.nn.log_softmax(logits[:, -1])
        allowed_BV = jnp.where(outputs(logprob_BV.shape[-1], num_symbols, special), logprob_BV, -jnp.inf)
        choice_B = jnp.argmax(allowed_BV, axis=-1).astype(jnp.int32)
        gain_B = jnp.take_along_axis(logprob_BV, choice_B[:, None], axis=-1)[:, 0]
        token_B = jnp.where(done_B, special.pad, choice_B)
        tokens_BT = jax.lax.dynamic_update_slice(tokens_BT, token_B[:, None], (0, index))
        logprob_B = logprob_B + jnp.where(done_B, 0.0, gain_B)
        return index + 1, token_B, done_B | (token_B == special.eos), tokens_BT, logprob_B, cache

    start = (
        jnp.int32(0),
        first_B,
        jnp.zeros(first_B.shape, bool),
        jnp.full((*first_B.shape, max_length), special.pad, jnp.int32),
        jnp.zeros(first_B.shape, jnp.float32),
        cache,
    )
    going = lambda carry: (carry[0] < max_length) & ~jnp.all(carry[2])  # noqa: E731
    _, _, _, tokens_BT, logprob_B, _ = jax.lax.while_loop(going, step, start)
    return tokens_BT, logprob_B
