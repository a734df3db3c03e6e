"""Two runs on one test set: each measure of both, and the difference with its interval."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxformer.data.corpus import Split
from jaxformer.data.ragged import Ragged
from jaxformer.data.splits import LabelledSplit, PairSplit, TextSplit
from jaxformer.decode.bootstrap import Difference, difference
from jaxformer.errors import UserError
from jaxformer.train.score import Subject, subject

BY_SYMBOL = ('loss', 'accuracy')
"""Measures that two runs have in common only where their symbols are the same."""


class Row(NamedTuple):
    """A measure of run A and of run B, and A less B."""

    name: str
    a: float
    b: float
    difference: Difference


def compare(
    workdir: str | os.PathLike,
    against: str | os.PathLike,
    step: int | None = None,
    split: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[Row]:
    """The measures that both runs have, paired by example.

    Args:
      workdir, step: run A and its checkpoint. against: run B, of which the newest whole one is taken.
      split, changes: as of `score.subject`, for both.

    Raises:
      UserError: as `score.subject`, or the two have not the same examples; before either is judged.
    """
    a = subject(workdir, step, split, changes)
    b = subject(against, None, a.split.name, changes)
    fit = _fitting(a)
    if not _same(a.split, b.split) or not np.array_equal(fit, _fitting(b)):
        raise UserError(
            f'{workdir} and {against}: not the same examples of {a.split.name}; '
            'give both the same data and data.buckets by --config.data.…'
        )
    if fit.sum() == 1:
        raise UserError(f'{workdir}: one example of {a.split.name}; two are needed to compare')
    ours, theirs, alike = a.measured().measures, b.measured().measures, a.vocab.to_json() == b.vocab.to_json()
    return [
        Row(name, one.whole(), (other := theirs[name]).whole(), difference(one, other))
        for name, one in ours.items()
        if name in theirs and (name not in BY_SYMBOL or alike)
    ]


def as_json(rows: list[Row]) -> dict[str, dict[str, float]]:
    """{measure: {a, b, difference, low, high, p}}."""
    return {
        name: {'a': a, 'b': b, 'difference': apart.value, **apart.interval._asdict(), 'p': apart.p}
        for name, a, b, apart in rows
    }


def as_text(rows: list[Row], a: str, b: str) -> str:
    """A table, with a line that says what A and B are."""
    lines = [f'A: {a}\nB: {b}', f'{"":<20} {"A":>9} {"B":>9} {"A - B":>9}   95 % interval         p']
    for name, one, other, apart in rows:
        ends = f'{apart.interval.low:+.4g} to {apart.interval.high:+.4g}'
        lines.append(f'{name:<20} {one:9.4g} {other:9.4g} {apart.value:+9.4g}   {ends:<19} {apart.p:.3f}')
    return '\n'.join(lines)


def _fitting(of: Subject) -> np.ndarray:
    """Boolean [examples]: which of them fit a bucket, and so are judged."""
    return np.any([of.split.fits(bucket) for bucket in of.run.cfg.data.buckets], axis=0)


def _same(a: Split, b: Split) -> bool:
    """Whether two splits hold the same examples, whatever symbols they are written in where it is pairs of texts."""
    pairs = list(zip(_content(a), _content(b), strict=False))
    return type(a) is type(b) and all(
        np.array_equal(x.values, y.values) and np.array_equal(x.offsets, y.offsets) for x, y in pairs
    )


def _content(split: Split) -> tuple[Ragged, ...]:
    if isinstance(split, PairSplit):
        return split.text, split.reference_text
    if isinstance(split, LabelledSplit):
        return split.tokens, split.labels
    assert isinstance(split, TextSplit)
    return (split.documents,)
