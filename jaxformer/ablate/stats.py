"""Statistics over seeds by scipy. Pure: numbers in, numbers out.

scipy.stats takes half a second to import, which the commands without statistics need not pay.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean over n seeds; `sd` and `half_width` are None where one value (or none) says nothing about the spread."""

    n: int
    mean: float | None
    sd: float | None
    half_width: float | None


def summarise(values: Sequence[float], level: float = 0.95) -> Summary:
    """Mean, standard deviation (n − 1) and half width of the two-sided t interval of the mean.

    Args:
      values: one finite number per seed.
      level: coverage of the interval, between 0 and 1.

    Raises:
      ValueError: a value is NaN or infinite (a mean over it would say nothing; leave it out and say so).
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f'values={list(values)}: must be finite')
    n = len(values)
    if n < 2:
        return Summary(n, float(values[0]) if n else None, None, None)
    import scipy.stats

    standard_error = float(scipy.stats.sem(values))
    quantile = float(scipy.stats.t.ppf((1 + level) / 2, n - 1))  # t.interval has none for values without spread
    return Summary(n, float(np.mean(values)), float(np.std(values, ddof=1)), quantile * standard_error)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Mean of n paired differences, its half width as in `Summary`, and the two-sided p of the paired t test.

    `p` is None with one pair or none, and where the difference is the same in every pair: there is no spread then to
    judge it by.
    """

    n: int
    mean: float | None
    half_width: float | None
    p: float | None


def difference(values: Mapping[int, float], baseline: Mapping[int, float], level: float = 0.95) -> Difference:
    """`values` minus `baseline`, both by seed, over the seeds that both have.

    What a seed does to both of them alike (initial weights, order of the data) is in no difference.
    """
    pairs = [(values[seed], baseline[seed]) for seed in values if seed in baseline]
    found = summarise([value - other for value, other in pairs], level)
    p = None
    if found.sd is not None and found.sd > 1e-12 * max(abs(value) for pair in pairs for value in pair):
        import scipy.stats

        with warnings.catch_warnings():  # differences that are nearly alike: their p is small, and right all the same
            warnings.filterwarnings('ignore', 'Precision loss occurred', RuntimeWarning)
            p = float(scipy.stats.ttest_rel(*zip(*pairs, strict=True)).pvalue)
    return Difference(found.n, found.mean, found.half_width, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number (Holm 1979), so that they may be held against α one by one.

    The i-th smallest of m is multiplied by m − i + 1, made no smaller than the one before it, and cut at 1.
    """
    m = len(p_values)
    adjusted = [0.0] * m
    least = 0.0
    for rank, index in enumerate(sorted(range(m), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (m - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted
