"""The search that config.eval asks for."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import sampling
from jaxformer.decode.beam import beam
from jaxformer.decode.found import Found
from jaxformer.decode.greedy import Extend, greedy
from jaxformer.errors import UserError
from jaxformer.schema import EvalConfig

Array = jax.Array


class Search:
    """Hypotheses for rows that a step function and a cache stand for, by config.eval; a function of its arguments.

    Raises:
      UserError: eval.forced_prefix is not in the symbols of `vocab`, or leaves no room.
    """

    def __init__(self, cfg: EvalConfig, vocab: Vocabulary) -> None:
        self._cfg, self._vocab = cfg, vocab
        self._prefix = vocab.encode(vocab.split(cfg.forced_prefix))
        self._of_one = SEARCHES[cfg.search]
        if vocab.ids.unk in self._prefix or len(self._prefix) >= cfg.max_decode_length:
            raise UserError(
                f'config.eval.forced_prefix={cfg.forced_prefix!r}: must be in the symbols of the run, and fewer than '
                f'config.eval.max_decode_length={cfg.max_decode_length}'
            )

    def __call__(self, extend: Extend, cache: Any, read_BP: Array, example_B: Array) -> Found:
        """Found of [B, n], each beginning with eval.forced_prefix; `read_BP` and `example_B` as of `sampling.sample`.

        The prefix is read in one call, and what is searched for is what follows it.
        """
        prefix_P = jnp.array(self._prefix, jnp.int32)
        read_BP = jnp.concatenate([read_BP, jnp.tile(prefix_P, (read_BP.shape[0], 1))], axis=1)
        P, room = len(self._prefix), self._cfg.max_decode_length - len(self._prefix)
        if P:
            _, cache = extend(read_BP[:, -1 - P : -1], cache)
        found = self._of_one(self._cfg, self._vocab, extend, cache, read_BP, example_B, room)
        prefix_BnP = jnp.broadcast_to(prefix_P, (*found.tokens.shape[:2], P))
        return found._replace(tokens=jnp.concatenate([prefix_BnP, found.tokens], axis=2))


def _greedy(
    cfg: EvalConfig, vocab: Vocabulary, extend: Extend, cache: Any, read_BP: Array, example_B: Array, room: int
) -> Found:
    del example_B
    found = greedy(extend, cache, read_BP[:, -1], room, len(vocab), vocab.ids)
    return jax.tree.map(lambda leaf: leaf[:, None], found)


def _sample(
    cfg: EvalConfig, vocab: Vocabulary, extend: Extend, cache: Any, read_BP: Array, example_B: Array, room: int
) -> Found:
    shape = sampling.Shape(cfg.repetition_penalty, cfg.temperature, cfg.top_k, cfg.top_p, cfg.min_p)
    found = sampling.sample(
        extend,
        cache,
        read_BP,
        example_B,
        room,
        len(vocab),
        vocab.ids,
        seed=cfg.sample_seed,
        shape=shape,
    )
    return jax.tree.map(lambda leaf: leaf[:, None], found)


def _beam(
    cfg: EvalConfig, vocab: Vocabulary, extend: Extend, cache: Any, read_BP: Array, example_B: Array, room: int
) -> Found:
    del example_B
    return beam(
        extend,
        cache,
        read_BP[:, -1],
        room,
        len(vocab),
        vocab.ids,
        beam_size=cfg.beam_size,
        length_penalty=cfg.length_penalty,
        length_divisor=cfg.length_divisor,
        num_best=cfg.num_best,
    )


SEARCHES: Mapping[str, Callable[..., Found]] = {'greedy': _greedy, 'sample': _sample, 'beam': _beam}
"""By eval.search."""
