"""Grids as generators of overrides: flat dicts of dotted fields. Pure; the first cell is the baseline. They compose:

product({'model.num_heads': (4, 1, 8), 'model.residual': ('post', 'pre')})    # 6 cells, the last axis fastest
zipped({'model.d_model': (128, 256), 'model.d_ff': (512, 1024)})              # 2 cells, in step
chain(product({'model.d_k': (64, 16)}), product({'model.num_layers': (2,)}))  # one after the other
product(zipped({...}), {'optim.learning_rate': (1.0, 0.5)})                   # a grid is a part like any other
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxformer.errors import UserError

Overrides = dict[str, Any]
"""One cell: `{'model.num_heads': 4}`. Empty: the base as it stands."""

Axes = Mapping[str, Iterable[Any]]
"""Fields and the values that each takes: `{'model.num_heads': (4, 1, 8)}`."""


def product(*parts: Axes | Iterable[Overrides]) -> Iterator[Overrides]:
    """Yields every combination of the parts' cells; the last axis of the last part changes fastest.

    A part is a mapping of axes or another grid.

    Raises:
      UserError: two parts set the same field, or an axis is a string or a number instead of several values.
    """
    factors = [cells for part in parts for cells in _factors(part)]
    for combination in itertools.product(*factors):
        yield _merged(combination)


def zipped(axes: Axes) -> Iterator[Overrides]:
    """Yields the axes in step: cell i takes the i-th value of each.

    Raises:
      UserError: the axes have different lengths (all are named).
    """
    columns = {field: _values(field, values) for field, values in axes.items()}
    lengths = {field: len(values) for field, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ', '.join(f'{field} has {length}' for field, length in lengths.items())
        raise UserError(f'zipped: axes of different lengths ({listed}); give each the same number of values')
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def chain(*grids: Iterable[Overrides]) -> Iterator[Overrides]:
    """Yields the cells of one grid after those of another: one-at-a-time ablations around a common baseline."""
    for cells in grids:
        yield from (dict(cell) for cell in cells)


def _factors(part: Axes | Iterable[Overrides]) -> list[list[Overrides]]:
    if isinstance(part, Mapping):
        return [[{field: value} for value in _values(field, values)] for field, values in part.items()]
    return [[dict(cell) for cell in part]]


def _values(field: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f'{field}={values!r}: an axis is a tuple of values; write ({values!r},)')
    return tuple(values)


def _merged(cells: Iterable[Overrides]) -> Overrides:
    merged: Overrides = {}
    for cell in cells:
        if twice := merged.keys() & cell.keys():
            raise UserError(f'product: {min(twice)} is set by two parts; leave it in one, or use chain')
        merged |= cell
    return merged
