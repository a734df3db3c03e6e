"""From a grid file to resolved cells: what would run, what differs from the baseline, and what is there already.

Cells that come to the same configuration are one cell: chained one-at-a-time grids each bring the baseline along. The
merging is reported as a warning, because it can also mean a field that has no effect.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer import config as config_lib
from jaxformer import files
from jaxformer.ablate import ledger, match, metrics
from jaxformer.ablate.count import parameter_count
from jaxformer.ablate.grid import Overrides
from jaxformer.ablate.gridfile import Figures, Grid, read
from jaxformer.config import Config
from jaxformer.errors import UserError

__all__ = ['Grid', 'read']  # re-exported


@dataclasses.dataclass(frozen=True)
class Cell:
    """A resolved cell; `overrides` are the fields that it sets itself.

    `derived`: fields that differ from the baseline although the cell does not set them: the config derives them from
    one that was set (d_k from num_heads), or they were worked out (see `jaxformer.ablate.match`). `further`: fields set
    by the cell or the baseline that differ although they are not on the axis. Both map the field to `(baseline's value,
    this cell's value)`. `reference`: figures of others about the same cell.
    """

    id: str
    label: str
    overrides: Overrides
    config: Config
    derived: Mapping[str, tuple[Any, Any]]
    further: Mapping[str, tuple[Any, Any]]
    parameters: int | None
    reference: Figures


@dataclasses.dataclass(frozen=True)
class Plan:
    """A grid with its cells resolved; `cells[0]` is the baseline. `unequal`: the warnings with which no grid is run."""

    grid: Grid
    axis: tuple[str, ...]
    metric: str
    cells: tuple[Cell, ...]
    warnings: tuple[str, ...]
    unequal: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run: a cell and a seed, the configuration of the two, and its directory."""

    cell: Cell
    seed: int
    config: Config
    path: epath.Path


def resolve(grid: Grid, count: Callable[[Config], int | None] | None = None) -> Plan:
    """Resolves every cell.

    Args:
      count: gives the number of parameters of a configuration; by default `parameter_count`.

    Raises:
      UserError: a cell that no configuration allows (names the cell, the field and the remedy), or an unknown AXIS.
    """
    count = count or parameter_count
    set_by_hand = [match.set_by_hand(cell) for cell in grid.cells]
    configs = _configs(grid, count)
    known = config_lib.flatten(configs[0])
    for field in grid.axis:
        if field not in known:
            raise UserError(f'{grid.path}: AXIS names {field!r}, which is no field of the configuration')
    axis = grid.axis or tuple(dict.fromkeys(field for fields in set_by_hand for field in fields))
    names = short_names(field for fields in set_by_hand for field in fields)
    cells: dict[str, Cell] = {}
    warnings, unequal = [], []
    for given, overrides, config, figures in zip(grid.cells, set_by_hand, configs, grid.reference, strict=True):
        cell_id = config_lib.config_hash(config, without=('seed',))
        label = ' '.join(f'{names[field]}={show(value)}' for field, value in overrides.items()) or 'base'
        if cell_id in cells:
            first = cells[cell_id]
            warnings.append(f'{label!r} is the same configuration as {first.label!r}: run once')
            cells[cell_id] = dataclasses.replace(first, reference={**figures, **first.reference})
            continue
        differing = config_lib.diff(configs[0], config)
        by_hand = overrides.keys() | set_by_hand[0].keys()
        further = {field: pair for field, pair in differing.items() if field in by_hand and field not in axis}
        cells[cell_id] = cell = Cell(
            id=cell_id,
            label=label,
            overrides=overrides,
            config=config,
            derived={f: pair for f, pair in differing.items() if f not in overrides and f not in further},
            further=further,
            parameters=count(config),
            reference=figures,
        )
        if given != overrides and (deviation := _deviation(cell, cells)) > match.TOLERANCE:
            unequal.append(match.too_far(label, given, config_lib.flatten(config), deviation))
    metric = metrics.of_grid(grid.metric, configs[0])
    warnings += _other_units(metric, list(cells.values()))
    return Plan(grid, axis, metric, tuple(cells.values()), (*warnings, *unequal), tuple(unequal))


