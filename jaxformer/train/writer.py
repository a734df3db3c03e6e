"""What a run tells the world: metrics.jsonl and TensorBoard events, status.json, environment.json, a progress line.

None of these functions asks which process it runs in: the loop calls them on process 0 only.
"""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import jax
from etils import epath

import jaxformer
from jaxformer import files
from jaxformer.errors import RunError, UserError

METRICS, STATUS, ENVIRONMENT = 'metrics.jsonl', 'status.json', 'environment.json'
STATES = ('running', 'done', 'failed', 'preempted')
STATUS_FIELDS = ('status', 'step', 'num_steps', 'reason', 'metrics', 'pid', 'host', 'started', 'updated')
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
# JSON has no such numbers: they are written as these texts, so that a reader sees which one it was.
_NOT_FINITE = {'nan': math.nan, 'inf': math.inf, '-inf': -math.inf}


class MetricWriter:
    """Appends metrics to `workdir/metrics.jsonl` (the source of truth) and to TensorBoard event files beside it.

    Opened for a run that stands at `step` (0 when new): whatever was written beyond that step by a process that was
    killed later is dropped from metrics.jsonl and hidden in TensorBoard, and what a series already has at `step`
    itself is not written again, so that no series meets a step twice.

    Raises:
      RunError: a file could not be written.
      UserError: metrics.jsonl has a line that is not JSON (a torn last line is dropped).
    """

    def __init__(self, workdir: epath.PathLike, step: int = 0):
        from tensorboardX.event_file_writer import EventsWriter  # late: only training needs it

        self._path = epath.Path(workdir) / METRICS
        self._step = step
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            before = self._path.read_bytes() if self._path.exists() else b''
            lines = [line for line in _lines(self._path, before) if line['step'] <= step]
            kept = ''.join(json.dumps(line, allow_nan=False) + '\n' for line in lines).encode()
            if kept != before:
                files.write_atomic(self._path, kept)
            self._written = {key for line in lines if line['step'] == step for key in line} - {'step', 'time'}
            self._file = self._path.open('a')
            # The event file's own name has a resolution of a second: a quick restart would overwrite it. Written
            # without tensorboardX's queue and thread, which lose what a kill finds in them and hang on a full disk.
            self._events = EventsWriter(os.fspath(self._path.parent / 'events'), f'.{os.getpid()}.{time.time_ns()}')
            if before:
                self._purge_events(step + 1)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def write(self, step: int, metrics: Mapping[str, float], **extra: Any) -> None:
        """Writes and flushes a line {"step", "time", **metrics, **extra}; `extra` (JSON values) is not in TensorBoard.

        A value that is not finite is written as "nan", "inf" or "-inf"; `read_metrics` turns it back into a number.
        """
        values = {key: float(value) for key, value in metrics.items()}
        if step <= self._step:
            values = {key: value for key, value in values.items() if key not in self._written}
            extra = {key: value for key, value in extra.items() if key not in self._written}
            if not values and not extra:
                return
        now = time.time()
        line = {'step': step, 'time': round(now, 3), **_encoded(values), **extra}
        try:
            self._file.write(json.dumps(line, allow_nan=False) + '\n')
            self._file.flush()
            self._write_events(step, now, values)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def close(self) -> None:
        """Closes the files. What a full disk did not take of a line was reported when it was written."""
        for file in (self._file, self._events):
            with contextlib.suppress(OSError):
                file.close()

    def __enter__(self) -> 'MetricWriter':
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write_events(self, step: int, now: float, values: Mapping[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for key, value in values.items():
            if not math.isfinite(value):  # TensorBoard draws none, and its writer warns of each
                continue
            self._events.write_event(Event(step=step, wall_time=now, summary=scalar(key, value)))
        self._events.flush()

    def _purge_events(self, step: int) -> None:
        """Tells TensorBoard to hide every earlier event at `step` or beyond."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._events.write_event(Event(step=step, wall_time=time.time(), session_log=start))
        self._events.flush()


def read_metrics(path: epath.PathLike) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl in order, "nan" and its like as numbers; a torn last line is left out.

    Raises UserError where another line is not JSON, FileNotFoundError where there is no file.
    """
    path = epath.Path(path)
    return [_decoded(line) for line in _lines(path, path.read_bytes())]


def write_status(
    workdir: epath.PathLike,
    status: str,
    step: int,
    num_steps: int,
    reason: str | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Writes `workdir/status.json` atomically: {"status", "step", "num_steps", "reason", "metrics", "pid", "host",
    "started", "updated"}, times in seconds since 1970. `started` is that of the run's first process, and `metrics`
    None keeps those that are there.
    """
    if status not in STATES:
        raise ValueError(f'status is {status!r}; one of {", ".join(STATES)}')
    before = read_status(workdir)
    now = round(time.time(), 3)
    if metrics is None:
        metrics = before['metrics'] if before else {}
    record = {
        'status': status,
        'step': step,
        'num_steps': num_steps,
        'reason': reason,
        'metrics': _encoded({key: float(value) for key, value in metrics.items()}),
        'pid': os.getpid(),
        'host': socket.gethostname(),
        'started': before['started'] if before else now,
        'updated': now,
    }
    path = epath.Path(workdir) / STATUS
    try:
        files.write_json(path, record)
    except OSError as error:
        raise _cannot_write(path, error) from error


def read_status(workdir: epath.PathLike) -> dict[str, Any] | None:
    """The content of `workdir/status.json`, None where there is none. Raises UserError where it is damaged."""
    path = epath.Path(workdir) / STATUS
    if not path.exists():
        return None
    try:
        status = files.read_json(path)
        missing = [name for name in STATUS_FIELDS if name not in status]
        if missing or status['status'] not in STATES:
            raise KeyError(missing)
        return {**status, 'metrics': _decoded(status['metrics'])}
    except (UserError, KeyError, TypeError, AttributeError):
        raise UserError(f'{path}: damaged; remove the file, the run goes on from its checkpoints') from None


def write_environment(
    workdir: epath.PathLike, mesh: Mapping[str, int], deterministic: Any, begun: float | None = None, together: int = 1
) -> None:
    """Adds a record of what this process runs on to the list in `workdir/environment.json`: one record per start.

    Args:
      mesh: devices along each axis (`mesh.shape` of a jax mesh).
      deterministic: the level that the run was asked for, as in the config.
      begun: when the process set to work on the run, in seconds since 1970; now without it.
      together: how many runs the process trains at once, and shares its time among.
    """
    path = epath.Path(workdir) / ENVIRONMENT
    try:
        earlier = files.read_json(path) if path.exists() else []
    except UserError:
        earlier = None
    if not isinstance(earlier, list):
        raise UserError(f'{path}: damaged; remove the file, nothing but the record of earlier starts is lost')
    try:
        files.write_json(path, [*earlier, environment(mesh, deterministic, begun, together)])
    except OSError as error:
        raise _cannot_write(path, error) from error


def environment(
    mesh: Mapping[str, int], deterministic: Any, begun: float | None = None, together: int = 1
) -> dict[str, Any]:
    """Versions, devices, flags and revision of this process, as JSON values. Starts the backend."""
    devices = jax.devices()
    versions = {'python': platform.python_version(), 'jaxformer': jaxformer.__version__}
    return {
        'time': round(begun or time.time(), 3),
        'host': socket.gethostname(),
        'pid': os.getpid(),
        'command': sys.argv,
        'system': platform.platform(),
        'versions': {**versions, **{name: importlib.metadata.version(name) for name in _PACKAGES}},
        'git': git_revision(),
        'backend': jax.default_backend(),
        'devices': {'kind': devices[0].device_kind, 'count': len(devices), 'local': jax.local_device_count()},
        'processes': jax.process_count(),
        'runs_together': together,
        'mesh': dict(mesh),
        'deterministic': deterministic,
        'flags': {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(('XLA_', 'JAX_', 'LIBTPU_'))
        },
        'matmul_precision': jax.config.values['jax_default_matmul_precision'],
        'x64': jax.config.values['jax_enable_x64'],
    }


def git_revision() -> dict[str, Any] | None:
    """{"revision", "dirty"} of the checkout that the package is tracked in; None where it is installed otherwise."""
    package = epath.Path(jaxformer.__file__).parent

    def git(*arguments: str) -> str:
        command = ['git', '-C', os.fspath(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git('ls-files', '--error-unmatch', '__init__.py')  # a virtual environment may lie in someone else's checkout
        return {'revision': git('rev-parse', 'HEAD'), 'dirty': bool(git('status', '--porcelain', '-uno', '.'))}
    except (OSError, subprocess.SubprocessError):
        return None


class Progress:
    """A line on stderr, "step 120/2000  loss 1.234  5,120 tokens/s  ETA 0:12:31": redrawn in place on a terminal,
    elsewhere a plain line every `every` seconds and at the last step. The ETA is from this process's own speed, of
    which its first step says nothing: it holds the compilation. `unit`: what is counted. `runs`: how many it is about.
    """

    def __init__(
        self, num_steps: int, unit: str = 'tokens', runs: int = 1, *, stream: TextIO | None = None, every: float = 30.0
    ):
        self._num_steps, self._unit = num_steps, unit
        self._loss = 'loss' if runs == 1 else f'mean loss of {runs} runs'
        self._stream = sys.stderr if stream is None else stream
        self._in_place = self._stream.isatty()
        self._every = 0.1 if self._in_place else every
        self._first: tuple[int, float] | None = None
        self._drawn = -math.inf
        self._open_line = False

    def compiling(self, step: int) -> None:
        """Says what a person waits for before the first step after `step`."""
        with contextlib.suppress(OSError):  # who read it has gone; the run has not
            self._draw(f'step {step}/{self._num_steps}  compiling')

    def update(self, step: int, loss: float, speed: float) -> None:
        """Call it as often as the numbers are at hand; it draws only when it is time to."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        if now - self._drawn < self._every and step < self._num_steps:
            return
        self._drawn = now
        line = f'step {step}/{self._num_steps}  {self._loss} {loss:.4g}'
        first, start = self._first
        if step > first:
            seconds = round((now - start) / (step - first) * (self._num_steps - step))
            eta = f'{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}'
            line += f'  {speed:,.0f} {self._unit}/s  ETA {eta}'
        with contextlib.suppress(OSError):
            self._draw(line)

    def _draw(self, line: str) -> None:
        if self._in_place:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f'\r{line[:width]}\x1b[K')
            self._open_line = True
        else:
            self._stream.write(line + '\n')
        self._stream.flush()

    def close(self) -> None:
        """Ends the line, so that what is printed next starts a new one."""
        if self._open_line:
            with contextlib.suppress(OSError):
                self._stream.write('\n')
                self._stream.flush()
            self._open_line = False

    def __enter__(self) -> 'Progress':
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _lines(path: epath.Path, content: bytes) -> Iterator[dict[str, Any]]:
    rows = content.split(b'\n')
    for number, row in enumerate(rows, start=1):
        last = number == len(rows)  # what follows the last line feed: nothing, or a torn line
        try:
            line = json.loads(row)
            line['step'] + 0
        except (ValueError, KeyError, TypeError):
            if last or (number == len(rows) - 1 and not rows[-1]):
                return
            raise UserError(f'{path}: line {number} is not a line of metrics; remove that line') from None
        if last:  # without its line feed it is torn, even where it reads well
            return
        yield line


def _encoded(values: Mapping[str, float]) -> dict[str, Any]:
    return {key: value if math.isfinite(value) else str(value) for key, value in values.items()}


def _decoded(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _NOT_FINITE[v] if isinstance(v, str) and v in _NOT_FINITE else v for k, v in line.items()}


def _cannot_write(path: epath.Path, error: OSError) -> RunError:
    return RunError(f'{path}: could not be written ({error.strerror or error}); free space or choose another workdir')
