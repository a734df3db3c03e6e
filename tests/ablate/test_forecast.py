import pytest

from jaxformer.ablate.forecast import forecast

FLOPS = {'a': 100, 'b': 300, 'c': 50}


def test_one_after_the_other():
    """Two runs of a took 10 and 14 s; a run of b is three times as much work, one of c half as much."""
    done = [('a', 10, [(0, 10)]), ('a', 14, [(10, 20), (100, 104)])]
    found = forecast(FLOPS, done, [('a', 1.0), ('b', 1.0), ('b', 0.25), ('c', 1.0)])
    assert found.seconds == pytest.approx({'a': 12, 'b': 36, 'c': 6})
    assert found.at_once == pytest.approx(1.0)
    assert found.left == pytest.approx(12 + 36 + 9 + 6)


def test_a_cell_with_a_finished_run_takes_what_that_one_took():
    found = forecast(FLOPS, [('a', 10, [(0, 10)]), ('b', 10, [(10, 20)])], [('b', 1.0), ('c', 1.0)])
    assert found.seconds == pytest.approx({'a': 10, 'b': 10, 'c': 50 * 20 / 400})
    assert found.left == pytest.approx(12.5)


def test_processes_at_the_same_time_share_the_time():
    """One trains a cohort of three in 12 s, and beside it another one run for 16 s, 8 of them alone."""
    done = [('a', 4, [(0, 12)])] * 3 + [('b', 16, [(4, 20)])]
    found = forecast(FLOPS, done, [('a', 1.0), ('b', 1.0)])
    assert found.at_once == pytest.approx(28 / 20)
    assert found.left == pytest.approx(20 / 1.4)


@pytest.mark.parametrize(
    ('flops', 'done', 'open_', 'left'),
    [
        (FLOPS, [], [('a', 1.0)], None),
        ({'a': None, 'b': None}, [('a', 10, [(0, 10)])], [('a', 0.5)], 5.0),
        ({'a': None, 'b': None}, [('a', 10, [(0, 10)])], [('b', 0.5)], None),
        ({'a': 1, 'b': None}, [('a', 10, [(0, 10)])], [('b', 0.5)], None),
        (FLOPS, [('a', 10, [(0, 10)])], [], 0.0),
        (FLOPS, [('a', 0, [(3, 3)])], [('a', 1.0)], None),
    ],
)
def test_what_is_not_known_is_not_guessed(flops, done, open_, left):
    assert forecast(flops, done, open_).left == left