def _other_units(metric: str, cells: Sequence[Cell]) -> list[str]:
    """A warning for each cell whose metric is of other things than the baseline's."""
    if metric.endswith('/bits_per_byte'):
        return []
    found = [
        (cell.label, [f for f in config_lib.diff(cells[0].config, cell.config) if f in metrics.UNITS]) for cell in cells
    ]
    return [
        f'{label!r} has another {", ".join(fields)} than the base: {metrics.title(metric)} is not of the same things '
        "(bits_per_byte compares language models over tokenizers: METRIC = 'bits_per_byte')"
        for label, fields in found
        if fields
    ]


def _deviation(cell: Cell, cells: Mapping[str, Cell]) -> float:
    """Difference of a counted cell's size from the first one's, as a share of the latter."""
    target = next(iter(cells.values())).parameters
    assert target and cell.parameters is not None  # a grid with a Match is counted
    return abs(cell.parameters / target - 1)


def _configs(grid: Grid, count: Callable[[Config], int | None]) -> list[Config]:
    """The cells' configurations, with numbers where a `Match` stands."""
    baseline = grid.cells[0]
    if match.set_by_hand(baseline) != baseline:
        raise UserError(f'{grid.path}: cell 0 {baseline}: the baseline is what others are made equal to; set a number')
    configs = [_resolved(grid, 0, baseline)]
    known = config_lib.flatten(configs[0])
    for index, cell in enumerate(grid.cells[1:], 1):
        size = lambda overrides, index=index: count(_resolved(grid, index, overrides))  # noqa: E731
        try:
            worked_out = match.solve(cell, size, lambda: count(configs[0]), known)
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


def runs(plan: Plan, workdir: epath.PathLike, seeds: int) -> list[PlannedRun]:
    """The runs in the order in which they are taken: all cells with the first seed, then all with the second, …

    In this order a grid that is stopped early has compared every cell, with fewer seeds, and a report says something.

    Args:
      seeds: number of seeds of each cell; they count up from the base's `seed`.

    Raises:
      UserError: `seeds` is less than one.
    """
    if seeds < 1:
        raise UserError(f'--seeds={seeds}: must be at least 1')
    planned = []
    for offset in range(seeds):
        for cell in plan.cells:
            config = dataclasses.replace(cell.config, seed=cell.config.seed + offset)
            planned.append(PlannedRun(cell, config.seed, config, ledger.run_dir(workdir, cell.id, config.seed)))
    return planned


def as_ledger(plan: Plan, seeds: int) -> ledger.Ledger:
    """What grid.json keeps of a plan that is run with so many seeds."""
    baseline = plan.cells[0].config
    return ledger.Ledger(
        name=plan.grid.name,
        docstring=plan.grid.docstring,
        axis=plan.axis,
        metric=plan.metric,
        seeds=tuple(range(baseline.seed, baseline.seed + seeds)),
        baseline=config_lib.to_dict(baseline),
        warnings=plan.warnings,
        cells=tuple(
            ledger.Entry(
                cell.id, cell.label, cell.overrides, cell.derived, cell.further, cell.parameters, cell.reference
            )
            for cell in plan.cells
        ),
        former=(),
        reference_source=plan.grid.reference_source,
        notes=plan.grid.notes,
    )


