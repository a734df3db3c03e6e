"""Searches that go on with one symbol at a time, as pure functions of a step function and its cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.ids import Ids
from jaxformer.decode.found import Found
from jaxformer.schema import ModelConfig

Array = jax.Array
Extend = Callable[[Array, Any], tuple[Array, Any]]
Choose = Callable[[Array, Array, Array], Array]


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


def first_greatest(logits_BV: Array) -> Array:
    """[B] int32: `argmax` of each row, a NaN the greatest; in two passes that a CPU vectorises, a ninth of its time."""
    V = logits_BV.shape[-1]
    here_BV = (logits_BV == jnp.max(logits_BV, axis=-1, keepdims=True)) | jnp.isnan(logits_BV)
    return jnp.min(jnp.where(here_BV, jnp.arange(V), V - 1), axis=-1)


def greedy(extend: Extend, cache: Any, first_B: Array, max_length: int, num_symbols: int, special: Ids) -> Found:
    """Takes the most probable symbol at each position until every row has ended; arguments as of `one_by_one`."""
    best = lambda logits_BV, tokens_BT, index: first_greatest(logits_BV)  # noqa: E731
    return one_by_one(best, extend, cache, first_B, max_length, num_symbols, special)


def one_by_one(
    choose: Choose,
    extend: Extend,
    cache: Any,
    first_B: Array,
    max_length: int,
    num_symbols: int,
    special: Ids,
) -> Found:
    """Takes what `choose` says at each position until every row has ended.

    Args:
      choose: (logits [B, V] float32, −inf where nothing may be put out, tokens [B, T] so far, position []) → [B].
      extend: (tokens [B, 1], cache) → (logits [B, 1, V], cache), as `Seq2Seq.extend`.
      cache: with room for max_length positions.
      first_B: int32, the input that the first symbol follows.
      max_length: T, symbols at most, EOS included. num_symbols: of the data, at most V. special: its special ids.

    Returns:
      Found of [B]; the score is the log-probability.
    """
    B = first_B.shape[0]

    def step(carry: tuple[Array, Array, Array, Array, Array, Any]) -> tuple[Array, Array, Array, Array, Array, Any]:
        index, token_B, done_B, tokens_BT, logprob_B, cache = carry
        logits, cache = extend(token_B[:, None], cache)
        logits_BV = logits[:, -1]
        allowed_BV = jnp.where(outputs(logits_BV.shape[-1], num_symbols, special), logits_BV, -jnp.inf)
        choice_B = choose(allowed_BV, tokens_BT, index).astype(jnp.int32)
        gain_B = jnp.take_along_axis(jax.nn.log_softmax(logits_BV), choice_B[:, None], axis=-1)[:, 0]
        token_B = jnp.where(done_B, special.pad, choice_B)
        tokens_BT = jax.lax.dynamic_update_slice(tokens_BT, token_B[:, None], (0, index))
        logprob_B = logprob_B + jnp.where(done_B, 0.0, gain_B)
        return index + 1, token_B, done_B | (token_B == special.eos), tokens_BT, logprob_B, cache

    start = (
        jnp.int32(0),
        first_B,
        jnp.zeros((B,), bool),
        jnp.full((B, max_length), special.pad, jnp.int32),
        jnp.zeros((B,), jnp.float32),
        cache,
    )
    going = lambda carry: (carry[0] < max_length) & ~jnp.all(carry[2])  # noqa: E731
    _, _, done_B, tokens_BT, logprob_B, _ = jax.lax.while_loop(going, step, start)
    return Found(tokens_BT, logprob_B, logprob_B, ~done_B)
