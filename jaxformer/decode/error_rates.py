"""Error rates of decoded symbol sequences against one or more references each."""

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

Symbols = Sequence[str]


def error_rates(hypotheses: Sequence[Symbols], references: Sequence[Sequence[Symbols]]) -> dict[str, float]:
    """Symbol and sequence error rates, as fractions.

    per (phoneme error rate on CMUdict) is the summed edit distance over the summed reference length, each hypothesis
    measured against its nearest reference (the first of equals). wer (word error rate) is the share of hypotheses that
    equal none of their references.

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
    return {'per': distance / max(length, 1), 'wer': wrong / len(hypotheses)}
