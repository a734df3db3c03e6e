import numpy as np
import pytest
import scipy.stats

from jaxformer.ablate import resample

RNG = np.random.default_rng(0)
ABOVE = RNG.poisson(1.5, (3, 40)).astype(float)
BELOW = RNG.integers(2, 9, (3, 40)).astype(float)


def by_hand(statistic, *arrays, resamples=500, level=0.95):
    """scipy's own intervals of pairs, with the same draws."""
    return scipy.stats.bootstrap(
        arrays,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        confidence_level=level,
        method='percentile',
        random_state=np.random.default_rng(0),
    ).confidence_interval


def rate(above, below, axis):
    return above.sum(axis) / below.sum(axis)


def test_a_mean_of_rates_and_a_difference_agree_with_scipy():
    found = resample.intervals(ABOVE, BELOW, np.array([[0.5, 0.5, 0.0], [-0.5, -0.5, 1.0]]), resamples=500)

    def mean(a, b, c, d, axis):
        return (rate(a, b, axis) + rate(c, d, axis)) / 2

    def difference(a, b, c, d, e, f, axis):
        return rate(e, f, axis) - mean(a, b, c, d, axis)

    pairs = [array for row in range(3) for array in (ABOVE[row], BELOW[row])]
    expected = by_hand(mean, *pairs[:4]), by_hand(difference, *pairs)
    assert found.low == pytest.approx([one.low for one in expected], rel=1e-12)
    assert found.high == pytest.approx([one.high for one in expected], rel=1e-12)
    rates = ABOVE.sum(1) / BELOW.sum(1)
    assert found.value == pytest.approx([rates[:2].mean(), rates[2] - rates[:2].mean()])


def test_a_curve_is_applied_to_each_run_before_the_mean():
    found = resample.intervals(ABOVE, BELOW, np.array([[0.5, 0.5, 0.0]]), np.exp, level=0.8, resamples=300)

    def perplexity(a, b, c, d, axis):
        return (np.exp(rate(a, b, axis)) + np.exp(rate(c, d, axis))) / 2

    expected = by_hand(perplexity, ABOVE[0], BELOW[0], ABOVE[1], BELOW[1], resamples=300, level=0.8)
    assert (found.low[0], found.high[0]) == pytest.approx((expected.low, expected.high))


def test_in_one_go_or_in_many_and_the_same_again(monkeypatch):
    first = resample.intervals(ABOVE, BELOW, np.eye(3), resamples=100)
    monkeypatch.setattr(resample, '_AT_ONCE', 90)  # two resamples of forty examples
    again = resample.intervals(ABOVE, BELOW, np.eye(3), resamples=100)
    other = resample.intervals(ABOVE, BELOW, np.eye(3), resamples=100, seed=1)
    assert np.array_equal(first.low, again.low) and not np.array_equal(first.low, other.low)


def test_one_example_cannot_be_resampled():
    with pytest.raises(ValueError, match='1 example'):
        resample.intervals(ABOVE[:, :1], BELOW[:, :1], np.eye(3))
