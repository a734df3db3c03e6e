"""Intervals of numbers over a test set, and of differences of two, by resampling its examples (Efron 1979; Koehn 2004).

Pure: arrays in, numbers out. Uncertainty of training is another one, which only more seeds show.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray

RESAMPLES = 1000
LEVEL = 0.95
_AT_ONCE = 1 << 22  # drawn examples held in memory


class Measure(NamedTuple):
    """A number over a test set of n examples: a function of the sum of what each of them adds.

    added: [n, Q] float64. value: sums [Q] → number.
    """

    added: Array
    value: Callable[[Array], float]

    def whole(self) -> float:
        """The number over the examples as they are."""
        return self.value(self.added.sum(axis=0))


class Interval(NamedTuple):
    """The ends of the percentile interval of LEVEL."""

    low: float
    high: float


class Difference(NamedTuple):
    """One measure less the other, the interval of that, and how often chance alone makes it as large (two-sided)."""

    value: float
    interval: Interval
    p: float


def ratio(above: Array, below: Array | float = 1.0) -> Measure:
    """Σ above / Σ below, of [n] each; a mean without the second."""
    return Measure(np.stack([above, np.broadcast_to(below, np.shape(above))], axis=1).astype(np.float64), _divided)


def _divided(sums: Array) -> float:
    return float(sums[0] / max(sums[1], np.finfo(np.float64).tiny))


def interval(measure: Measure, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The interval of a measure. Raises ValueError for fewer than two examples."""
    return _ends(np.array([measure.value(sums) for sums in _resampled(measure.added, resamples, seed)]))


def difference(a: Measure, b: Measure, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """`a` less `b`, whose examples are pairs: both are resampled alike.

    p is the share of resamples whose difference is as far from their mean as the observed one is from 0, with the
    observed one counted as one of them (Riezler and Maxwell 2005, as in sacrebleu).

    Raises:
      ValueError: they have not the same number of examples, or fewer than two.
    """
    if len(a.added) != len(b.added):
        raise ValueError(f'{len(a.added)} examples against {len(b.added)}; pairs are needed')
    observed, Q = a.whole() - b.whole(), a.added.shape[1]
    sums_RQ = _resampled(np.concatenate([a.added, b.added], axis=1), resamples, seed)
    drawn = np.array([a.value(sums[:Q]) - b.value(sums[Q:]) for sums in sums_RQ])
    far = np.count_nonzero(np.abs(drawn - drawn.mean()) >= abs(observed))
    return Difference(observed, _ends(drawn), (far + 1) / (resamples + 1))


def _resampled(added: Array, resamples: int, seed: int) -> Array:
    """[R, Q]: sums over n examples drawn with replacement; the same seed draws the same ones."""
    n = len(added)
    if n < 2:
        raise ValueError(f'{n} example; nothing can be resampled')
    draws, found = np.random.default_rng(seed), []
    for first in range(0, resamples, rows := max(1, _AT_ONCE // n)):
        drawn_RN = draws.integers(n, size=(min(rows, resamples - first), n))
        places = drawn_RN + n * np.arange(len(drawn_RN))[:, None]
        found.append(np.bincount(places.ravel(), minlength=places.size).reshape(places.shape) @ added)
    return np.concatenate(found)


def _ends(drawn: Array) -> Interval:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
