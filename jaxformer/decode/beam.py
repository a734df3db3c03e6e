"""Beam search as a pure function of a step function and its cache."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.ids import Ids
from jaxformer.decode import cache as caches
from jaxformer.decode.found import Found
from jaxformer.decode.greedy import Extend, outputs

Array = jax.Array

BASES = {'gnmt': lambda L: (5 + L) / 6, 'length': lambda L: np.maximum(L, 1.0)}
"""eval.length_divisor → what is raised to the power of the length penalty."""


def divisors(max_length: int, length_penalty: float, length_divisor: str) -> np.ndarray:
    """[T + 1] float32: what the log-probability of a hypothesis of L = 0 … T symbols is divided by for its score.

    gnmt: ((5 + L) / 6) ** length_penalty (Wu et al. 2016, eq. 14, as AIAYN 6.1 uses it); length: L ** length_penalty,
    that of transformers. L counts the EOS, and neither the prompt nor a forced prefix.
    """
    return (BASES[length_divisor](np.arange(max_length + 1.0)) ** length_penalty).astype(np.float32)


class _State(NamedTuple):
    """position: [], symbols that rows have. token: [B, K], the last ones. tokens: [B, K, T]. logprob: [B, K], falling,
    −inf where a beam is none. best: Found of [B, n]. done: [B]. cache: of B·K rows."""

    position: Array
    token_BK: Array
    tokens_BKT: Array
    logprob_BK: Array
    best: Found
    done_B: Array
    cache: Any


def beam(
    extend: Extend,
    cache: caches.Cache,
    first_B: Array,
    max_length: int,
    num_symbols: int,
    special: Ids,
    *,
    beam_size: int,
    length_penalty: float,
    length_divisor: str,
    num_best: int,
) -> Found:
    """The n hypotheses of the greatest score that K beams find.

    At each step the 2·K most probable continuations of a row are looked at. One that ends is a hypothesis where it is
    among the first K, and so is each of the first K at the limit of length, marked as truncated; the K most probable
    ones that do not end go on. A row is done when no beam can reach the score of its n-th hypothesis any more: its
    log-probability only falls, and is divided by the greatest divisor of the lengths ahead, which is that of the limit
    where the penalty is positive, and that of the next length otherwise. So the result is that of all steps, whatever
    the penalty, and no row waits for another or changes with it.

    Args:
      cache: of B rows, laid out as `decode/cache.py` says, with room for max_length positions.
      beam_size: K. length_penalty, length_divisor: see `divisors`. num_best: n, at most K.
      others as of `greedy.one_by_one`.

    Returns:
      Found of [B, n], best first.
    """
    B, K, T = first_B.shape[0], beam_size, max_length
    divisor_T = jnp.asarray(divisors(T, length_penalty, length_divisor))

    def step(state: _State) -> _State:
        logits, cache = extend(state.token_BK.reshape(B * K, 1), state.cache)
        V = logits.shape[-1]
        gain_BKV = jax.nn.log_softmax(logits[:, -1]).reshape(B, K, V)
        gain_BKV = jnp.where(outputs(V, num_symbols, special), gain_BKV, -jnp.inf)
        total_BKV = state.logprob_BK[:, :, None] + gain_BKV
        logprob_BM, place_BM = jax.lax.top_k(total_BKV.reshape(B, K * V), min(2 * K, K * V))
        parent_BM, symbol_BM = place_BM // V, (place_BM % V).astype(jnp.int32)
        tokens_BMT = jnp.take_along_axis(state.tokens_BKT, parent_BM[:, :, None], axis=1)
        tokens_BMT = tokens_BMT.at[:, :, state.position].set(symbol_BM)

        index = state.position + 1
        ends_BM = symbol_BM == special.eos
        finishes_BM = (ends_BM | (index == T)) & (jnp.arange(place_BM.shape[1]) < K)
        score_BM = jnp.where(finishes_BM, logprob_BM / divisor_T[index], -jnp.inf)
        best = _best(state.best, Found(tokens_BMT, logprob_BM, score_BM, ~ends_BM))

        logprob_BK, going_BK = jax.lax.top_k(jnp.where(ends_BM, -jnp.inf, logprob_BM), K)
        ahead = jnp.maximum(divisor_T[jnp.minimum(index + 1, T)], divisor_T[T])
        done_B = best.score[:, -1] >= logprob_BK[:, 0] / ahead
        return _State(
            index,
            jnp.take_along_axis(symbol_BM, going_BK, axis=1),
            jnp.take_along_axis(tokens_BMT, going_BK[:, :, None], axis=1),
            logprob_BK,
            best,
            done_B,
            caches.reorder(cache, jnp.take_along_axis(parent_BM, going_BK, axis=1)),
        )

    none_Bn = jnp.full((B, num_best), -jnp.inf)
    start = _State(
        jnp.int32(0),
        jnp.repeat(first_B[:, None], K, axis=1),
        jnp.full((B, K, T), special.pad, jnp.int32),
        jnp.full((B, K), -jnp.inf).at[:, 0].set(0.0),  # one beam: K of the same would find K times the same
        Found(jnp.full((B, num_best, T), special.pad, jnp.int32), none_Bn, none_Bn, jnp.zeros((B, num_best), bool)),
        jnp.zeros((B,), bool),
        caches.repeat(cache, K),
    )
    going = lambda state: (state.position < T) & ~jnp.all(state.done_B)  # noqa: E731
    return jax.lax.while_loop(going, step, start).best


def _best(best: Found, more: Found) -> Found:
    """As many as `best` has of both, by their scores; of equals those in front."""
    together = Found(*(jnp.concatenate(pair, axis=1) for pair in zip(best, more, strict=True)))
    _, kept_Bn = jax.lax.top_k(together.score, best.score.shape[1])
    return Found(*(jax.vmap(lambda rows, kept_n: rows[kept_n])(leaf, kept_Bn) for leaf in together))
