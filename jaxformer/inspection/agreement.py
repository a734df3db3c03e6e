"""Whether measures of what matters rank the symbols of a text alike: attention weights, gradients and deletion.

Source: Jain and Wallace 2019, "Attention is not Explanation", 4.1, who correlate them by rank, too.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

LEAST = 3
"""Inputs of an output, below which a rank correlation says nothing."""


@dataclasses.dataclass(frozen=True, eq=False)
class Agreement:
    """Spearman's ρ of the magnitudes of each pair of K measures over the inputs of an output; of it the mean over the
    outputs of a text, and over texts.

    mean_KK: nan for a pair that no text has. error_KK: standard error of the mean over texts, nan for fewer than two.
    texts: how many had an output to count.
    """

    names: tuple[str, ...]
    mean_KK: np.ndarray
    error_KK: np.ndarray
    texts: int


def of_text(by: Mapping[str, np.ndarray]) -> np.ndarray:
    """[K, K]: the mean over outputs of the correlations of the measures [R, C]; nan where no output has any.

    Of an output count the inputs that it can see (some measure is not 0) and that each measure knows (none is nan); a
    measure that is the same for all of them has no rank.
    """
    from scipy.stats import rankdata  # late: it takes a second

    stacked_KRC = np.abs(np.stack(list(by.values())))
    rows = []
    for measures_KC in stacked_KRC.swapaxes(0, 1):
        counted = np.all(np.isfinite(measures_KC), axis=0) & np.any(measures_KC != 0, axis=0)
        if counted.sum() >= LEAST:
            ranks_KC = rankdata(measures_KC[:, counted], axis=1)
            ranks_KC -= ranks_KC.mean(axis=1, keepdims=True)
            size_K = np.linalg.norm(ranks_KC, axis=1)
            with np.errstate(invalid='ignore'):
                rows.append(ranks_KC @ ranks_KC.T / np.outer(size_K, size_K))
    return _mean(rows, len(by))


def of_texts(texts: Sequence[Mapping[str, np.ndarray]]) -> Agreement:
    """Over a set of texts that have the same measures."""
    names = tuple(texts[0])
    each = [matrix for matrix in map(of_text, texts) if np.any(np.isfinite(matrix))]
    error_KK = np.full((len(names),) * 2, np.nan)
    if len(each) > 1:
        count_KK = np.isfinite(each).sum(axis=0)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', RuntimeWarning)  # of a pair that fewer than two texts have
            error_KK = np.nanstd(each, axis=0, ddof=1) / np.sqrt(count_KK)
    return Agreement(names, _mean(each, len(names)), error_KK, len(each))


def _mean(matrices: Sequence[np.ndarray], K: int) -> np.ndarray:
    """[K, K], over those that are known."""
    if not matrices:
        return np.full((K, K), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)  # a mean of nothing
        return np.nanmean(matrices, axis=0)
