"""Sampling: each symbol is drawn from the model's distribution, or from a part of it.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p, each on what the one before
left. A draw depends on (key, example, position) alone, so that neighbours and batches change nothing.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.data.ids import Ids
from jaxformer.decode.found import Found
from jaxformer.decode.greedy import Extend, one_by_one

Array = jax.Array


def repetition_penalty(logits_BV: Array, said_BV: Array, penalty: float) -> Array:
    """Logits of symbols that were said are divided by `penalty` if positive, else multiplied (Keskar et al. 2019, 4.1).

    Args:
      said_BV: boolean.
    """
    less_BV = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return jnp.where(said_BV, less_BV, logits_BV)


def top_k(logits_BV: Array, k: int) -> Array:
    """Leaves the k greatest logits, and all that equal the last of them (Fan et al. 2018, 5.4)."""
    least_B1 = jax.lax.top_k(logits_BV, min(k, logits_BV.shape[-1]))[0][:, -1:]
    return jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)


def top_p(logits_BV: Array, p: float) -> Array:
    """Leaves the fewest symbols with a probability of p together, and all as probable as the last of them.

    The nucleus of Holtzman et al. 2020, 3.1.
    """
    sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
    before_BV = jnp.pad(jnp.cumsum(jax.nn.softmax(sorted_BV, axis=-1), axis=-1)[:, :-1], ((0, 0), (1, 0)))
    least_B1 = jnp.min(jnp.where(before_BV < p, sorted_BV, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)


def min_p(logits_BV: Array, p: float) -> Array:
    """Leaves what is at least p times as probable as the most probable symbol (Nguyen et al. 2024, 3)."""
    prob_BV = jax.nn.softmax(logits_BV, axis=-1)
    return jnp.where(prob_BV < p * jnp.max(prob_BV, axis=-1, keepdims=True), -jnp.inf, logits_BV)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of the distribution that symbols are drawn from; see the functions above.

    temperature: logits are divided by it. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 leave it as it is.
    """

    repetition_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float

    def of(self, logits_BV: Array, said_BV: Array) -> Array:
        """The logits to draw from, −inf where nothing is; said_BV: boolean, symbols read or put out before."""
        if self.repetition_penalty != 1:
            logits_BV = repetition_penalty(logits_BV, said_BV, self.repetition_penalty)
        logits_BV = logits_BV / self.temperature
        if self.top_k:
            logits_BV = top_k(logits_BV, self.top_k)
        if self.top_p < 1:
            logits_BV = top_p(logits_BV, self.top_p)
        return min_p(logits_BV, self.min_p) if self.min_p else logits_BV


def sample(
    extend: Extend,
    cache: Any,
    read_BP: Array,
    example_B: Array,
    max_length: int,
    num_symbols: int,
    special: Ids,
    *,
    seed: int,
    shape: Shape,
) -> Found:
    """Draws each symbol until every row has ended; other arguments and the result as of `greedy.one_by_one`.

    Args:
      read_BP: int32, what the decoder was given before: all but the last column is in the cache. All of it counts as
        said to the repetition penalty, the start symbol too.
      example_B: int32, a number of its own for each row. seed: of all draws.

    Returns:
      Found of [B]; log-probabilities are the model's own, before any shape.
    """
    key = jax.random.key(seed)
    key_B = jax.vmap(lambda example: jax.random.fold_in(key, example))(example_B)

    def choose(logits_BV: Array, tokens_BT: Array, index: Array) -> Array:
        before = jnp.concatenate([read_BP, tokens_BT], axis=1)
        before = jnp.where(before < 0, logits_BV.shape[-1], before)  # −1 is no symbol: dropped, and not the last one
        row_B1 = jnp.arange(before.shape[0])[:, None]
        said_BV = jnp.zeros(logits_BV.shape, bool).at[row_B1, before].set(True)
        shaped_BV = shape.of(logits_BV, said_BV)
        return jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, index), row))(key_B, shaped_BV)

    return one_by_one(choose, extend, cache, read_BP[:, -1], max_length, num_symbols, special)
