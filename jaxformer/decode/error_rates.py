"""Error rates of decoded symbol sequences against one or more references each."""

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

Symbols = Sequence[str]


def rate_names(data_name: str) -> tuple[str, str]:
    """What the two rates are called: per and wer where a symbol is a phoneme and a sequence a word, as in CMUdict.

    Of lines of text a symbol is a word, a character or a piece, and a sequence a line: symbol_errors and line_errors.
    """
    lines = data_name == 'parallel' or '/' in data_name
    return ('symbol_errors', 'line_errors') if lines else ('per', 'wer')


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
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(f'{len(hypotheses)} hypotheses against {len(references)} references; one each is needed')
    distance = length = wrong = 0
    for hypothesis, candidates in zip(hypotheses, references, strict=True):
        best, nearest = min((Levenshtein.distance(hypothesis, c), i) for i, c in enumerate(candidates))
        distance += best
        length += len(candidates[nearest])
        wrong += best > 0
    return dict(zip(names, (distance / max(length, 1), wrong / len(hypotheses)), strict=True))
