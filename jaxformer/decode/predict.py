"""From token batches and text lines to decoded symbols: one compiled program per source bucket."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import sharding
from jaxformer.data.pipeline import eval_batches
from jaxformer.data.splits import PairSplit
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import steps
from jaxformer.decode.error_rates import count_errors, rate_names, rates
from jaxformer.decode.found import Found, as_line, blank
from jaxformer.decode.greedy import start_symbols
from jaxformer.decode.reading import Reading
from jaxformer.decode.search import Search
from jaxformer.model.family import Family
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config


class Outputs(NamedTuple):
    """Of n examples of a split. example_id: int64 [n], the place in the split. truncated: bool [n], without an end."""

    example_id: np.ndarray
    texts: list[str]
    truncated: np.ndarray


class Decoder:
    """Decoding of whole splits and of lines of text with given parameters, by the search of config.eval."""

    def __init__(self, cfg: Config, model: Family, vocab: Vocabulary, mesh: Mesh) -> None:
        self._cfg, self._model, self._vocab, self._mesh = cfg, model, vocab, mesh
        self._rows = sharding.whole_rows(cfg.eval.batch_size, mesh)
        self._find = Search(cfg.eval, vocab)
        # On every process: each of them knows the whole batch.
        self.search = CountedJit(self._search, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self.reading = Reading(cfg, vocab, self._no_room)
        self.cut = 0

    def _search(self, params: Any, source_BS: jax.Array, example_B: jax.Array) -> Found:
        length, unroll = self._cfg.eval.max_decode_length, self._cfg.eval.unroll
        extend, cache = steps.begin(self._model, params, unroll, source_BS, length)
        first_B = start_symbols(source_BS.shape[0], self._cfg.model)
        return self._find(extend, cache, first_B[:, None], example_B)

    def batch(self, params: Any, source_BS: np.ndarray, example_B: np.ndarray) -> Found:
        """Found of [B, n] for a host batch, which every process gives whole.

        example_B: int32, a number of its own for each row.
        """
        here = sharding.rows_here(len(source_BS), self._mesh)
        batch = {'source': source_BS[here], 'example_id': example_B[here]}
        placed = sharding.put_batch(batch, self._mesh)
        return jax.device_get(self.search(params, placed['source'], placed['example_id']))

    def outputs(self, params: Any, split: PairSplit) -> Outputs:
        """The best hypothesis of each example that fits the buckets, in the order of the split."""
        found_of: dict[int, tuple[str, bool]] = {}
        for batch in eval_batches(split, self._cfg.data.buckets, self._rows):
            found = self.batch(params, batch['source'], batch['example_id'].astype(np.int32))
            for row, example in enumerate(batch['example_id']):
                if example >= 0:
                    text = self._vocab.join(self._vocab.decode(found.tokens[row, 0].tolist()))
                    found_of[int(example)] = text, bool(found.truncated[row, 0])
        ids = sorted(found_of)
        texts, truncated = zip(*(found_of[i] for i in ids), strict=True) if ids else ((), ())
        return Outputs(np.array(ids, np.int64), list(texts), np.array(truncated, bool))

    def examples(self, params: Any, split: PairSplit) -> dict[str, np.ndarray]:
        """`errors` of `outputs`."""
        return self.errors(self.outputs(params, split), split)

    def errors(self, outputs: Outputs, split: PairSplit) -> dict[str, np.ndarray]:
        """What is wrong about each output, [n] each.

        example_id: int64, the place in the split. errors, symbols: int64, edits to the nearest reference and its
        length. wrong: bool. Symbols are those of the outputs' texts, so that it does not matter into which pieces a
        word was put together.
        """
        ids = outputs.example_id
        hypotheses = [self._vocab.split(text) for text in outputs.texts]
        errors, symbols, wrong = count_errors(hypotheses, [split.references(int(i)) for i in ids])
        return {'example_id': ids, 'errors': errors, 'symbols': symbols, 'wrong': wrong}

    def totals(self, examples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Symbol and sequence error rates (fractions) over the examples that `examples` gives."""
        return rates(examples['errors'], examples['symbols'], examples['wrong'], rate_names(self._cfg.data.name))

    def split_error_rates(self, params: Any, split: PairSplit) -> dict[str, float]:
        """`totals` of `examples`."""
        return self.totals(self.examples(params, split))

    def lines(self, params: Any, lines: Sequence[str], first: int = 0) -> Iterable[tuple[str, int]]:
        """(output line, number of unknown source symbols) of each line, in order; a blank line gives an empty one.

        With eval.num_best > 1 an output is as many lines as hypotheses were found, as `found.as_line` writes them.
        `cut` counts the lines of which eval.max_decode_length cut an output off. Lines are sorted by length for the
        batches. One that is longer than the longest source bucket is decoded in a batch of its own, padded to the next
        power of two, with fewer rows, so that its attention takes no more memory than that of the longest bucket, or
        has one row.

        Args:
          first: number of the first line, from 0.

        Raises:
          UserError: a line is too long, unless `reading` is lenient.
        """
        vocab = self._vocab
        encoded = self.reading(lines, first)
        outputs = [blank(first + index, self._cfg.eval.num_best) for index in range(len(lines))]
        for shape, rows, indices in self._line_batches(encoded):
            source_BS = np.full((rows, shape), self._cfg.model.ids.pad, np.int32)
            for row, index in enumerate(indices):
                source_BS[row, : len(encoded[index]) + 1] = [*encoded[index], vocab.ids.eos]
            example_B = np.array([*(first + i for i in indices), *[-1] * (rows - len(indices))], np.int32)
            found = self.batch(params, source_BS, example_B)
            for row, index in enumerate(indices):
                outputs[index] = as_line(found, row, first + index, self._text)
            cut = found.truncated & (found.score > -np.inf)
            self.cut += int(np.sum(np.any(cut[: len(indices)], axis=1)))
        return zip(outputs, (tokens.count(vocab.ids.unk) for tokens in encoded), strict=True)

    def _text(self, tokens_T: np.ndarray) -> str:
        return ' '.join(self._vocab.join(self._vocab.decode(tokens_T.tolist())).split('\n'))  # a line stays one

    def _no_room(self, length: int) -> str:
        longest = self._cfg.model.max_length
        by_position = self._cfg.model.position == 'learned' or self._cfg.model.encoder_mixer in ('static', 'linformer')
        if by_position and length + 1 > longest:
            return f'; the tables by position end at config.model.max_length={longest}'
        return ''

    def _line_batches(self, encoded: Sequence[Sequence[int]]) -> Iterable[tuple[int, int, list[int]]]:
        """(padded source length, rows, indices of the lines) of each batch."""
        sizes = sorted({size for size, _ in self._cfg.data.buckets})
        by_shape: dict[int, list[int]] = {}
        for index, tokens in enumerate(encoded):
            if tokens:
                needed = len(tokens) + 1
                shape = next((size for size in sizes if needed <= size), 1 << (needed - 1).bit_length())
                if self._no_room(shape - 1):
                    shape = self._cfg.model.max_length
                by_shape.setdefault(shape, []).append(index)
        for shape, indices in sorted(by_shape.items()):
            fewer = max(1, int(self._rows * (sizes[-1] / shape) ** 2))
            rows = self._rows if shape <= sizes[-1] else sharding.whole_rows(fewer, self._mesh)
            for start in range(0, len(indices), rows):
                yield shape, rows, indices[start : start + rows]
