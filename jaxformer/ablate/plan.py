"""From a grid file to resolved cells: what would run, what differs from the baseline, and what is there already.

A grid file is a Python file (`experiments/heads.py`) with a docstring, `get_config()` (the base) and `grid()` (the
cells, baseline first), and if it likes with

    AXIS    the field or fields that the experiment means to vary; without it, all that any cell sets
    METRIC  what it is judged by; without it `<eval.split>/per`

Cells that come to the same configuration are one cell: chained one-at-a-time grids each bring the baseline along. The
merging is reported as a warning, because it can also mean a field that has no effect.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from jaxformer import config as config_lib
from jaxformer import files, pyfile
from jaxformer.ablate import ledger, metrics
from jaxformer.ablate.grid import Overrides
from jaxformer.config import Config
from jaxformer.errors import UserError


@dataclasses.dataclass(frozen=True)
class Grid:
    """A grid file, read. `get_config` gives a fresh base at each call; `cells[0]` is the baseline."""

    name: str
    path: str
    docstring: str
    get_config: Callable[[], ConfigDict]
    cells: tuple[Overrides, ...]
    axis: tuple[str, ...]
    metric: str | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """A resolved cell.

    `derived`: fields that differ from the baseline because the config derives them from one that was set (d_k from
    num_heads). `further`: fields set by the cell or the baseline that differ although they are not on the axis. Both
    map the field to `(baseline's value, this cell's value)`.
    """

    id: str
    label: str
    overrides: Overrides
    config: Config
    derived: Mapping[str, tuple[Any, Any]]
    further: Mapping[str, tuple[Any, Any]]
    parameters: int | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A grid with its cells resolved; `cells[0]` is the baseline."""

    grid: Grid
    axis: tuple[str, ...]
    metric: str
    cells: tuple[Cell, ...]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run: a cell and a seed, the configuration of the two, and its directory."""

    cell: Cell
    seed: int
    config: Config
    path: epath.Path


def read(path: str | Path, changes: Mapping[str, Any] | None = None) -> Grid:
    """Reads a grid file; `changes` are overrides of its base, by dotted field, which every cell then starts from.

    Raises:
      UserError: there is no such file, it fails, what it defines is not a grid, or a cell sets a field of `changes`
        again; names the file and the remedy.
    """
    base_changes = dict(changes or {})
    names = pyfile.run(path, needs=('get_config', 'grid'))
    try:
        cells = tuple(names['grid']())
    except Exception as error:  # whatever a person's generator may raise
        raise UserError(f'{path}: grid() fails with {type(error).__name__}: {error}; mend the file') from error
    if not cells:
        raise UserError(f'{path}: grid() gives no cell; the first one is the baseline ({{}} is the base as it stands)')
    for index, cell in enumerate(cells):
        if not isinstance(cell, Mapping) or not all(isinstance(field, str) for field in cell):
            raise UserError(f"{path}: cell {index} is {cell!r}; a cell is a dict such as {{'model.num_heads': 4}}")
        if 'seed' in cell:
            raise UserError(f'{path}: cell {index} sets seed; seeds belong to every cell, choose them with --seeds')
        if both := cell.keys() & base_changes.keys():
            raise UserError(f'config.{min(both)}: cell {index} of {path} sets it; change the grid file instead')
    axis = names.get('AXIS', ())

    def base() -> ConfigDict:
        config = names['get_config']()
        config_lib.override(config, base_changes)
        return config

    return Grid(
        name=Path(path).stem,
        path=str(path),
        docstring=inspect.cleandoc(names['__doc__'] or ''),
        get_config=base,
        cells=tuple(dict(cell) for cell in cells),
        axis=(axis,) if isinstance(axis, str) else tuple(axis),
        metric=names.get('METRIC'),
    )


def resolve(grid: Grid, count: Callable[[Config], int | None] | None = None) -> Plan:
    """Resolves every cell.

    Args:
      count: gives the number of parameters of a configuration; by default `parameter_count`.

    Raises:
      UserError: a cell that no configuration allows (names the cell, the field and the remedy), or an unknown AXIS.
    """
    count = count or parameter_count
    configs = [_resolved(grid, index) for index in range(len(grid.cells))]
    known = config_lib.flatten(configs[0])
    for field in grid.axis:
        if field not in known:
            raise UserError(f'{grid.path}: AXIS names {field!r}, which is no field of the configuration')
    axis = grid.axis or tuple(dict.fromkeys(field for cell in grid.cells for field in cell))
    names = short_names(field for cell in grid.cells for field in cell)
    cells: dict[str, Cell] = {}
    warnings = []
    for overrides, config in zip(grid.cells, configs, strict=True):
        cell_id = config_lib.config_hash(config, without=('seed',))
        label = ' '.join(f'{names[field]}={show(value)}' for field, value in overrides.items()) or 'base'
        if cell_id in cells:
            warnings.append(f'{label!r} is the same configuration as {cells[cell_id].label!r}: run once')
            continue
        set_fields = overrides.keys() | grid.cells[0].keys()
        off_axis = {k: v for k, v in config_lib.diff(configs[0], config).items() if k not in axis}
        cells[cell_id] = Cell(
            id=cell_id,
            label=label,
            overrides=overrides,
            config=config,
            derived={field: pair for field, pair in off_axis.items() if field not in set_fields},
            further={field: pair for field, pair in off_axis.items() if field in set_fields},
            parameters=count(config),
        )
    metric = grid.metric or f'{configs[0].eval.split}/per'
    metrics.lookup(metric)
    return Plan(grid, axis, metric, tuple(cells.values()), tuple(warnings))


def _resolved(grid: Grid, index: int) -> Config:
    config = grid.get_config()
    try:
        config_lib.override(config, grid.cells[index])
        return config_lib.resolve(config)
    except UserError as error:
        raise UserError(f'{grid.path}: cell {index} {grid.cells[index]}: {error}') from None


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
            ledger.Entry(cell.id, cell.label, cell.overrides, cell.derived, cell.further, cell.parameters)
            for cell in plan.cells
        ),
        former=(),
    )


def parameter_count(config: Config) -> int:
    """Number of parameters, by shapes alone; with `model.vocab_size` 0 the data are asked for their symbols."""
    import math

    import jax

    from jaxformer.data import corpus
    from jaxformer.model import transformer

    vocab_size = config.model.vocab_size or len(corpus.load(config.data).vocab)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(transformer.abstract_params(config.model, vocab_size)))


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
                'runs': {
                    str(run.seed): states[run.path] for run in runs(plan, workdir, seeds) if run.cell.id == cell.id
                },
            }
            for cell in plan.cells
        ],
        'runs': {state: sum(found == state for found in states.values()) for state in ledger.STATES},
        'former': former,
        'warnings': list(plan.warnings),
    }


def as_text(plan: Plan, workdir: epath.PathLike, seeds: int) -> str:
    """The same for people: one line per cell, then what would run and what deserves a look."""
    content = as_json(plan, workdir, seeds)
    rows = [('', 'cell', 'id', 'parameters', 'follows', 'runs')]
    for index, cell in enumerate(content['cells']):
        parameters = '' if cell['parameters'] is None else f'{cell["parameters"]:,}'
        states = list(cell['runs'].values())
        counts = ', '.join(f'{states.count(state)} {state}' for state in ledger.STATES if state in states)
        rows.append((str(index), cell['label'], cell['id'], parameters, _changes(cell['derived']), counts))
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
    """Each dotted field by the fewest of its last names that tell it from the others: `model.d_k` → `d_k`."""
    fields = tuple(dict.fromkeys(fields))
    names = {}
    for field in fields:
        parts = field.split('.')
        tails = ['.'.join(parts[-length:]) for length in range(1, len(parts) + 1)]
        unique = (tail for tail in tails if sum(f'.{other}'.endswith(f'.{tail}') for other in fields) == 1)
        names[field] = next(unique, field)
    return names


def show(value: Any) -> str:
    """A field's value in a label or a table: text bare, everything else as Python writes it."""
    return value if isinstance(value, str) else repr(value)


def _changes(pairs: Mapping[str, Sequence[Any]]) -> str:
    return ' '.join(f'{name}={show(pairs[field][1])}' for field, name in short_names(pairs).items())


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ['  '.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
