import math

import pytest
import scipy.stats

from jaxformer.ablate.stats import summarise


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