def as_json(plan: Plan, workdir: epath.PathLike, seeds: int) -> dict[str, Any]:
    """The plan against what is in `workdir`, as plain values: what `jaxformer plan --json` prints.

    Raises:
      UserError: `workdir` belongs to another grid.
    """
    workdir = epath.Path(workdir)
    states = {run.path: ledger.read_run(run.path).state for run in runs(plan, workdir, seeds)}
    former: list[str] = []
    if (workdir / files.GRID).exists():
        old = ledger.read(workdir, expected=plan.grid.name)
        current = {cell.id for cell in plan.cells}
        former = [cell.id for cell in (*old.former, *old.cells) if cell.id not in current]
    return {
        'grid': plan.grid.name,
        'axis': list(plan.axis),
        'metric': plan.metric,
        'seeds': seeds,
        'cells': [
            {
                'id': cell.id,
                'label': cell.label,
                'overrides': cell.overrides,
                'parameters': cell.parameters,
                'derived': cell.derived,
                'further': cell.further,
                'reference': cell.reference,
                'runs': {
                    str(run.seed): states[run.path] for run in runs(plan, workdir, seeds) if run.cell.id == cell.id
                },
            }
            for cell in plan.cells
        ],
        'runs': {state: sum(found == state for found in states.values()) for state in ledger.STATES},
        'former': former,
        'warnings': list(plan.warnings),
        'notes': list(plan.grid.notes),
    }


def as_text(plan: Plan, workdir: epath.PathLike, seeds: int) -> str:
    """The same for people: one line per cell, then what would run and what deserves a look."""
    content = as_json(plan, workdir, seeds)
    titles = tuple(dict.fromkeys(title for cell in plan.cells for title in cell.reference))
    columns = [printed([cell.reference.get(title) for cell in plan.cells]) for title in titles]
    rows = [('', 'cell', 'id', 'parameters', *titles, 'follows', 'runs')]
    for index, cell in enumerate(content['cells']):
        parameters = '' if cell['parameters'] is None else f'{cell["parameters"]:,}'
        states = list(cell['runs'].values())
        counts = ', '.join(f'{states.count(state)} {state}' for state in ledger.STATES if state in states)
        figures = [column[index] for column in columns]
        rows.append((str(index), cell['label'], cell['id'], parameters, *figures, _changes(cell['derived']), counts))
    counts = content['runs']
    waiting = counts['missing'] + counts['preempted']
    lines = [*_columns(rows), '', f'{len(plan.cells)} cells × {seeds} seeds: {waiting} to run, {counts["done"]} done']
    lines[-1] += ''.join(f', {counts[state]} {state}' for state in ('running', 'failed') if counts[state])
    lines += [
        f'note: {cell["label"]!r} differs from the baseline in more than {", ".join(plan.axis)}: '
        f'{_changes(cell["further"])}'
        for cell in content['cells']
        if cell['further']
    ]
    lines += [f'warning: {warning}' for warning in plan.warnings]
    lines += [f'former cell, kept on disk: {cell_id}' for cell_id in content['former']]
    return '\n'.join(lines)


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """Each dotted field by the fewest of its last names that tell it from the others: `model.d_k` → `d_k`.

    The others are those given, and every field or group of a configuration that lies no deeper:
    `model.dropout.residual` is `dropout.residual` and leaves the shorter name to `model.residual`.
    """
    fields = tuple(dict.fromkeys(fields))
    everything = config_lib.fields()
    groups = {'.'.join(field.split('.')[:length]) for field in everything for length in (1, 2)}
    names = {}
    for field in fields:
        parts = field.split('.')
        tails = ['.'.join(parts[-length:]) for length in range(1, len(parts) + 1)]
        shallow = (other for other in {*everything, *groups} if other.count('.') <= field.count('.'))
        others = {*fields, *shallow} - {field}
        unique = (tail for tail in tails if not any(f'.{other}'.endswith(f'.{tail}') for other in others))
        names[field] = next(unique, field)
    return names


def show(value: Any) -> str:
    """A field's value in a label or a table: text bare, everything else as Python writes it."""
    return value if isinstance(value, str) else repr(value)


def printed(figures: Sequence[float | str | None]) -> list[str]:
    """A column of figures as text: numbers with as many decimals as the one that has most, nothing for None."""
    decimals = max((len(repr(value).partition('.')[2]) for value in figures if isinstance(value, float)), default=0)
    numbers = [f'{value:.{decimals}f}' if isinstance(value, float) else value for value in figures]
    return ['' if value is None else str(value) for value in numbers]


def _changes(pairs: Mapping[str, Sequence[Any]]) -> str:
    return ' '.join(f'{name}={show(pairs[field][1])}' for field, name in short_names(pairs).items())


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ['  '.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
