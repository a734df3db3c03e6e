"""What of a grid would run, what it costs, and what is there already."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from etils import epath

from jaxformer import config as config_lib
from jaxformer import files
from jaxformer.ablate import collect, guards, ledger
from jaxformer.ablate.cells import Cell, Plan, resolve
from jaxformer.ablate.count import parameter_count
from jaxformer.ablate.forecast import Forecast, forecast
from jaxformer.ablate.gridfile import Grid, read
from jaxformer.ablate.shown import changes, columns, duration, operations, printed, short_names, show
from jaxformer.errors import UserError
from jaxformer.schema import Config

__all__ = [
    'Cell',
    'Grid',
    'Plan',
    'parameter_count',
    'printed',
    'read',
    'resolve',
    'short_names',
    'show',
]  # re-exported


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run: a cell and a seed, the configuration of the two, and its directory."""

    cell: Cell
    seed: int
    config: Config
    path: epath.Path


def runs(plan: Plan, workdir: epath.PathLike, seeds: int) -> list[PlannedRun]:
    """The runs in the order in which they are taken: all cells with the first seed, then all with the second, …

    In this order a grid that is stopped early has compared every cell, with fewer seeds, and a report says something.

    Args:
      seeds: number of seeds of each cell; they count up from the base's `seed`.

    Raises:
      UserError: `seeds` is less than one, or leads beyond the largest seed.
    """
    if seeds < 1:
        raise UserError(f'--seeds={seeds}: must be at least 1')
    last = plan.cells[0].config.seed + seeds - 1
    if last > (largest := 2**31 - 1):
        raise UserError(f'--seeds={seeds}: the last one would be {last}, more than {largest}; lower config.seed')
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
    planned = runs(plan, workdir, seeds)
    found = {run.path: ledger.read_run(run.path) for run in planned}
    states = [run.state for run in found.values()]
    former: list[str] = []
    if (workdir / files.GRID).exists():
        old = ledger.read(workdir, expected=plan.grid.name)
        current = {cell.id for cell in plan.cells}
        former = [cell.id for cell in (*old.former, *old.cells) if cell.id not in current]
    expected = _forecast(plan, [(run, found[run.path]) for run in planned])
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
                **dataclasses.asdict(cell.cost),
                'seconds': expected.seconds.get(cell.id),
                'derived': cell.derived,
                'further': cell.further,
                'unlike': cell.unlike,
                'reference': cell.reference,
                'runs': {str(run.seed): found[run.path].state for run in planned if run.cell.id == cell.id},
            }
            for cell in plan.cells
        ],
        'runs': {state: states.count(state) for state in ledger.STATES},
        'processes_at_once': expected.at_once,
        'seconds_left': expected.left,
        'former': former,
        'warnings': list(plan.warnings),
        'notes': list(plan.grid.notes),
    }


def _forecast(plan: Plan, found: Sequence[tuple[PlannedRun, ledger.Run]]) -> Forecast:
    """By the finished runs; failed ones are not counted as left, since only a person's word takes them up again."""
    done, left = [], []
    for planned, run in found:
        if run.state == 'done':
            if work := collect.work(run):
                done.append((planned.cell.id, work.seconds, work.spans))
        elif run.state != 'failed':
            left.append((planned.cell.id, 1 - min(run.step / planned.config.train.num_steps, 1.0)))
    return forecast({cell.id: cell.cost.flops for cell in plan.cells}, done, left)


def as_text(plan: Plan, workdir: epath.PathLike, seeds: int) -> str:
    """The same for people: one line per cell, then what would run and what deserves a look."""
    content = as_json(plan, workdir, seeds)
    titles = tuple(dict.fromkeys(title for cell in plan.cells for title in cell.reference))
    figures = [printed([cell.reference.get(title) for cell in plan.cells]) for title in titles]
    rows = [('', 'cell', 'id', 'parameters', 'FLOPs', 'time', *titles, 'follows', 'runs')]
    for index, cell in enumerate(content['cells']):
        parameters = '' if cell['parameters'] is None else f'{cell["parameters"]:,}'
        operations_ = '' if cell['flops'] is None else operations(cell['flops'])
        time = '' if cell['seconds'] is None else duration(cell['seconds'])
        states = list(cell['runs'].values())
        counts = ', '.join(f'{states.count(state)} {state}' for state in ledger.STATES if state in states)
        others = [column[index] for column in figures]
        costs = (parameters, operations_, time)
        rows.append((str(index), cell['label'], cell['id'], *costs, *others, changes(cell['derived']), counts))
    used = [i for i, head in enumerate(rows[0]) if head not in ('FLOPs', 'time') or any(row[i] for row in rows[1:])]
    counts = content['runs']
    waiting = counts['missing'] + counts['preempted']
    lines = [*columns([[row[i] for i in used] for row in rows]), '']
    lines += [f'{len(plan.cells)} cells × {seeds} seeds: {waiting} to run, {counts["done"]} done']
    lines[-1] += ''.join(f', {counts[state]} {state}' for state in ('running', 'failed') if counts[state])
    if content['seconds_left']:
        lines[-1] += f'; about {duration(content["seconds_left"])} left at the pace of those done'
        if content['processes_at_once'] > 1.05:
            lines[-1] += f', {content["processes_at_once"]:.1f} processes at a time'
    lines += [
        f'note: {cell["label"]!r} differs from the baseline in more than {", ".join(guards.fields(plan.axis))}: '
        f'{changes(cell["further"])}'
        for cell in content['cells']
        if cell['further']
    ]
    lines += [
        f'note: {cell["label"]!r} is not held equal to the baseline: {guards.described(cell["unlike"])}'
        for cell in content['cells']
        if cell['unlike']
    ]
    lines += [f'warning: {warning}' for warning in plan.warnings]
    lines += [f'former cell, kept on disk: {cell_id}' for cell_id in content['former']]
    return '\n'.join(lines)
