"""Text that a language model goes on with: one compiled program per length of the prompt."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer import sharding
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import steps
from jaxformer.decode.found import Found, as_line, blank
from jaxformer.decode.greedy import start_symbols
from jaxformer.decode.reading import Reading
from jaxformer.decode.search import Search
from jaxformer.model.family import Family
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config


class Continuation:
    """Continuation of prompts with given parameters, by the search of config.eval."""

    def __init__(self, cfg: Config, model: Family, vocab: Vocabulary, mesh: Mesh) -> None:
        self._cfg, self._model, self._vocab, self._mesh = cfg, model, vocab, mesh
        self._rows = sharding.whole_rows(cfg.eval.batch_size, mesh)
        self._find = Search(cfg.eval, vocab)
        self.search = CountedJit(self._search)
        self.reading = Reading(cfg, vocab, self._no_room)

    def _search(self, params: Any, prompt_BT: jax.Array, example_B: jax.Array) -> Found:
        """Found of [B, n], what follows the prompts, which all have the length T; example_B as of `sampling.sample`."""
        B, T = prompt_BT.shape
        length, unroll = T + self._cfg.eval.max_decode_length, self._cfg.eval.unroll
        input_BT = jnp.concatenate([start_symbols(B, self._cfg.model)[:, None], prompt_BT], axis=1)
        extend, cache = steps.begin(self._model, params, unroll, B, length)
        _, cache = extend(input_BT[:, :-1], cache)
        return self._find(extend, cache, input_BT, example_B)

    def lines(self, params: Any, lines: Sequence[str], first: int = 0) -> Iterable[tuple[str, int]]:
        r"""(what follows each line, number of unknown symbols in it), in order; a blank line gives an empty one.

        With eval.num_best > 1 an output is as many lines as hypotheses were found, as `found.as_line` writes them. A
        backslash stands before an n for the end of a line in the continuation, so that each stays one line.

        Args:
          first: number of the first line, from 0.

        Raises:
          UserError: a line is too long, unless `reading` is lenient.
        """
        encoded = self.reading(lines, first)
        outputs = [blank(first + index, self._cfg.eval.num_best) for index in range(len(lines))]
        by_length: dict[int, list[int]] = {}
        for index, tokens in enumerate(encoded):
            if tokens:
                by_length.setdefault(len(tokens), []).append(index)
        for length, indices in sorted(by_length.items()):
            for start in range(0, len(indices), self._rows):
                rows = indices[start : start + self._rows]
                prompt_BT = np.zeros((self._rows, length), np.int32)
                prompt_BT[: len(rows)] = [encoded[index] for index in rows]
                example_B = np.array([*(first + i for i in rows), *[-1] * (self._rows - len(rows))], np.int32)
                placed = sharding.put_batch({'tokens': prompt_BT, 'example_id': example_B}, self._mesh)
                found = jax.device_get(self.search(params, placed['tokens'], placed['example_id']))
                for row, index in enumerate(rows):
                    outputs[index] = as_line(found, row, first + index, self._text)
        return zip(outputs, (tokens.count(self._vocab.ids.unk) for tokens in encoded), strict=True)

    def _text(self, tokens_T: np.ndarray) -> str:
        return self._vocab.join(self._vocab.decode(tokens_T.tolist())).replace('\n', '\\n')

    def _no_room(self, length: int) -> str:
        model, further = self._cfg.model, self._cfg.eval.max_decode_length
        if (model.position == 'learned' or model.decoder_mixer == 'static') and length + further > model.max_length:
            return f' and config.eval.max_decode_length={further} go beyond config.model.max_length={model.max_length}'
        return ''
