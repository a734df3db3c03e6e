"""Runs a grid as a job array on Slurm; each task is a worker over the ledger (`jaxformer.ablate.slurm_task`).

GRID/slurm holds the log of each task, the script, and the ids of the jobs, so that the same command given again watches
those that are still in the queue instead of submitting a second array.
"""

import contextlib
import io
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from jaxformer import files, values
from jaxformer.ablate import ledger, plan, slurm_task
from jaxformer.errors import RunError, UserError

DIRECTORY, JOBS = 'slurm', 'jobs.json'
"""GRID/slurm, and the file in it that lists what was submitted."""

OPTIONS: Mapping[str, tuple[type, str | None, str]] = {
    'partition': (str, 'partition', 'where the tasks run'),
    'account': (str, 'account', 'who pays for them'),
    'qos': (str, 'qos', 'quality of service'),
    'constraint': (str, 'constraint', 'features that a node must have'),
    'exclude': (str, 'exclude', 'nodes to stay away from'),
    'timeout_min': (int, 'time', 'time limit of a task in minutes; without it the one of the partition'),
    'cpus_per_task': (int, 'cpus_per_task', 'cores of a task'),
    'gpus_per_task': (int, 'gpus_per_node', 'accelerators of a task'),  # which has one node
    'mem_gb': (float, 'mem', 'memory of a task in GB'),
    'parallel': (int, 'array_parallelism', 'tasks that run at a time'),
    'signal_s': (int, 'signal_delay_s', 'seconds before the time limit at which a task saves and is queued again'),
    'wait': (bool, None, 'stay until the grid is done, and write the report; false: submit and return'),
}
"""Name → (type, name that submitit has for it, meaning). `sbatch.NAME=value` is any other `#SBATCH --NAME=value`."""

MOST_TASKS = 1000  # Slurm's default for the largest array is 1001
POLL_SECONDS = (1.0, 15.0)  # from, up to: a queue must not be asked too often
GONE_SECONDS = 3.0  # after which a job that is out of the queue is looked for again
MOST_SILENT = 20  # times in a row, as far apart, that it need not answer


def run(
    grid_plan: plan.Plan,
    workdir: epath.PathLike,
    seeds: int,
    arguments: Sequence[str],
    workers: int = 0,
    options: str = '',
    *,
    say: Callable[[str], None] = print,
) -> int:
    """Submits the array, or finds it in the queue, and waits for the end of the grid, whose ledger is written.

    Args:
      arguments: `jaxformer`'s for one worker: `ablate --grid=… --workdir=… --launcher=inline …`.
      workers: number of tasks; 0 for one per run that is open.
      options: 'partition=gpu,timeout_min=60,…', see `OPTIONS`.

    Returns:
      The exit status: 0 the grid is done (or, without waiting, submitted), 1 a run failed or no task is left to do it.

    Raises:
      UserError: an option is unknown, there is no Slurm or no submitit here, or Slurm refuses the job.
      KeyboardInterrupt: stopped waiting; the tasks go on.
    """
    parameters, wait = parse(options)
    directory = _directory(workdir)
    paths = [planned.path for planned in plan.runs(grid_plan, workdir, seeds)]
    open_runs = sum(ledger.read_run(path).state not in ('done', 'failed') for path in paths)
    if not open_runs:
        say('Nothing is left to run.')
        return _exit_status(paths, say)
    jobs, live = recorded(directory, arguments), queue()
    if found := [job for job in jobs if job in live]:
        say(f'Job {", ".join(found)} of this grid is in the queue already.')
    else:
        found = [_submit(directory, arguments, min(workers or open_runs, open_runs, MOST_TASKS), parameters, not wait)]
        files.write_json(directory / JOBS, _entries(directory) + [{'job': found[0], 'arguments': list(arguments)}])
        say(f'Submitted job {found[0]}; the logs are in {directory}')
    say(f'Watch it: squeue --jobs={",".join(found)}, or jaxformer status --workdir={workdir}')
    if not wait:
        return 0
    try:
        _wait(found, paths, say)
    except KeyboardInterrupt:
        say(f'The tasks go on; the same command waits for them again, scancel {" ".join(found)} stops them.')
        raise
    return _exit_status(paths, say)


def parse(text: str) -> tuple[dict[str, Any], bool]:
    """(parameters by submitit's names, whether to wait) of --slurm='name=value,…'; values may have commas in them.

    Raises:
      UserError: a name is unknown, or a value is not of its type.
    """
    parameters: dict[str, Any] = {}
    further: dict[str, str] = {}
    wait = True
    for part in re.split(r',(?=[\w.-]+=)', text) if text else ():
        name, equals, written = (piece.strip() for piece in part.partition('='))
        if re.fullmatch(r'sbatch\.[\w-]+', name) and equals:
            further[name.removeprefix('sbatch.')] = written
            continue
        if name not in OPTIONS or not equals:
            known = ', '.join([*OPTIONS, 'sbatch.NAME'])
            raise UserError(f'--slurm={part}: no such option; name=value,… of {known}')
        kind, parameter, _ = OPTIONS[name]
        try:
            value = values.coerce('slurm', written, kind)
        except UserError as error:
            raise UserError(f'--slurm={name}={written}: {str(error).split(": ")[-1]}') from None
        if kind in (int, float) and not 0 < value < math.inf:
            raise UserError(f'--slurm={name}={written}: must be more than 0, and finite')
        if parameter is None:
            wait = value
        else:
            parameters[parameter] = value
    if 'mem' in parameters:
        parameters['mem'] = f'{math.ceil(parameters["mem"] * 1024)}M'
    return {'time': None, 'signal_delay_s': 120, **parameters, 'additional_parameters': further}, wait


