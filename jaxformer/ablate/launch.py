"""A worker of a grid: takes runs from the ledger until none is left, beside as many other workers as there are.

1. It reads the state of every run. done: left alone, not a byte of it is touched. failed earlier: left as it is (see
   `reopen`); the grid still counts as failed. Claimed by another live process: left to that one.
2. What is missing, preempted or killed is open. Open runs of one compiled program are divided among the workers that
   are free, and the worker's part is handed to the cohort, which claims each run and starts or resumes it.
3. A run that fails is marked failed with the reason (the traceback of what nobody foresaw goes to
   RUN/traceback.txt), and the others go on. A signal stops the worker; what it had is saved.
4. With nothing open, it waits for what other processes hold. A run whose process died is open again: at once where it
   was on the same machine, else after `claims.STALE` seconds.
"""

import contextlib
import dataclasses
import math
import os
import time
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer import claims, files
from jaxformer.ablate import ledger, metrics, plan
from jaxformer.errors import RunError, UserError
from jaxformer.schema import Config
from jaxformer.train.signals import Preempted, stop_signals

POLL = 2.0
"""Seconds between two looks at runs that other processes hold."""

WORKER = 'JAXFORMER_WORKER'
"""Environment variable: which one of several workers (0, 1, …) this process is, so that they begin with different runs.
Whoever starts workers sets it, and writes the report."""

PATIENCE = 'JAXFORMER_PATIENCE'
"""Environment variable: seconds that a worker waits with nothing to do before it leaves; to the end without it."""

Result = Mapping[str, Any] | Exception


