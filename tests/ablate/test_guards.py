import dataclasses

import pytest

from jaxformer.ablate import guards
from jaxformer.ablate.count import Cost

BASE = Cost(parameters=1000, flops=10**12, tokens=5000, batch=16)


@pytest.mark.parametrize(
    ('changes', 'axis', 'expected'),
    [
        ({}, (), {}),
        ({'parameters': 1010, 'flops': 99 * 10**10}, (), {}),
        ({'parameters': 1011}, ('model.d_k',), {'parameters': 0.011}),
        ({'parameters': 1500}, ('model.d_k', 'parameters'), {}),
        ({'flops': 98 * 10**10}, (), {'flops': -0.02}),
        ({'tokens': 5001}, ('model.d_k',), {'tokens': 0.0002}),
        ({'tokens': 10_000, 'flops': 2 * 10**12}, ('train.num_steps',), {}),
        ({'tokens': 10_000, 'flops': 2 * 10**12, 'batch': 32}, ('train.batch_size',), {'flops': 1.0, 'tokens': 1.0}),
        ({'batch': 17}, ('train.num_steps',), {'batch': 0.0625}),
        ({'parameters': None, 'flops': None, 'tokens': None}, (), {}),
    ],
)
def test_what_differs_though_it_is_not_the_axis(changes, axis, expected):
    assert guards.unlike(BASE, dataclasses.replace(BASE, **changes), axis, axis) == pytest.approx(expected)


def test_an_axis_declares_nothing_for_cells_that_are_not_on_it():
    longer = dataclasses.replace(BASE, flops=2 * 10**12)
    assert guards.unlike(BASE, longer, ('train.num_steps', 'model.d_k'), ('model.d_k',)) == {'flops': 1.0}


def test_nothing_is_compared_with_what_was_not_counted():
    assert guards.unlike(Cost(None, None, None, 16), BASE, (), ()) == {}


def test_the_words():
    assert guards.described({'parameters': -0.0421, 'batch': 1.0}) == 'parameters -4.2%, effective batch +100.0%'
