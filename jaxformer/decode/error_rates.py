"""Error rates of decoded symbol sequences against one or more references each."""

from collections.abc import Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein

Symbols = Sequence[str]


def rate_names(data_name: str) -> tuple[str, str]:
    """What the two rates are called: per and wer where a symbol is a phoneme and a sequence a word, as in CMUdict.

    Of lines of text a symbol is a word, a character or a piece, and a sequence a line: symbol_errors and line_errors.
    """
    lines = data_name in ('parallel', 'help_pages') or '/' in data_name
    return ('symbol_errors', 'line_errors') if lines else ('per', 'wer')


def count_errors(
    hypotheses: Sequence[Symbols], references: Sequence[Sequence[Symbols]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(errors, symbols, wrong) of each hypothesis, [n] each: int64, int64, bool.

    errors: the edit distance to the nearest of its references (the first of equals). symbols: the length of that one.
    wrong: whether it equals none of them.

    Raises:
      ValueError: the two lists differ in length.
    """
    if len(hypotheses) != len(references):
        raise ValueError(f'{len(hypotheses)} hypotheses against {len(references)} references; one each is needed')
    counts = np.zeros((len(hypotheses), 2), np.int64)
    for row, (hypothesis, candidates) in enumerate(zip(hypotheses, references, strict=True)):
        best, nearest = min((Levenshtein.distance(hypothesis, c), i) for i, c in enumerate(candidates))
        counts[row] = best, len(candidates[nearest])
    errors, symbols = counts.T
    return errors, symbols, errors > 0


def rates(
    errors: np.ndarray, symbols: np.ndarray, wrong: np.ndarray, names: tuple[str, str] = ('per', 'wer')
) -> dict[str, float]:
    """Symbol and sequence error rates, as fractions, of the counts of `count_errors`, under the two names.

    Raises:
      ValueError: there are none.
    """
    if not len(wrong):
        raise ValueError('no hypothesis: a rate over nothing')
    values = (int(errors.sum()) / max(int(symbols.sum()), 1), int(wrong.sum()) / len(wrong))
    return dict(zip(names, values, strict=True))


def error_rates(
    hypotheses: Sequence[Symbols],
    references: Sequence[Sequence[Symbols]],
    names: tuple[str, str] = ('per', 'wer'),
) -> dict[str, float]:
    """Symbol and sequence error rates, as fractions, under the two names.

    The first (phoneme error rate on CMUdict) is the summed edit distance over the summed reference length, each
    hypothesis measured against its nearest reference (the first of equals). The second (word error rate) is the share
    of hypotheses that equal none of their references.

    Raises:
      ValueError: the two lists differ in length, or are empty.
    """
    if not hypotheses:
        raise ValueError(f'0 hypotheses against {len(references)} references; one each is needed')
    return rates(*count_errors(hypotheses, references), names)
