import pytest

from jaxformer.ablate.grid import chain, product, zipped
from jaxformer.errors import UserError


def test_product_starts_with_the_baseline_and_the_last_axis_is_fastest():
    cells = list(product({'a.x': (3, 1), 'b': ('p', 'q', 'r')}))
    assert cells[0] == {'a.x': 3, 'b': 'p'}
    assert [cell['b'] for cell in cells] == ['p', 'q', 'r'] * 2
    assert [cell['a.x'] for cell in cells] == [3] * 3 + [1] * 3


def test_grids_compose():
    both = product(zipped({'w': (1, 2), 'f': (4, 8)}), {'lr': (0.1, 0.2)})
    assert list(both) == [
        {'w': 1, 'f': 4, 'lr': 0.1},
        {'w': 1, 'f': 4, 'lr': 0.2},
        {'w': 2, 'f': 8, 'lr': 0.1},
        {'w': 2, 'f': 8, 'lr': 0.2},
    ]
    assert list(chain([{}], product({'w': (5,)}), zipped({'f': (6, 7)}))) == [{}, {'w': 5}, {'f': 6}, {'f': 7}]


def test_cells_are_copies():
    cell = {'w': 1}
    next(chain([cell]))['w'] = 2
    assert cell == {'w': 1}


def test_product_of_nothing_is_the_base_and_of_an_empty_axis_is_empty():
    assert list(product()) == [{}]
    assert list(product({'w': ()})) == []


@pytest.mark.parametrize(
    ('broken', 'named'),
    [
        (lambda: zipped({'w': (1, 2), 'f': (3,)}), 'w has 2, f has 1'),
        (lambda: product({'w': (1,)}, [{'w': 2}]), 'w is set by two parts'),
        (lambda: product({'name': 'adam'}), "name='adam'"),
        (lambda: product({'w': 3}), 'w=3'),
    ],
)
def test_mistakes_are_named(broken, named):
    with pytest.raises(UserError, match=named):
        list(broken())
