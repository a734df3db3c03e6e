"""From token batches and text lines to decoded symbols: one compiled program per source bucket."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer import sharding
from jaxformer.config import Config
from jaxformer.data.pipeline import eval_batches
from jaxformer.data.sources import source_symbols
from jaxformer.data.splits import PairSplit
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.error_rates import count_errors, rate_names, rates
from jaxformer.decode.greedy import greedy, start_symbols
from jaxformer.errors import UserError
from jaxformer.runtime import CountedJit


class Decoder:
    """Greedy decoding of whole splits and of lines of text with given parameters."""

    def __init__(self, cfg: Config, model: nn.Module, vocab: Vocabulary, mesh: Mesh) -> None:
        self._cfg, self._model, self._vocab, self._mesh = cfg, model, vocab, mesh
        self._rows = sharding.whole_rows(cfg.eval.batch_size, mesh)
        self.search = CountedJit(self._search)

    def _search(self, params: Any, source_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
        length = self._cfg.eval.max_decode_length
        apply = lambda method, *args: self._model.apply({'params': params}, *args, method=method)  # noqa: E731
        cache = apply('start_cache', source_BS, length)
        extend = lambda tokens, cache: apply('extend', tokens, cache)  # noqa: E731
        first_B, vocab = start_symbols(source_BS.shape[0], self._cfg.model), self._vocab
        return greedy(extend, cache, first_B, length, len(vocab), vocab.ids)

    def batch(self, params: Any, source_BS: np.ndarray) -> tuple[list[list[str]], np.ndarray]:
        """(symbols, log-probability) of each row of a host batch."""
        placed = sharding.put_batch({'source': source_BS}, self._mesh)['source']
        tokens_BT, logprob_B = jax.device_get(self.search(params, placed))
        return [self._vocab.decode(row) for row in tokens_BT], logprob_B

    def examples(self, params: Any, split: PairSplit) -> dict[str, np.ndarray]:
        """What is wrong about each example that fits the buckets, [n] each, in the order of the split.

        example_id: int64, the place in the split. errors, symbols: int64, edits to the nearest reference and its
        length. wrong: bool. Symbols are those of the outputs' texts, so that it does not matter into which pieces a
        word was put together.
        """
        hypotheses = {}
        for batch in eval_batches(split, self._cfg.data.buckets, self._rows):
            outputs, _ = self.batch(params, batch['source'])
            for example, hypothesis in zip(batch['example_id'], outputs, strict=True):
                if example >= 0:
                    hypotheses[int(example)] = self._vocab.split(self._vocab.join(hypothesis))
        ids = sorted(hypotheses)
        errors, symbols, wrong = count_errors([hypotheses[i] for i in ids], [split.references(i) for i in ids])
        return {'example_id': np.array(ids, np.int64), 'errors': errors, 'symbols': symbols, 'wrong': wrong}

    def totals(self, examples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Symbol and sequence error rates (fractions) over the examples that `examples` gives."""
        return rates(examples['errors'], examples['symbols'], examples['wrong'], rate_names(self._cfg.data.name))

    def split_error_rates(self, params: Any, split: PairSplit) -> dict[str, float]:
        """`totals` of `examples`."""
        return self.totals(self.examples(params, split))

    def lines(self, params: Any, lines: Sequence[str]) -> Iterable[tuple[str, int]]:
        """(output line, number of unknown source symbols) of each line, in order; a blank line gives an empty one.

        Lines are sorted by length for the batches. One that is longer than the longest source bucket is decoded from
        a batch of its own, padded to the next power of two.

        Raises:
          UserError: a line is longer than a table by position reaches.
        """
        name, vocab = self._cfg.data.name, self._vocab
        encoded = [vocab.encode(source_symbols(name, vocab, line)) for line in lines]
        outputs = [''] * len(lines)
        for shape, rows in self._line_batches(encoded):
            source_BS = np.full((self._rows, shape), self._cfg.model.ids.pad, np.int32)
            for row, index in enumerate(rows):
                source_BS[row, : len(encoded[index]) + 1] = [*encoded[index], vocab.ids.eos]
            symbols, _ = self.batch(params, source_BS)
            for index, output in zip(rows, symbols, strict=False):
                outputs[index] = ' '.join(vocab.join(output).split('\n'))  # a line stays one
        return zip(outputs, (tokens.count(vocab.ids.unk) for tokens in encoded), strict=True)

    def _line_batches(self, encoded: Sequence[Sequence[int]]) -> Iterable[tuple[int, list[int]]]:
        """(padded source length, indices of the lines) of each batch."""
        sizes = sorted({size for size, _ in self._cfg.data.buckets})
        by_shape: dict[int, list[int]] = {}
        for index, tokens in enumerate(encoded):
            if tokens:
                needed = len(tokens) + 1
                shape = next((size for size in sizes if needed <= size), 1 << (needed - 1).bit_length())
                if self._cfg.model.position == 'learned' or self._cfg.model.encoder_mixer in ('static', 'linformer'):
                    if needed > (longest := self._cfg.model.max_length):
                        raise UserError(
                            f'line {index + 1}: {len(tokens)} symbols; the tables by position end at '
                            f'config.model.max_length={longest}; shorten the line'
                        )
                    shape = min(shape, longest)
                by_shape.setdefault(shape, []).append(index)
        for shape, indices in sorted(by_shape.items()):
            for start in range(0, len(indices), self._rows):
                yield shape, indices[start : start + self._rows]
