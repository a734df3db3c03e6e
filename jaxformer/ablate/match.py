"""Cells that cost what the baseline costs: an integer field is worked out instead of set.

{'model.feed_forward': 'swiglu', 'model.d_ff': EQUAL_PARAMETERS}     # one field of a cell; the baseline has none
{'model.mixer': 'conv', 'model.d_ff': EQUAL_FLOPS}                   # as many operations in a run's training

The number stands in the plan, the cell's label and the report like any other, and the plan says how near it comes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

TOLERANCE = 0.01
"""Share of the baseline's count beyond which a cell no longer counts as equal."""


@dataclasses.dataclass(frozen=True)
class Match:
    """Stands in a cell where a number is to be worked out; `quantity` is what is to be equal."""

    quantity: str

    def __repr__(self) -> str:
        return f'EQUAL_{self.quantity.upper()}'


EQUAL_PARAMETERS = Match('parameters')
EQUAL_FLOPS = Match('flops')

_NOT_EQUAL = {'parameters': 'has not as many parameters as', 'flops': 'does not take as many FLOPs as'}


class UnsolvableError(ValueError):
    """A `Match` that no number can stand for; the message says why."""


def set_by_hand(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a cell that hold a value."""
    return {field: value for field, value in cell.items() if not isinstance(value, Match)}


def quantity(cell: Mapping[str, Any]) -> str:
    """What a cell is to be equal in: 'parameters' (so, too, where nothing is worked out) or 'flops'."""
    return next((value.quantity for value in cell.values() if isinstance(value, Match)), EQUAL_PARAMETERS.quantity)


def solve(
    cell: Mapping[str, Any],
    count: Callable[[dict[str, Any]], int | None],
    target: Callable[[], int | None],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """`cell` with a number in the place of its `Match`, so that its count is as near to the target as it gets.

    Args:
      count: the count of a cell without a `Match`; it grows with the field. None where nothing is counted.
      target: the count of the baseline.
      known: the baseline's fields; the search starts from what stands there.

    Raises:
      UnsolvableError: two fields are to be worked out, the field is no integer, or the count does not depend on it.
    """
    fields = [field for field in cell if field not in set_by_hand(cell)]
    if not fields:
        return dict(cell)
    field, start = fields[0], known.get(fields[0], 1)  # of a field that does not exist, `count` says so
    if len(fields) > 1:
        raise UnsolvableError(f'{", ".join(fields)} are both to be worked out; set all but one')
    if not isinstance(start, int) or isinstance(start, bool):
        raise UnsolvableError(f'{field} is no integer; only a width can be worked out')
    total = target()

    def count_at(width: int) -> int:
        found = count({**cell, field: width})
        if found is None or total is None:
            raise UnsolvableError(f'{field} cannot be worked out where no {quantity(cell)} are counted')
        return found

    try:
        return {**cell, field: nearest(count_at, -1 if total is None else total, start)}
    except FlatError as error:
        raise UnsolvableError(f'{field}: {error}; take a field that this cell uses') from None


def too_far(label: str, cell: Mapping[str, Any], solved: Mapping[str, Any], deviation: float) -> str:
    """What is said of a cell that is to cost what the baseline costs, and at its best is off by such a share."""
    (field,) = cell.keys() - set_by_hand(cell).keys()
    return (
        f'cell {label!r} {_NOT_EQUAL[quantity(cell)]} the base: {field}={solved[field]} comes nearest and is '
        f'{deviation:.1%} off; work out another field, or set {field} to a number'
    )


class FlatError(ValueError):
    """A count that does not depend on its argument."""


def nearest(count: Callable[[int], int], target: int, start: int) -> int:
    """The integer ≥ 1 whose count is nearest to `target` (the smaller of two); `count` must not fall.

    By interpolation and some bisection, from a bracket around `start`: a few counts for a linear one.

    Raises:
      FlatError: the count does not grow with its argument.
    """
    known: dict[int, int] = {}

    def at(width: int) -> int:
        if width not in known:
            known[width] = count(width)
        return known[width]

    low = high = max(start, 1)
    while at(low) > target and low > 1:
        high, low = low, max(1, low // 2)
        if at(high) == at(low):
            raise FlatError(f'the count does not grow from {low} to {high}')
    while at(high) <= target:
        low, high = high, 2 * high
        if at(high) == at(low):
            raise FlatError(f'the count does not grow from {low} to {high}')
    turns = 0
    while high - low > 1 and at(low) <= target:
        turns += 1
        guess = low + (target - at(low)) * (high - low) // (at(high) - at(low))
        if turns % 3 == 0:  # where the count is far from linear, interpolation alone creeps
            guess = (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        low, high = (guess, high) if at(guess) <= target else (low, guess)
    return low if abs(at(low) - target) <= abs(at(high) - target) else high
