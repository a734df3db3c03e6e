"""One task of a job array: a worker over the ledger, as if started by hand in the directory of the grid.

1. It runs `jaxformer` with the arguments that the submitting command gave it, in its own process, so that a signal
   reaches the training whichever way Slurm delivers it.
2. Ahead of the time limit (and of a preemption that is announced) Slurm sends USR2; so does
   `scancel --signal=USR2 JOB`, and USR1 means the same. The runs at hand are saved, and the task is put back into the
   queue, from where it goes on in the same directories, appending to the same log.
3. TERM saves and leaves. It precedes the end by `scancel`, which is meant, and the restart by `scontrol requeue`.
4. A task that was put back several times and did not get a step further is not put back again: it never would.
5. With nothing to do but to wait for other tasks it leaves, once those would be known as dead if they were.
6. A task that fails or is killed leaves the others alone: they take its runs, and so does the same command later.
"""

import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

from jaxformer import claims
from jaxformer.ablate import launch, ledger
from jaxformer.ablate import report as reports
from jaxformer.train.signals import Preempted

IDLE_RESTARTS = 3
"""Restarts after which a task that did not get a step further gives up."""


def work(arguments: Sequence[str], workdir: str, report: bool) -> None:
    """Runs `jaxformer ARGUMENTS` for the grid in `workdir`, and leaves with its exit status, which Slurm shows.

    Args:
      report: write it once no run is left, as nobody waits who would.
    """
    os.environ[launch.WORKER] = os.environ.get('SLURM_ARRAY_TASK_ID', '0')
    os.environ.setdefault(launch.PATIENCE, str(2 * claims.STALE))  # a node that waits is paid for
    restarts = int(os.environ.get('SLURM_RESTART_COUNT', '0'))
    print(f'restart {restarts}: jaxformer {" ".join(arguments)}', flush=True)
    before = _steps(workdir)
    signals = Signals()
    try:
        status = _command(arguments)
    except Exception:
        if not signals.requeue:
            raise
        traceback.print_exc()  # the end that a signal made may come out of foreign code as another exception
        status = Preempted.exit_status
    if signals.requeue and not _is_over(workdir):
        if restarts >= IDLE_RESTARTS and _steps(workdir) == before:
            print(f'not put back into the queue: restart {restarts}, and not a step further; raise the time limit')
        else:
            _requeue()
    elif report and _is_over(workdir):
        for path in reports.write(workdir).values():
            print(path)
    sys.stdout.flush()
    sys.exit(status)  # a task that returns has succeeded, says submitit


class Signals:
    """Listens where training does not, and to what training does not know. `requeue`: USR1 or USR2 came."""

    def __init__(self) -> None:
        self.requeue = False
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self.hear)

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Becomes the stop of the runs at hand; between two runs, the end of the command."""
        if self.requeue:  # it saves already, and what comes at the time limit itself must not disturb that
            return
        self.requeue = number != signal.SIGTERM
        if self.requeue and signal.getsignal(signal.SIGTERM) != self.hear:  # training listens
            signal.raise_signal(signal.SIGTERM)
        else:
            raise Preempted(f'stopped by {signal.Signals(number).name} between two runs; the same command goes on')


def _command(arguments: Sequence[str]) -> int:
    """`python -m jaxformer.main` in this process; its exit status."""
    sys.argv = ['jaxformer', *arguments]
    try:
        runpy.run_module('jaxformer.main', run_name='__main__', alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    except Preempted:  # before it began, or after its end
        return Preempted.exit_status
    return 0


def _requeue() -> None:
    task = os.environ['SLURM_JOB_ID']
    if 'SLURM_ARRAY_JOB_ID' in os.environ:
        task = f'{os.environ["SLURM_ARRAY_JOB_ID"]}_{os.environ["SLURM_ARRAY_TASK_ID"]}'
    print(f'saved; task {task} goes back into the queue', flush=True)
    done = subprocess.run(['scontrol', 'requeue', task], capture_output=True, text=True)
    if done.returncode:
        print(f'refused by Slurm ({done.stderr.strip()}); the same command goes on with the grid')


def _steps(workdir: str) -> int:
    """Sum of the steps of all runs of the grid: what grows as long as somebody gets on."""
    return sum(run.step for run in _runs(workdir))


def _is_over(workdir: str) -> bool:
    return all(run.state in ('done', 'failed') for run in _runs(workdir))


def _runs(workdir: str) -> list[ledger.Run]:
    found = ledger.read(workdir)
    return [run for cell in found.cells for run in ledger.runs_of(workdir, cell.id, found.seeds)]
