import math

import pytest
import scipy.stats

from jaxformer.ablate.stats import difference, holm, summarise


def test_three_values_by_hand():
    found = summarise([1.0, 2.0, 3.0])
    assert (found.n, found.mean, found.sd) == (3, 2.0, 1.0)
    assert found.half_width == pytest.approx(2.484, abs=5e-4)


def test_agrees_with_scipy():
    values, level = [0.31, 0.27, 0.35, 0.30, 0.22], 0.9
    low, high = scipy.stats.t.interval(level, 4, loc=sum(values) / 5, scale=scipy.stats.sem(values))
    found = summarise(values, level)
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high))


def test_one_value_has_no_interval_and_none_has_nothing():
    one = summarise([0.7])
    assert (one.n, one.mean, one.sd, one.half_width) == (1, 0.7, None, None)
    none = summarise([])
    assert (none.n, none.mean, none.half_width) == (0, None, None)


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match='finite'):
        summarise([1.0, bad])


def test_paired_differences_by_hand():
    """Differences 1, 2, 3: t = 2√3 at 2 degrees of freedom, where P(|T| > t) = 1 − t / √(2 + t²)."""
    found = difference({5: 4.0, 6: 7.0, 7: 9.0, 8: 100.0}, {5: 3.0, 6: 5.0, 7: 6.0, 9: -1.0})
    assert (found.n, found.mean) == (3, 2.0)
    assert found.half_width == pytest.approx(2.484, abs=5e-4)
    assert found.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14))


def test_pairing_takes_out_what_the_seeds_share():
    """The seeds differ by far more than the cells do; only pairs show the difference."""
    base = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}
    cell = {0: 11.0, 1: 21.1, 2: 30.9, 3: 41.0}
    assert difference(cell, base).p < 0.001
    assert scipy.stats.ttest_ind(list(cell.values()), list(base.values())).pvalue > 0.9
    expected = scipy.stats.ttest_rel(list(cell.values()), list(base.values()))
    assert difference(cell, base).p == pytest.approx(expected.pvalue)


def test_paired_differences_agree_with_scipy():
    cell = {0: 0.31, 3: 0.27, 4: 0.35, 7: 0.30, 9: 0.22}
    base = {9: 0.25, 0: 0.30, 3: 0.24, 4: 0.36, 7: 0.26}
    expected = scipy.stats.ttest_rel(list(cell.values()), [base[seed] for seed in cell])
    found = difference(cell, base, 0.9)
    low, high = expected.confidence_interval(0.9)
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high))
    assert found.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize('seeds', [(), (0,)])
def test_one_pair_or_none_says_nothing(seeds):
    found = difference(dict.fromkeys(seeds, 2.0), {0: 1.0, 1: 3.0})
    assert (found.n, found.half_width, found.p) == (len(seeds), None, None)


def test_the_same_difference_in_every_seed_has_no_spread_to_judge_by():
    assert difference({0: 1.3, 1: 2.3}, {0: 1.0, 1: 2.0}).p is None  # 0.30000000000000004 and 0.2999999999999998


def test_holm_by_hand():
    """Ascending 0.01, 0.03, 0.04 times 3, 2, 1 and never falling: 0.03, 0.06, 0.06."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
