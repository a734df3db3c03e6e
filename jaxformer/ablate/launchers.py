"""How a grid is worked on: in this process, by several on this machine, or by an array of jobs on Slurm."""

from collections.abc import Callable, Sequence

from etils import epath

from jaxformer import hyperparameters
from jaxformer.ablate import launch, ledger, plan, workers
from jaxformer.ablate.together import mode_of
from jaxformer.errors import UserError
from jaxformer.schema import Config

LAUNCHERS = ('auto', 'inline', 'processes', 'slurm')

BYTES = 1.5e9
"""Memory that a worker should find: JAX and what it compiles take 0.7 GB before there is a model to speak of."""


def start(
    grid_plan: plan.Plan,
    workdir: epath.PathLike,
    seeds: int,
    arguments: Sequence[str],
    *,
    launcher: str = 'auto',
    number: int = 0,
    slurm: str = '',
    retry_failed: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """Does what is missing of the grid and returns the exit status: 0 done, 1 a run failed, 143 stopped by a signal.

    Args:
      arguments: `jaxformer`'s for this grid, `ablate --grid=…`, without those about workers and failed runs.
      number: of workers; 0 for as many as there are cores or devices (on Slurm: runs).
      slurm: options of the jobs.

    Raises:
      UserError: the launcher, the number or an option does not fit, the directory cannot be used, a cell is not as
        large as it was to be.
    """
    if launcher not in LAUNCHERS:
        raise UserError(f'--launcher={launcher}: no such launcher; choose one of {", ".join(LAUNCHERS)}')
    if number < 0:
        raise UserError(f'--workers={number}: a number of processes; 0 for as many as there are cores or devices')
    if slurm and launcher != 'slurm':
        raise UserError(f'--slurm={slurm}: are options of --launcher=slurm; add that, or leave them out')
    if launcher == 'inline':
        outcome = launch.run(grid_plan, workdir, seeds, workers=number or 1, retry_failed=retry_failed, say=say)
        return outcome.exit_code
    planned = launch.prepare(grid_plan, workdir, seeds, retry_failed, say)
    worker = [*arguments, '--launcher=inline']
    if launcher == 'slurm':
        from jaxformer.ablate import slurm as jobs

        worker.append(f'--workers={number or len(planned)}')
        return jobs.run(grid_plan, workdir, seeds, worker, number, slurm, say=say)
    open_runs = [item.config for item in planned if ledger.read_run(item.path).state in ('missing', 'preempted')]
    processes = choose(launcher, number, open_runs)
    if processes == 1:
        return launch.run(grid_plan, workdir, seeds, say=say).exit_code
    return workers.run(planned, [*worker, f'--workers={processes}'], processes, say=say)


def choose(launcher: str, number: int, open_runs: Sequence[Config]) -> int:
    """How many processes work on the grid, this one alone where it is 1.

    'auto' takes several where there are two runs to do, and two cores of a machine without accelerators or two GPUs,
    of which each process can be given its own; all the devices of a TPU belong to one process. On the CPU as many as
    there are cores, memory, and programs to compile: the cohorts of a process are spread over the cores it has. What is
    asked for by its number is not refused.

    Raises:
      UserError: more workers than GPUs.
    """
    if len(open_runs) < 2 or number == 1:
        return 1
    backend, devices = workers.machine()
    if backend == 'gpu' and number > devices:
        raise UserError(f'--workers={number}: there are {devices} GPUs, and a worker needs one; ask for no more')
    if backend not in ('cpu', 'gpu'):
        if launcher == 'processes':
            raise UserError(f'--launcher=processes: not on a {backend}, which one process has; use --launcher=inline')
        return 1
    if number:
        return min(number, len(open_runs))
    if backend == 'gpu':
        return min(devices, len(open_runs))
    parts = len(open_runs) if launcher == 'processes' else _parts(open_runs)
    return int(min(devices, max(workers.available_bytes() // BYTES, 1), parts))


def _parts(open_runs: Sequence[Config]) -> int:
    """Into how many parts runs fall that share nothing compiled: programs, and runs that are trained alone."""
    together = {hyperparameters.program(cfg) for cfg in open_runs if mode_of(cfg, 'cpu')}
    return len(together) + sum(mode_of(cfg, 'cpu') is None for cfg in open_runs)