@dataclasses.dataclass(frozen=True)
class Cohort:
    """How runs are trained together; by default that of `jaxformer.ablate.cohort`.

    `program`: equal for runs that can be. `train`: starts or resumes runs, to their ends; of each one its final
    metrics, or why there are none. It may return the outcomes of the first few only, and leaves the others open.
    """

    program: Callable[[Config], Hashable]
    train: Callable[[Sequence[Config], Sequence[epath.Path]], Sequence[Result]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How many runs were done by this call, were done before, were done by others meanwhile, and failed whenever."""

    finished: int
    present: int
    others: int
    failed: int
    stopped: bool

    @property
    def exit_code(self) -> int:
        """143 when a signal stopped the grid (the same command goes on), 1 when a run failed, else 0."""
        return Preempted.exit_status if self.stopped else int(self.failed > 0)


def run(
    grid_plan: plan.Plan,
    workdir: epath.PathLike,
    seeds: int,
    cohort: Cohort | None = None,
    *,
    workers: int = 1,
    retry_failed: bool = False,
    say: Callable[[str], None] = print,
    poll: float = POLL,
) -> Outcome:
    """Works on cells × seeds until each run is done or failed, and returns the counts. Rerunning does what is missing.

    Args:
      seeds: number of seeds of each cell.
      cohort: by default a `jaxformer.ablate.cohort.Trainer`.
      workers: how many processes work on the grid, this one included: a hint for dividing it.
      retry_failed: take failed runs up again, too.
      say: gets one line per run.

    Raises:
      UserError: a cell is not as large as it was to be, or the directory cannot be written or is another grid's.
    """
    planned = prepare(grid_plan, workdir, seeds, retry_failed, say)
    worker = _Worker(planned, epath.Path(workdir), grid_plan.metric, cohort or _default_cohort(workers), workers, say)
    try:
        stopped = not worker.work(poll)
    except (Preempted, KeyboardInterrupt):
        stopped = True
    if stopped:
        say('The grid was stopped; the same command goes on where it was.')
    verdicts = list(worker.verdicts.values())
    counts = {name: verdicts.count(name) for name in ('finished', 'present', 'others', 'failed')}
    return Outcome(**counts, stopped=stopped)


def prepare(
    grid_plan: plan.Plan,
    workdir: epath.PathLike,
    seeds: int,
    retry_failed: bool = False,
    say: Callable[[str], None] = print,
) -> list[plan.PlannedRun]:
    """Writes the ledger and returns the runs; what a launcher does before it starts workers.

    Args:
      retry_failed: open the runs that failed. Workers must not: each would take up again what another one failed at.
      say: is told of cells that have left the grid since it was worked on last, with the fields of their base.
    """
    if grid_plan.unequal:
        raise UserError(f'{grid_plan.grid.path}: {grid_plan.unequal[0]}')
    planned = plan.runs(grid_plan, workdir, seeds)
    left, changed = ledger.record(workdir, plan.as_ledger(grid_plan, seeds))
    if left:
        say(_left_behind(left, changed, workdir))
    if retry_failed:
        for item in planned:
            found = ledger.read_run(item.path)
            if found.state == 'failed':
                # Where its status is damaged, or another process was quicker, it stays as it is.
                with contextlib.suppress(UserError):
                    reason = f'to be tried again; it had failed: {found.reason}'
                    ledger.mark(item.path, 'preempted', reason, item.config.train.num_steps)
    return planned


def _left_behind(left: Sequence[ledger.Entry], changed: Sequence[str], workdir: epath.PathLike) -> str:
    """A person who has changed the base by accident finds it out before the grid is run anew."""
    done = sum(run.state == 'done' for cell in left for run in ledger.runs_of(workdir, cell.id))
    cells = f'{len(left)} cell{"s" * (len(left) > 1)} with {done} finished run{"s" * (done != 1)}'
    why = f'{", ".join(changed)} of the baseline changed' if changed else 'it has other cells now'
    return f'note: {cells} left the grid, as {why}; they stay on disk, and count again when the grid is as it was'


def _default_cohort(workers: int) -> Cohort:
    from jaxformer.ablate.cohort import Trainer  # late: it starts a backend

    trainer = Trainer(workers)
    return Cohort(trainer.program, trainer.train)


class _Worker:
    """`verdicts`: of each run that nothing is left to do about, a count of `Outcome`."""

    def __init__(
        self,
        planned: Sequence[plan.PlannedRun],
        workdir: epath.Path,
        metric: str,
        cohort: Cohort,
        workers: int,
        say: Callable[[str], None],
    ) -> None:
        self._planned, self._workdir, self._metric, self._cohort = planned, workdir, metric, cohort
        self._workers, self._index, self._say = workers, int(os.environ.get(WORKER, '0')), say
        self._patience = float(os.environ.get(PATIENCE, 'inf'))
        self._programs = {item.path: cohort.program(item.config) for item in planned}
        names = (f'{item.cell.label} seed {item.seed}' for item in planned)
        self._names = {
            item.path: f'[{index}/{len(planned)}] {name}'
            for index, (item, name) in enumerate(zip(planned, names, strict=True), 1)
        }
        self.verdicts: dict[epath.Path, str] = {}

    def work(self, poll: float) -> bool:
        """Until every run has a verdict; False where it was stopped before."""
        waiting_for = ''
        idle_since = math.inf
        first = True
        while True:
            open_runs, held = self._look(first)
            first = False
            idle_since = math.inf if open_runs else min(idle_since, time.monotonic())
            if open_runs:
                group = self._part(open_runs, held)
                before = [ledger.read_run(item.path) for item in group]
                verdicts = self._take(group, before)
                if 'stopped' in verdicts:
                    return False
                if not any(verdicts):  # others were quicker: what they hold shows in the ledger in a moment
                    _wait(poll / 20)
            elif held:
                holders = ', '.join(sorted({str(found.holder) for found in held}))
                if holders != waiting_for:
                    waiting_for = holders
                    self._say(f'waits for {len(held)} run{"s" * (len(held) > 1)} of other live processes ({holders})')
                if time.monotonic() - idle_since > self._patience:
                    self._say(f'leaves {len(held)} run{"s" * (len(held) > 1)} to the processes that hold them')
                    return True
                _wait(poll)
            else:
                return True

    def _look(self, first: bool) -> tuple[list[plan.PlannedRun], list[ledger.Run]]:
        """(the runs that are open, those that other live processes hold); what is over gets its verdict."""
        now = claims.clock(self._workdir)
        open_runs, held = [], []
        for item in self._planned:
            if item.path in self.verdicts:
                continue
            found = ledger.read_run(item.path, now)
            if found.state == 'done':
                self._settle(item, *(('present', 'done before') if first else ('others', 'done by another process')))
            elif found.state == 'failed':
                text = 'failed before, not retried' if first else 'failed in another process'
                self._settle(item, 'failed', f'{text} ({found.reason})')
            elif found.state == 'running':
                held.append(found)
            else:
                open_runs.append(item)
        return open_runs, held

    def _part(self, open_runs: Sequence[plan.PlannedRun], held: Sequence[ledger.Run]) -> list[plan.PlannedRun]:
        """What to take next: runs of one program, as many as are this worker's among those that hold nothing."""
        busy = {(found.holder.node, found.holder.pid) for found in held if found.holder}
        share = math.ceil(len(open_runs) / max(self._workers - len(busy), 1))
        by_program: dict[Hashable, list[plan.PlannedRun]] = {}
        for item in open_runs:
            by_program.setdefault(self._programs[item.path], []).append(item)
        parts = [same[i : i + share] for same in by_program.values() for i in range(0, len(same), share)]
        return parts[self._index % len(parts)]

    def _take(self, group: Sequence[plan.PlannedRun], before: Sequence[ledger.Run]) -> list[str]:
        """Trains the runs. The verdict on each; '' where another process has it, 'stopped' where a signal came."""
        start = time.monotonic()
        results: Sequence[Result]
        try:
            for item in group:
                item.path.mkdir(parents=True, exist_ok=True)
            results = self._cohort.train([item.config for item in group], [item.path for item in group])
        except (KeyboardInterrupt, Preempted) as error:
            for item, earlier in zip(group, before, strict=True):
                state = ledger.read_run(item.path).state
                if state == 'done':
                    self._settle(item, 'finished', 'done')
                    continue
                if state == 'failed' != earlier.state:  # so a loop calls what it was thrown out of
                    with contextlib.suppress(UserError, RunError):
                        ledger.mark(item.path, 'preempted', 'interrupted', item.config.train.num_steps)
                self._say(f'{self._names[item.path]}: stopped ({str(error) or "interrupted"})')
            return ['stopped']
        except Exception as error:  # what nobody foresaw, of all of them
            results = [error] * len(group)
        seconds = time.monotonic() - start
        together = f' ({len(results)} together)' if len(results) > 1 else ''
        verdicts = []
        for item, earlier, result in zip(group, before, results, strict=False):
            if isinstance(result, Exception):
                verdict, text = _after(item, earlier, result)
            else:
                verb = 'resumed and done' if earlier.state == 'preempted' else 'done'
                verdict, text = 'finished', f'{verb} in {seconds:.0f} s{together}{self._shown(result)}'
            if verdict == 'stopped':
                self._say(f'{self._names[item.path]}: {text}')
            elif verdict:
                self._settle(item, verdict, text)
            verdicts.append(verdict)
        return verdicts

    def _shown(self, results: Mapping[str, Any]) -> str:
        if self._metric not in results:
            return ''
        known, value = metrics.lookup(self._metric), results[self._metric]
        number = 'not finite' if value is None else known.number(value) + (' %' if known.percent else '')
        return f', {metrics.title(self._metric)} {number}'

    def _settle(self, item: plan.PlannedRun, verdict: str, text: str) -> None:
        self.verdicts[item.path] = verdict
        self._say(f'{self._names[item.path]}: {text}')


def _after(item: plan.PlannedRun, before: ledger.Run, error: Exception) -> tuple[str, str]:
    """What an exception means for the run, and its record: the verdict on it, and what to say."""
    after = ledger.read_run(item.path)
    if isinstance(error, (claims.BusyError, claims.LostError)) or after.state in ('done', 'running'):
        return '', ''
    if after.state == 'preempted' and after.status != before.status and after.status['status'] == 'preempted':
        return 'stopped', f'preempted ({error})'
    expected = isinstance(error, (UserError, RunError))
    reason = str(error) if expected else f'{type(error).__name__}: {error}'
    # Where nothing can be written (a full disk, a damaged or taken status), it does not say `done` either.
    with contextlib.suppress(UserError, RunError, OSError):
        if not expected:
            files.write_atomic(item.path / 'traceback.txt', ''.join(traceback.format_exception(error)))
            reason += ' (see traceback.txt)'
        ledger.mark(item.path, 'failed', reason, item.config.train.num_steps)
    return 'failed', f'failed: {reason}'


def _wait(seconds: float) -> None:
    """Raises Preempted where a signal comes."""
    with stop_signals():
        time.sleep(seconds)
