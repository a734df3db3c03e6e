"""Several workers of a grid on this machine, each a process with cores or an accelerator of its own.

Each is `jaxformer ablate … --launcher=inline`, a process of its own over the same ledger. What they say comes through
here, with the number of the worker before it. SIGTERM and SIGINT are passed on: every worker saves and leaves. A worker
whose parent has gone (its standard input ends) does the same. One that dies is reported; the others take its runs.
"""

import functools
import importlib.metadata
import importlib.util
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from jaxformer import runtime
from jaxformer.ablate import launch, ledger, plan
from jaxformer.train.signals import Preempted

PARENT = 'JAXFORMER_PARENT'
"""Environment variable of a worker: the pid of the process that started it."""

_PROBE = 'import jax; print(jax.default_backend(), jax.local_device_count())'
"""Asked of another process: one that has seen an accelerator holds memory of it until it ends."""


def run(
    planned: Sequence[plan.PlannedRun],
    arguments: Sequence[str],
    workers: int,
    *,
    command: Sequence[str] = (sys.executable, '-m', 'jaxformer.main'),
    say: Callable[[str], None] = print,
) -> int:
    """Starts the workers and waits for their ends; the exit status, as `launch.run`'s outcome has it.

    Args:
      planned: the runs that the grid consists of.
      arguments: `jaxformer`'s for one worker: `ablate --grid=… --workdir=… --launcher=inline …`.
      command: what a worker is, before its arguments.
    """
    places = _places(workers)
    always = {'PYTHONUNBUFFERED': '1'}
    lock = threading.Lock()

    def tell(line: str, by: Callable[[str], None] = say) -> None:
        with lock, suppress(OSError):  # who read it has gone; what the workers say is taken off them all the same
            by(line)

    def attend(index: int, process: subprocess.Popen[str]) -> None:
        listen = lambda: _listen(process.stderr, f'worker {index}: ', partial(tell, by=_warn))  # noqa: E731
        warnings = threading.Thread(target=listen, daemon=True)
        warnings.start()
        _listen(process.stdout, f'worker {index}: ', tell)
        warnings.join(10)
        if process.wait() not in (0, 1, Preempted.exit_status) and not stopped:
            tell(f'worker {index} (pid {process.pid}) {_end(process.returncode)}; the others take its runs')

    processes: list[subprocess.Popen[str]] = []
    attending = []
    with _passed_on(processes) as stopped:
        for index, (cores, variables) in enumerate(places):
            with _pinned(cores):  # a child has the cores of the thread that made it
                process = subprocess.Popen(
                    [*command, *arguments],
                    env={**os.environ, **variables, launch.WORKER: str(index), PARENT: str(os.getpid()), **always},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors='replace',
                    process_group=0,  # Ctrl-C at a terminal reaches this process only, which passes it on once
                )
            processes.append(process)
            if stopped:
                process.send_signal(signal.SIGTERM)
            attending.append(threading.Thread(target=attend, args=(index, process), daemon=True))
            attending[-1].start()
        for process, thread in zip(processes, attending, strict=True):
            process.wait()
            thread.join(10)  # not for ever: what the worker started may keep its output open
    states = Counter(ledger.read_run(item.path).state for item in planned)
    say(f'{len(planned)} runs: ' + ', '.join(f'{states[state]} {state}' for state in ledger.STATES if states[state]))
    if states.keys() <= {'done', 'failed'}:
        return int(states['failed'] > 0)
    if stopped or any(process.returncode == Preempted.exit_status for process in processes):
        say('The grid was stopped; the same command goes on where it was.')
        return Preempted.exit_status
    say('No worker is left that would do the rest; the same command goes on.')
    return 1


@functools.cache
def machine() -> tuple[str, int]:
    """(backend, number of its devices; of cores where it is the CPU), without starting it here."""
    backend, devices = 'cpu', 0
    if os.environ.get('JAX_PLATFORMS') != 'cpu' and _knows_accelerators():
        done = subprocess.run([sys.executable, '-c', _PROBE], capture_output=True, text=True)
        if done.returncode == 0:
            name, number = done.stdout.split()[-2:]
            backend, devices = name, int(number)
    return backend, len(runtime.available_cores()) if backend == 'cpu' else devices


def _knows_accelerators() -> bool:
    """Whether anything is installed through which JAX would find one: no second to spend on the question where not."""
    installed = any(importlib.util.find_spec(name) for name in ('jax_plugins', 'libtpu'))
    return installed or bool(importlib.metadata.entry_points(group='jax_plugins'))


def leave_with_parent() -> None:
    """In a worker that `run` started: when standard input ends, the parent has gone, and this is as SIGTERM."""
    if PARENT not in os.environ:
        return

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name='parent', daemon=True).start()


def _places(workers: int) -> list[tuple[Sequence[int], dict[str, str]]]:
    """Of each worker its cores and its environment variables."""
    backend, devices = machine()
    cores = runtime.available_cores()
    if backend == 'gpu':
        visible = os.environ.get('CUDA_VISIBLE_DEVICES', '')
        names = visible.split(',') if visible else [str(number) for number in range(devices)]
        return [(cores, {'CUDA_VISIBLE_DEVICES': names[index]}) for index in range(workers)]
    if workers >= len(cores):
        return [([cores[index % len(cores)]], {}) for index in range(workers)]
    edges = [round(index * len(cores) / workers) for index in range(workers + 1)]
    return [(cores[start:end], {}) for start, end in zip(edges, edges[1:], strict=False)]


def available_bytes() -> float:
    """Memory that processes could still take; without bound where this is not known."""
    try:
        lines = Path('/proc/meminfo').read_text().splitlines()
    except OSError:
        return math.inf
    return 1024.0 * next((int(line.split()[1]) for line in lines if line.startswith('MemAvailable:')), math.inf)


@contextmanager
def _pinned(cores: Sequence[int]) -> Iterator[None]:
    """This thread runs on these cores only, while the context lasts."""
    if not hasattr(os, 'sched_setaffinity'):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _passed_on(processes: Sequence[subprocess.Popen[str]]) -> Iterator[list[int]]:
    """Signals go to the processes while the context lasts; yields the list of those that came."""
    came: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for process in processes:
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(stream: IO[str] | None, prefix: str, tell: Callable[[str], None]) -> None:
    for line in stream or ():
        tell(prefix + line.rstrip())


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(status: int) -> str:
    return f'was killed by {signal.Signals(-status).name}' if status < 0 else f'ended with exit status {status}'
