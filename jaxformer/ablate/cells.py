"""From a grid file to resolved cells, and what sets each apart from the baseline.

Cells that come to the same configuration are one cell: chained one-at-a-time grids each bring the baseline along. The
merging is reported as a warning, because it can also mean a field that has no effect.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from jaxformer import config as config_lib
from jaxformer.ablate import count as counting
from jaxformer.ablate import guards, match, metrics
from jaxformer.ablate.count import Cost
from jaxformer.ablate.grid import Overrides
from jaxformer.ablate.gridfile import Figures, Grid
from jaxformer.ablate.shown import short_names, show
from jaxformer.errors import UserError
from jaxformer.schema import Config

NOT_IN_ID = ('seed', 'cohort')
"""Groups of fields in no cell's id: the seed has a directory of its own, and how runs go together changes none."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A resolved cell; `overrides` are the fields that it sets itself.

    `derived`: fields that differ from the baseline although the cell does not set them: the config derives them from
    one that was set (d_k from num_heads), or they were worked out (see `jaxformer.ablate.match`). `further`: fields set
    by the cell or the baseline that differ although they are not on the axis. Both map the field to `(baseline's value,
    this cell's value)`. `unlike`: what a run of it takes more or less of (see `guards.unlike`). `reference`: figures of
    others about the same cell.
    """

    id: str
    label: str
    overrides: Overrides
    config: Config
    derived: Mapping[str, tuple[Any, Any]]
    further: Mapping[str, tuple[Any, Any]]
    cost: Cost
    unlike: Mapping[str, float]
    reference: Figures

    @property
    def parameters(self) -> int | None:
        """Their number, None where nobody counted."""
        return self.cost.parameters


@dataclasses.dataclass(frozen=True)
class Plan:
    """A grid with its cells resolved; `cells[0]` is the baseline. `unequal`: the warnings with which no grid is run."""

    grid: Grid
    axis: tuple[str, ...]
    metric: str
    cells: tuple[Cell, ...]
    warnings: tuple[str, ...]
    unequal: tuple[str, ...]


def resolve(
    grid: Grid,
    count: Callable[[Config], int | None] | None = None,
    flops: Callable[[Config], int | None] | None = None,
    tokens: Callable[[Config], int | None] | None = None,
) -> Plan:
    """Resolves every cell.

    Args:
      count, flops, tokens: give the number of parameters of a configuration, and the operations and the labels of a
        run's training; all by default as `count.cost`. With a `count` of one's own the others count nothing by default.

    Raises:
      UserError: a cell that no configuration allows (names the cell, the field and the remedy), or an unknown AXIS.
    """
    counters = _counters(count, flops, tokens)
    set_by_hand = [match.set_by_hand(cell) for cell in grid.cells]
    configs = _configs(grid, counters)
    known = config_lib.flatten(configs[0])
    for field in grid.axis:
        if field not in known and field not in guards.QUANTITIES:
            raise UserError(
                f'{grid.path}: AXIS names {field!r}, which is no field of the configuration (nor one of '
                f'{", ".join(guards.QUANTITIES)})'
            )
    axis = grid.axis
    if not guards.fields(axis):
        axis = (*dict.fromkeys(field for fields in set_by_hand for field in fields), *axis)
    names = short_names(field for fields in set_by_hand for field in fields)
    cells: dict[str, Cell] = {}
    warnings, unequal = [], []
    for given, overrides, config, figures in zip(grid.cells, set_by_hand, configs, grid.reference, strict=True):
        cell_id = config_lib.config_hash(config, without=NOT_IN_ID)
        label = ' '.join(f'{names[field]}={show(value)}' for field, value in overrides.items()) or 'base'
        if cell_id in cells:
            first = cells[cell_id]
            warnings.append(f'{label!r} is the same configuration as {first.label!r}: run once')
            cells[cell_id] = dataclasses.replace(first, reference={**figures, **first.reference})
            continue
        differing = config_lib.diff(configs[0], config)
        cost = _cost(config, counters)
        first_cost = next(iter(cells.values())).cost if cells else cost
        by_hand = overrides.keys() | set_by_hand[0].keys()
        further = {field: pair for field, pair in differing.items() if field in by_hand and field not in axis}
        cells[cell_id] = cell = Cell(
            id=cell_id,
            label=label,
            overrides=overrides,
            config=config,
            derived={f: pair for f, pair in differing.items() if f not in overrides and f not in further},
            further=further,
            cost=cost,
            unlike=guards.unlike(first_cost, cost, axis, differing),
            reference=figures,
        )
        if given != overrides and (deviation := _deviation(cell, cells, match.quantity(given))) > match.TOLERANCE:
            unequal.append(match.too_far(label, given, config_lib.flatten(config), deviation))
    metric = metrics.of_grid(grid.metric, configs[0])
    warnings += guards.other_units(metric, [(cell.label, cell.config) for cell in cells.values()])
    return Plan(grid, axis, metric, tuple(cells.values()), (*warnings, *unequal), tuple(unequal))


_Counters = Mapping[str, Callable[[Config], int | None]]
"""Quantity of `Cost` → what counts it."""


def _counters(
    parameters: Callable[[Config], int | None] | None,
    flops: Callable[[Config], int | None] | None,
    tokens: Callable[[Config], int | None] | None,
) -> _Counters:
    nothing = lambda cfg: None  # noqa: E731
    return {
        'parameters': parameters or counting.parameter_count,
        'flops': flops or (nothing if parameters else counting.train_flops),
        'tokens': tokens or (nothing if parameters else counting.train_tokens),
    }


def _cost(config: Config, counters: _Counters) -> Cost:
    counted = {name: counter(config) for name, counter in counters.items()}
    return Cost(**counted, batch=config.train.batch_size)


def _deviation(cell: Cell, cells: Mapping[str, Cell], quantity: str) -> float:
    """Difference of a counted cell's cost from the first one's, as a share of the latter."""
    target, found = (getattr(one.cost, quantity) for one in (next(iter(cells.values())), cell))
    assert target and found is not None  # a grid with a Match is counted
    return abs(found / target - 1)


def _configs(grid: Grid, counters: _Counters) -> list[Config]:
    """The cells' configurations, with numbers where a `Match` stands."""
    baseline = grid.cells[0]
    if match.set_by_hand(baseline) != baseline:
        raise UserError(f'{grid.path}: cell 0 {baseline}: the baseline is what others are made equal to; set a number')
    configs = [_resolved(grid, 0, baseline)]
    known = config_lib.flatten(configs[0])
    for index, cell in enumerate(grid.cells[1:], 1):
        counter = counters[match.quantity(cell)]
        size = lambda overrides, index=index, counter=counter: counter(_resolved(grid, index, overrides))  # noqa: E731
        try:
            worked_out = match.solve(cell, size, functools.partial(counter, configs[0]), known)
        except match.UnsolvableError as error:
            raise UserError(f'{grid.path}: cell {index} {cell}: {error}') from None
        configs.append(_resolved(grid, index, worked_out))
    return configs


def _resolved(grid: Grid, index: int, overrides: Overrides) -> Config:
    config = grid.get_config()
    try:
        config_lib.override(config, overrides)
        return config_lib.resolve(config)
    except UserError as error:
        raise UserError(f'{grid.path}: cell {index} {overrides}: {error}') from None
