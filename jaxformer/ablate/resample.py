"""Intervals by resampling the examples of a test set (Efron 1979), for ratios of sums. Pure: arrays in, arrays out."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray

RESAMPLES = 2000
_AT_ONCE = 1 << 22  # drawn examples held in memory


class Intervals(NamedTuple):
    """[Q] each: the quantities on the examples as they are, and the two ends of their intervals."""

    value: Array
    low: Array
    high: Array


def intervals(
    above_RN: Array,
    below_RN: Array,
    combine_QR: Array,
    curve: Callable[[Array], Array] = lambda ratio: ratio,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Intervals:
    """Percentile intervals of sums over runs of curve(Σ above / Σ below), by `scipy.stats.bootstrap`.

    Each resample draws N of the N examples with replacement, the same ones for all runs and for both sums, so that a
    difference of runs is one of pairs. The runs themselves stay as they are.

    Args:
      above_RN, below_RN: what each example adds to the numerator and the denominator of each run, below ≥ 0.
      combine_QR: row q has the weights of the runs in quantity q: 1/n for a mean, 1/n and −1/n for a difference.
      seed: of the draws; the same seed gives the same numbers.

    Raises:
      ValueError: fewer than two examples.
    """
    import scipy.stats

    N = above_RN.shape[1]
    if N < 2:
        raise ValueError(f'{N} example; nothing can be resampled')

    def quantities(weights_BN: Array) -> Array:
        ratio_BR = (weights_BN @ above_RN.T) / np.maximum(weights_BN @ below_RN.T, np.finfo(np.float64).tiny)
        return combine_QR @ curve(ratio_BR).T

    def statistic(drawn_BN: Array, axis: int) -> Array:
        assert drawn_BN.ndim == 2 and axis in (-1, 1)
        places = drawn_BN + N * np.arange(len(drawn_BN))[:, None]
        return quantities(np.bincount(places.ravel(), minlength=places.size).reshape(places.shape).astype(np.float64))

    found = scipy.stats.bootstrap(
        (np.arange(N),),
        statistic,
        n_resamples=resamples,
        batch=max(1, _AT_ONCE // N),
        vectorized=True,
        confidence_level=level,
        method='percentile',
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return Intervals(quantities(np.ones((1, N)))[:, 0], found.low, found.high)
