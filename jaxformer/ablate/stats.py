"""Statistics over seeds. Pure: numbers in, numbers out."""

import dataclasses
import math
import statistics
from collections.abc import Sequence


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
    if n == 0:
        return Summary(0, None, None, None)
    mean = statistics.fmean(values)
    if n == 1:
        return Summary(1, mean, None, None)
    sd = statistics.stdev(values)
    return Summary(n, mean, sd, t_quantile(n - 1, level) * sd / math.sqrt(n))


def t_quantile(degrees: int, level: float) -> float:
    """The t with P(|t| ≤ t) = `level` at that many degrees of freedom: 4.303 for 2 and 0.95."""
    import scipy.stats  # half a second that the commands without statistics need not pay

    return float(scipy.stats.t.ppf((1 + level) / 2, degrees))
