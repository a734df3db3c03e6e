"""Intervals by resampling a test set: those of a formula, and of sacrebleu, which does the same."""

import numpy as np
import pytest
import scipy.stats

from jaxformer.decode.bootstrap import difference, interval, ratio

DRAW = np.random.default_rng(3)


def test_the_interval_of_a_mean_is_that_of_its_standard_error():
    values = DRAW.normal(5, 2, size=400)
    found = interval(ratio(values), resamples=4000)
    half = 1.96 * values.std() / 20
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert ratio(values).whole() == pytest.approx(values.mean())
    assert interval(ratio(values)) == interval(ratio(values)) != interval(ratio(values), seed=1)


def test_the_interval_of_a_ratio_is_that_of_scipy():
    above, below = DRAW.poisson(3, 300), DRAW.poisson(9, 300)
    statistic = lambda a, b, axis: a.sum(axis) / b.sum(axis)  # noqa: E731
    expected = scipy.stats.bootstrap(
        (above, below), statistic, paired=True, vectorized=True, method='percentile', n_resamples=4000, random_state=1
    ).confidence_interval
    assert interval(ratio(above, below), resamples=4000) == pytest.approx((expected.low, expected.high), abs=4e-3)


def test_a_difference_is_one_of_pairs():
    """Two that differ by a constant differ for certain, however wide each is; a shuffled one does not."""
    values = DRAW.normal(0, 5, size=200)
    paired = difference(ratio(values + 0.1), ratio(values))
    assert paired.value == pytest.approx(0.1) and paired.interval == pytest.approx((0.1, 0.1)) and paired.p < 0.002
    apart = difference(ratio(values + 0.1), ratio(values[::-1].copy()))
    assert apart.value == pytest.approx(0.1) and apart.interval.low < -0.5 and apart.p > 0.5
    assert difference(ratio(values), ratio(values)).p == 1


def test_p_is_that_of_a_paired_test():
    """Of one sample of differences whose p by the t-test is known, and is as likely for the other sign."""
    values = DRAW.normal(0, 1, size=300)
    shifted = values + DRAW.normal(0.1, 1, size=300)
    expected = scipy.stats.ttest_rel(shifted, values).pvalue
    found = difference(ratio(shifted), ratio(values), resamples=4000)
    assert 0.01 < expected < 0.9 and found.p == pytest.approx(expected, abs=0.03)
    assert difference(ratio(values), ratio(shifted), resamples=4000).p == pytest.approx(found.p, abs=1e-9)


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(ValueError, match='1 example'):
        interval(ratio(np.ones(1)))
    with pytest.raises(ValueError, match='3 examples against 2'):
        difference(ratio(np.ones(3)), ratio(np.ones(2)))
