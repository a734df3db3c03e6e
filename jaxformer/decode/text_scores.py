"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) of detokenised texts, by sacrebleu with its own tokenisation.

The library is imported where something is scored.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from jaxformer.data.text import read_lines
from jaxformer.decode.bootstrap import Measure, difference, interval
from jaxformer.errors import UserError

_APART = re.compile(r'\S [.,](?= |$)|@@ |\u2581')
"""What tokenised text has and text has not: punctuation apart, and the marks of pieces of words."""

_TOKENISED = 0.1  # share of lines with such, from which on it is said


def corpus_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """bleu, chrf (both 0 … 100) and the signatures that say how they were measured.

    Args:
      references: those of each hypothesis, one or more.
    """
    metrics = _metrics()
    streams = _streams(references)
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        found[name] = metric.corpus_score(list(hypotheses), streams).score
        found[f'{name}_signature'] = str(metric.get_signature())
    return found


def bleu_measure(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Measure:
    """BLEU as a function of sums over lines: right and all n-grams for n = 1 … 4, lengths of output and reference."""
    from sacrebleu.metrics import BLEU

    one = BLEU(effective_order=True)  # says nothing about counts
    scores = [one.sentence_score(line, list(given)) for line, given in zip(hypotheses, references, strict=True)]
    added = np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], np.float64)
    return Measure(added.reshape(len(scores), 10), _bleu)


def warn_of_tokenised(name: str, lines: Sequence[str]) -> None:
    """Warns where `lines`, called `name`, look as if a tokeniser had been at work: BLEU is then of something else."""
    found = sum(bool(_APART.search(line)) for line in lines)
    if found > _TOKENISED * sum(map(bool, lines)):
        logging.warning(
            '%s: %d of %d lines look tokenised (" ." or " ," apart, "@@ ", "\u2581"); BLEU is of detokenised text',
            name, found, len(lines),
        )  # fmt: skip


def of_files(hypotheses: str, references: Sequence[str], against: str = '') -> dict[str, Any]:
    """BLEU with its interval, chrF, and signatures of a file of outputs, line by line against files of references.

    Args:
      against: another file of outputs, with which the first is compared: BLEU of both, the difference (the first less
        the other), its interval and p, which pairs the lines.

    Raises:
      UserError: a file cannot be read, files have not the same number of lines, or have none, or no reference a text.
    """
    lines = _aligned([hypotheses, *references, *([against] if against else [])], references)
    for name, texts in lines.items():
        warn_of_tokenised(name, texts)
    given = [list(row) for row in zip(*(lines[name] for name in references), strict=True)]
    measures = [bleu_measure(lines[name], given) for name in (hypotheses, against) if name]
    found: dict[str, Any] = {'lines': len(given), 'empty': sum(not line.strip() for line in lines[hypotheses])}
    found |= corpus_scores(lines[hypotheses], given)
    if len(given) > 1:
        found['bleu_low'], found['bleu_high'] = interval(measures[0])
        if against:
            apart = difference(measures[0], measures[1])
            found |= {'against_bleu': measures[1].whole(), 'bleu_difference': apart.value}
            found |= {'bleu_difference_low': apart.interval.low, 'bleu_difference_high': apart.interval.high}
            found['bleu_difference_p'] = apart.p
    return found


def _aligned(paths: Sequence[str], references: Sequence[str]) -> dict[str, list[str]]:
    """The lines of each file, each read once, as a pipe cannot be read again."""
    lines = {path: read_lines(path) for path in dict.fromkeys(paths)}
    for path, texts in lines.items():
        if len(texts) != len(lines[paths[0]]):
            first = len(lines[paths[0]])
            raise UserError(
                f'{paths[0]} has {first} line{"s" * (first != 1)} and {path} has {len(texts)}; '
                'line i of one has to belong to line i of the other'
            )
    if not lines[paths[0]]:
        raise UserError(f'{paths[0]}: no line; give one output a line')
    for path in references:
        if not any(map(str.strip, lines[path])):
            raise UserError(f'--references={path}: every line is blank; give what each output should be')
    return lines


@functools.cache
def _metrics() -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF

    return {'bleu': BLEU(force=True), 'chrf': CHRF()}  # force: without a warning of its own


def _streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """One list for each reference that a line may have, as sacrebleu takes them; None where a line has fewer."""
    most = max(map(len, references))
    return [[given[i] if i < len(given) else None for given in references] for i in range(most)]


def _bleu(sums: np.ndarray) -> float:
    from sacrebleu.metrics import BLEU

    counts = [int(count) for count in sums]
    return BLEU.compute_bleu(counts[:4], counts[4:8], counts[8], counts[9], smooth_method='exp').score
