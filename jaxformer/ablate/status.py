"""How far a grid is: its runs, who works on them, and how long the rest takes. Reads only."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from etils import epath

from jaxformer import files
from jaxformer.ablate import ledger, metrics
from jaxformer.ablate.shown import columns, duration
from jaxformer.errors import UserError
from jaxformer.train.writer import ENVIRONMENT, METRICS, read_metrics


@dataclasses.dataclass(frozen=True)
class Row:
    """A run. `host`, `pid`: of the process that works on it, else of the last one that did; `heartbeat`: seconds since
    the former's last sign of life. `speed`: steps per second of a run that is worked on. `metric`: the newest value
    where it is a finite one.
    """

    cell: str
    label: str
    seed: int
    state: str
    step: int
    num_steps: int
    host: str | None
    pid: int | None
    heartbeat: float | None
    speed: float | None
    metric: float | None
    reason: str | None

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at the speed of now; None where nobody works on it, or has done so long enough."""
        return (self.num_steps - self.step) / self.speed if self.speed else None


@dataclasses.dataclass(frozen=True)
class Status:
    """A grid. `workers`: processes at work on it. `seconds_left`: the steps that are left (but for those of failed
    runs) at the speed of all workers together, None while none is known.
    """

    grid: str
    metric: str
    rows: tuple[Row, ...]
    workers: int
    seconds_left: float | None

    def count(self, state: str) -> int:
        return sum(row.state == state for row in self.rows)


def read(workdir: epath.PathLike) -> Status:
    """Reads every run of the grid in `workdir`, those that do not exist yet included.

    Raises:
      UserError: there is no grid.
    """
    book = ledger.read(workdir)
    rows = tuple(
        _row(entry, run, book.metric, int(_planned(entry, book, 'train.num_steps')))
        for entry in book.cells
        for run in ledger.runs_of(workdir, entry.id, book.seeds)
    )
    left = sum(row.num_steps - row.step for row in rows if row.state not in ('done', 'failed'))
    speed = sum(row.speed or 0.0 for row in rows)
    workers = len({(row.host, row.pid) for row in rows if row.state == 'running'})
    return Status(book.name, book.metric, rows, workers, left / speed if speed else (None if left else 0.0))


def as_json(status: Status) -> dict[str, Any]:
    """Plain values: what `jaxformer status --json` prints."""
    return {
        'grid': status.grid,
        'metric': status.metric,
        'runs': [{**dataclasses.asdict(row), 'seconds_left': row.seconds_left} for row in status.rows],
        'totals': {
            **{state: status.count(state) for state in ledger.STATES},
            'steps': sum(row.step for row in status.rows),
            'num_steps': sum(row.num_steps for row in status.rows),
            'workers': status.workers,
            'seconds_left': status.seconds_left,
        },
    }


def as_text(status: Status) -> str:
    """For people: a line per run, then the totals, and why runs failed."""
    known = metrics.lookup(status.metric)
    titles = ('cell', 'seed', 'state', 'step', 'of', 'worker', 'heartbeat', metrics.title(status.metric), 'time left')
    table = [titles]
    for row in status.rows:
        working = row.state == 'running'
        value = '' if row.metric is None else known.number(row.metric) + (' %' if known.percent else '')
        table.append(
            (
                row.label,
                str(row.seed),
                row.state,
                f'{row.step:,}',
                f'{row.num_steps:,}',
                f'{row.host} {row.pid}' if working and row.pid is not None else '',
                f'{max(row.heartbeat, 0.0):.0f} s ago' if row.heartbeat is not None else '',
                value,
                _duration(row.seconds_left) if working else '',
            )
        )
    lines = columns(table)
    counts = ', '.join(f'{status.count(state)} {state}' for state in ledger.STATES if status.count(state))
    steps, num_steps = (sum(getattr(row, name) for row in status.rows) for name in ('step', 'num_steps'))
    workers = f'{status.workers} worker{"" if status.workers == 1 else "s"}'
    lines += ['', f'{len(status.rows)} runs: {counts}; {steps:,} of {num_steps:,} steps; {workers}']
    if status.count('done') + status.count('failed') < len(status.rows):
        lines[-1] += f'; time left: {_duration(status.seconds_left) or "not known yet"}'
    failed = [row for row in status.rows if row.state == 'failed']
    lines += [f'failed: {row.label} seed {row.seed}: {row.reason}' for row in failed]
    return '\n'.join(lines)


def _duration(seconds: float | None) -> str:
    return '' if seconds is None else duration(seconds)


def _row(entry: ledger.Entry, run: ledger.Run, metric: str, num_steps: int) -> Row:
    lines = _lines(run)
    step = max(run.step, lines[-1]['step'] if lines else 0) if run.state == 'running' else run.step
    value = run.status.get('metrics', {}).get(metric)
    worker: Mapping[str, Any] = run.status
    if run.holder:
        worker = {'host': run.holder.host, 'pid': run.holder.pid}
    return Row(
        cell=entry.id,
        label=entry.label,
        seed=run.seed,
        state=run.state,
        step=step,
        num_steps=run.status.get('num_steps', num_steps),
        host=worker.get('host'),
        pid=worker.get('pid'),
        heartbeat=run.holder.age if run.holder else None,
        speed=_speed(run, lines),
        metric=value if value is not None and math.isfinite(value) else None,
        reason=run.reason,
    )


def _lines(run: ledger.Run) -> list[dict[str, Any]]:
    """Of a run that is worked on what it has logged."""
    try:
        return read_metrics(run.path / METRICS) if run.state == 'running' else []
    except (OSError, UserError):
        return []


def _speed(run: ledger.Run, lines: list[dict[str, Any]]) -> float | None:
    """Steps per second from the first line of the process that works on it until now."""
    if not lines:
        return None
    try:
        begun = files.read_json(run.path / ENVIRONMENT)[-1]['time']
    except (OSError, UserError, LookupError, TypeError):
        return None
    own = [line for line in lines if line.get('time', 0) >= begun]
    if len(own) < 2 or own[-1]['step'] <= own[0]['step']:
        return None
    seconds = own[-1]['time'] - own[0]['time']
    return (own[-1]['step'] - own[0]['step']) / seconds if seconds > 0 else None


def _planned(entry: ledger.Entry, book: ledger.Ledger, field: str) -> Any:
    """A field's value in a cell that may not have begun: as the baseline, but for what the ledger says."""
    for changes in (entry.derived, entry.further):
        if field in changes:
            return changes[field][1]
    if field in entry.overrides:
        return entry.overrides[field]
    value: Any = book.baseline
    for name in field.split('.'):
        value = value[name]
    return value