def queue() -> dict[str, Counter[str]]:
    """Of each job of this user that is not over: the number of tasks by state, such as 'RUNNING', 'PENDING (Priority)'.

    Raises:
      RunError: Slurm does not answer.
    """
    command = ['squeue', '--noheader', '--array', f'--user={os.getuid()}', '--format=%F %T %r']
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunError(f'squeue: {_line(done.stderr)}; try the same command again when Slurm answers')
    jobs: dict[str, Counter[str]] = {}
    for line in done.stdout.splitlines():
        job, state, reason = line.split(maxsplit=2)
        if state == 'PENDING' and reason != 'None':
            state = f'{state} ({reason})'
        jobs.setdefault(job, Counter())[state] += 1
    return jobs


def recorded(directory: Path, arguments: Sequence[str]) -> list[str]:
    """Ids of the jobs that GRID/slurm knows of and that do what these arguments say."""
    return [entry['job'] for entry in _entries(directory) if entry['arguments'] == list(arguments)]


def _entries(directory: Path) -> list[dict[str, Any]]:
    path = directory / JOBS
    return files.read_json(path) if path.exists() else []


def _directory(workdir: epath.PathLike) -> Path:
    if '://' in os.fspath(workdir):
        raise UserError(f'--workdir={workdir}: Slurm needs a directory that all its nodes see; choose one')
    if shutil.which('sbatch') is None:
        raise UserError('--launcher=slurm: no sbatch here; run it on a cluster, or use another launcher')
    return Path(workdir).expanduser().absolute() / DIRECTORY


def _submit(directory: Path, arguments: Sequence[str], tasks: int, parameters: Mapping[str, Any], report: bool) -> str:
    """Submits the array; its job id."""
    os.environ.setdefault('SUBMITIT_LOG_LEVEL', 'NOCONFIG')  # else its import closes the handlers of everybody's logs
    try:
        import submitit
    except ImportError:
        raise UserError('--launcher=slurm: submitit is not installed; pip install submitit') from None
    cores = parameters.get('cpus_per_task')
    fixed: dict[str, Any] = {'job_name': 'jaxformer', 'stderr_to_stdout': True, 'wckey': None}
    further = {'requeue': True, **parameters['additional_parameters']}
    if cores:  # a step does not inherit it from its job
        fixed['srun_args'] = [f'--cpus-per-task={cores}']
    said = io.StringIO()
    before = set(directory.glob('*'))
    try:
        executor = submitit.SlurmExecutor(folder=directory)
        executor.update_parameters(**{**parameters, **fixed, 'additional_parameters': further})
        inputs = (list(arguments), str(directory.parent), report)
        with contextlib.redirect_stderr(said):
            jobs = executor.map_array(slurm_task.work, *([value] * tasks for value in inputs))
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        for left in set(directory.glob('*')) - before:  # a script that nobody runs
            left.unlink()
        raise UserError(
            f'--launcher=slurm: Slurm did not take the job ({_line(said.getvalue() or str(error))})'
        ) from None
    sys.stderr.write(said.getvalue())  # what the site has to say about jobs
    return jobs[0].job_id.split('_')[0]


def _wait(jobs: Sequence[str], paths: Sequence[epath.Path], say: Callable[[str], None]) -> None:
    """Until none of the jobs is in the queue; says what changes. Tasks that would find nothing to do are taken out."""
    pause, most = POLL_SECONDS
    shown, silent, gone = '', 0, False
    while True:
        try:
            live: Counter[str] = sum((tasks for job, tasks in queue().items() if job in jobs), Counter())
            silent = 0
        except RunError:  # a busy controller does not answer now and then
            silent += 1
            if silent == MOST_SILENT:
                raise
            time.sleep(most)
            continue
        if not live and gone:
            return
        gone = not live  # twice in a row: one that is put back into the queue may be out of it for a moment
        states = Counter(ledger.read_run(path).state for path in paths)
        if states.keys() <= {'done', 'failed'}:
            subprocess.run(['scancel', '--quiet', '--state=PENDING', *jobs], capture_output=True)
        text = f'runs: {_listed(states)}; tasks: {_listed(live)}'
        if text != shown:
            say(f'{time.strftime("%H:%M:%S")} {text}')
            shown, pause = text, POLL_SECONDS[0]
        time.sleep(GONE_SECONDS if gone else pause)
        pause = min(1.5 * pause, most)


def _exit_status(paths: Sequence[epath.Path], say: Callable[[str], None]) -> int:
    runs = [ledger.read_run(path) for path in paths]
    states = Counter(run.state for run in runs)
    say(f'{len(runs)} runs: {_listed(states)}')
    for run in runs:
        if run.state == 'failed':
            say(f'{run.path}: failed: {run.reason}')
    if not states.keys() <= {'done', 'failed'}:
        say('No task is left that would do the rest; see the logs, the same command goes on.')
    return int(states['done'] < len(runs))


def _listed(counts: Mapping[str, int]) -> str:
    return ', '.join(f'{number} {name.lower()}' for name, number in sorted(counts.items()))


def _line(text: str) -> str:
    """What a program said, on one line."""
    return ' / '.join(line.strip() for line in text.splitlines() if line.strip()) or 'no reason given'
