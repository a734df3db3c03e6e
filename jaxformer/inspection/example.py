"""One text as the model of a run reads it, and what it writes."""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from jaxformer.data.ids import Ids
from jaxformer.data.sources import source_symbols
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import steps
from jaxformer.decode.greedy import greedy, start_symbols
from jaxformer.decode.open import OpenRun
from jaxformer.errors import UserError
from jaxformer.model.family import Family


@dataclasses.dataclass(frozen=True)
class Example:
    """source: ids that an encoder reads, () of a language model. labels: ids that a decoder writes, () without one."""

    text: str
    source: tuple[int, ...]
    labels: tuple[int, ...]


def of_text(run: OpenRun, text: str, target: str | None = None) -> Example:
    """A text, read as training reads texts.

    Args:
      text: as a line of the data's source. Symbols that the run does not know are read as unknown, with a warning.
      target: symbols separated by blanks that the decoder is made to write; None is what greedy decoding gives.

    Raises:
      UserError: a blank text, a target symbol that the run does not know, or a target where nothing is written.
    """
    family, special, source = run.cfg.model.family, run.vocab.ids, _ids(run, text)
    if family == 'seq2seq':
        source = [*source, special.eos]
        return Example(text, tuple(source), tuple(_labels(run, source) if target is None else _target(run, target)))
    if target is not None:
        raise UserError(f'target {target!r}: a model of model.family={family} has none; leave it out')
    if family == 'lm':  # reads the text and says what comes next; that it is the end is only to fill the place
        return Example(text, (), (*source, special.eos))
    if family == 'classifier' or run.vocab.tokenizer == 'file':  # as BERT read its texts
        source = [id_ for id_ in (special.bos, *source, special.eos) if id_ >= 0]
    return Example(text, tuple(source), ())


def arrays(run: OpenRun, source: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]) -> tuple[np.ndarray, ...]:
    """What the model is called with, for rows of a source and of labels, as `Example` has them.

    Both sides have the sizes of the first bucket that all rows fit, as in training, so that few shapes are compiled; a
    side that none fits stays as long as it is.
    """
    sides = {'seq2seq': (source, labels), 'lm': (labels,)}.get(run.cfg.model.family, (source,))
    longest, buckets = [max(map(len, rows)) for rows in sides], run.cfg.data.buckets
    fitting = (sizes for sizes in buckets if all(map(operator.le, longest, sizes)))
    sizes = next(fitting, [*map(max, longest, buckets[-1])])
    return tuple(_padded(rows, size, run.cfg.model.ids.pad) for rows, size in zip(sides, sizes, strict=True))


def spelled(vocab: Vocabulary, ids: Sequence[int]) -> tuple[str, ...]:
    """The symbol of each id, '<97>' of one beyond the vocabulary."""
    return tuple(vocab.symbols[id_] if id_ < len(vocab) else f'<{id_}>' for id_ in ids)


def _ids(run: OpenRun, text: str) -> list[int]:
    symbols = source_symbols(run.cfg.data.name, run.vocab, text)
    if not symbols:
        raise UserError(f'text {text!r}: holds no symbol; give a text of the data set {run.cfg.data.name}')
    ids = run.vocab.encode(symbols)
    if unknown := [symbol for symbol, id_ in zip(symbols, ids, strict=True) if id_ == run.vocab.ids.unk]:
        logging.warning('%r: read as unknown, not in the vocabulary: %s', text, ' '.join(dict.fromkeys(unknown)))
    return ids


def _target(run: OpenRun, target: str) -> list[int]:
    symbols = run.vocab.split(target)
    ids = run.vocab.encode(symbols)
    if (unk := run.vocab.ids.unk) in ids:
        raise UserError(
            f'target {target!r}: {symbols[ids.index(unk)]!r} is not in the vocabulary of the run (vocab.json); '
            'separate the symbols by blanks'
        )
    return [*ids, run.vocab.ids.eos]


def _labels(run: OpenRun, source: list[int]) -> list[int]:
    """What greedy decoding writes, with its end; without one where it was cut off before."""
    special, (source_BS, _) = run.vocab.ids, arrays(run, [source], [[]])
    tokens_BT = _decode(run.params, source_BS, run.model, run.cfg.eval.max_decode_length, len(run.vocab), special)
    ids = np.asarray(tokens_BT)[0].tolist()
    return ids[: ids.index(special.eos) + 1] if special.eos in ids else ids


@functools.partial(jax.jit, static_argnames=('model', 'length', 'num_symbols', 'special'))
def _decode(params: Any, source_BS: jax.Array, model: Family, length: int, num_symbols: int, special: Ids) -> jax.Array:
    """[B, length]: the symbols of greedy decoding."""
    extend, cache = steps.begin(model, params, 'off', source_BS, length)
    return greedy(extend, cache, start_symbols(source_BS.shape[0], model.cfg), length, num_symbols, special)[0]


def _padded(rows: Sequence[Sequence[int]], size: int, pad: int) -> np.ndarray:
    """[B, size]."""
    found = np.full((len(rows), size), pad, np.int32)
    for row, ids in zip(found, rows, strict=True):
        row[: len(ids)] = ids
    return found
