"""Runs a grid in this process, run by run, from what its directory says is missing.

For each run, in the order of `plan.runs`:

 1. done: left alone, not a byte of it is touched
 2. locked by another live process: left to that one, and said
 3. failed earlier: left as it is, unless `retry_failed`; the grid still counts as failed
 4. missing or preempted (or killed): handed to `train`, which starts or resumes it
 5. `train` raises: the run is marked failed with the reason (the traceback of what nobody foresaw goes to
    RUN/traceback.txt), and the next run is taken; where its status.json says `preempted`, the grid stops instead
"""

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from jaxformer import files
from jaxformer.ablate import ledger, metrics, plan
from jaxformer.config import Config
from jaxformer.errors import RunError, UserError
from jaxformer.train.signals import Preempted

Train = Callable[[Config, epath.Path], Mapping[str, Any]]
"""`train(cfg, workdir)`: starts or resumes a run to its end; returns its final metrics."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How many runs were done by this call, were done before, failed (now or before), or are another process's."""

    finished: int
    present: int
    failed: int
    busy: int
    stopped: bool

    @property
    def exit_code(self) -> int:
        """143 when a signal stopped the grid (the same command goes on), 1 when a run failed, else 0."""
        return Preempted.exit_status if self.stopped else int(self.failed > 0)


def run(
    grid_plan: plan.Plan,
    workdir: epath.PathLike,
    seeds: int,
    train: Train | None = None,
    *,
    retry_failed: bool = False,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Goes through cells × seeds and returns the counts. Rerunning does only what is missing.

    Args:
      seeds: number of seeds of each cell.
      train: by default `jaxformer.train.loop.train`.
      retry_failed: take failed runs up again, too.
      say: gets one line per run.

    Raises:
      UserError: a cell is not as large as it was to be, or the directory cannot be written or is another grid's.
    """
    if grid_plan.unequal:
        raise UserError(f'{grid_plan.grid.path}: {grid_plan.unequal[0]}')
    if train is None:
        from jaxformer.train.loop import train as default_train

        train = default_train
    planned = plan.runs(grid_plan, workdir, seeds)
    ledger.record(workdir, plan.as_ledger(grid_plan, seeds))
    counts = {'finished': 0, 'present': 0, 'failed': 0, 'busy': 0}
    stopped = False
    for index, planned_run in enumerate(planned, 1):
        name = f'[{index}/{len(planned)}] {planned_run.cell.label} seed {planned_run.seed}'
        verdict, text = _take(planned_run, train, retry_failed, grid_plan.metric)
        say(f'{name}: {text}')
        if verdict == 'stopped':
            stopped = True
            say('The grid was stopped; the same command goes on where it was.')
            break
        counts[verdict] += 1
    return Outcome(**counts, stopped=stopped)


def _take(planned: plan.PlannedRun, train: Train, retry_failed: bool, metric: str) -> tuple[str, str]:
    """Does what there is to do about one run. Returns the verdict (a field of `Outcome`) and what to say."""
    before = ledger.read_run(planned.path)
    if before.state == 'done':
        return 'present', 'done before'
    if before.state == 'running':
        return 'busy', 'left to the live process that holds it'
    if before.state == 'failed' and not retry_failed:
        return 'failed', f'failed before, not retried ({before.reason})'
    start = time.monotonic()
    try:
        planned.path.mkdir(parents=True, exist_ok=True)
        results = train(planned.config, planned.path)
    except KeyboardInterrupt:
        if ledger.read_run(planned.path).state == 'failed':  # so the loop calls what it was thrown out of
            ledger.mark(planned.path, 'preempted', 'interrupted', planned.config.train.num_steps)
        return 'stopped', 'interrupted'
    except Exception as error:  # a cell that fails, for whatever reason, must not take the others with it
        return _after(planned, before, error)
    shown = f', {metrics.title(metric)} {_number(metric, results[metric])}' if metric in results else ''
    verb = 'resumed and done' if before.state == 'preempted' else 'done'
    return 'finished', f'{verb} in {time.monotonic() - start:.0f} s{shown}'


def _after(planned: plan.PlannedRun, before: ledger.Run, error: Exception) -> tuple[str, str]:
    """What an exception out of `train` means for the run, and its record."""
    after = ledger.read_run(planned.path)
    if after.state == 'done':
        return 'present', 'done by another process in the meantime'
    if after.state == 'running':
        return 'busy', 'left to the live process that holds it'
    if after.state == 'preempted' and after.status != before.status and after.status['status'] == 'preempted':
        return 'stopped', f'preempted ({error})'
    expected = isinstance(error, (UserError, RunError))
    reason = str(error) if expected else f'{type(error).__name__}: {error}'
    if not expected:
        files.write_atomic(planned.path / 'traceback.txt', ''.join(traceback.format_exception(error)))
        reason += ' (see traceback.txt)'
    # Where the run's status cannot be written, because it is damaged or taken, it does not say `done` either.
    with contextlib.suppress(UserError):
        ledger.mark(planned.path, 'failed', reason, planned.config.train.num_steps)
    return 'failed', f'failed: {reason}'


def _number(metric: str, value: float | None) -> str:
    known = metrics.lookup(metric)
    return 'not finite' if value is None else known.number(value) + (' %' if known.percent else '')
