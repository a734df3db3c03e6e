"""Several processes that train one run: how they meet, decide things together, and learn that one of them has gone.

Process 0 holds a small table that all can read and write (JAX's coordination service). Through it goes what has to be
decided once (`on_first`), whether all were started alike (`agree`), and why a process stopped. `jaxformer.heartbeats`
finds out who has gone without a word.

Nothing here starts a backend or compiles anything. With one process all of it is free.
"""

import contextlib
import importlib.metadata
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
from absl import logging
from jax._src import distributed  # the public functions tell the index by starting a backend, and have no table

from jaxformer import config
from jaxformer.errors import RunError, UserError
from jaxformer.heartbeats import Heartbeats, LostError
from jaxformer.schema import Config

MEETING, FAREWELL = 300, 20
"""Seconds that processes wait for one another at the start and at the end."""

DONE = RunError('this process is done; another one has gone before its end')

PACKAGES = ('jaxformer', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint')
"""What must have the same version everywhere."""

LOCAL = ('data.dir', 'runtime.compilation_cache')
"""Fields that may differ between processes: paths of their machine."""

_FOREVER_MS = 7 * 24 * 3600 * 1000
_count = itertools.count()
_heartbeats: Heartbeats | None = None
Result = TypeVar('Result')


def index() -> int:
    """The number of this process; 0 where there is one only."""
    return distributed.global_state.process_id


def number() -> int:
    """How many processes work on the run."""
    return distributed.global_state.num_processes or 1


@contextlib.contextmanager
def joined(coordinator: str = '', processes: int = 0, process: int = -1) -> Iterator[None]:
    """Meets the other processes of the run, and parts from them when all are done. Call it before JAX does anything.

    Args:
      coordinator: 'host:port' of process 0, with the number of `processes` and that of this `process` (from 0);
        'auto': all of it as JAX finds it (Slurm, TPU pods, Open MPI, Kubernetes); 'none': this process alone; '': as
        'auto' in a Slurm step of several tasks, as 'none' elsewhere.

    Raises:
      UserError: they cannot meet as asked.
    """
    global _heartbeats
    arguments = _arguments(coordinator, processes, process)
    if arguments is None:
        yield
        return
    _heartbeats = Heartbeats()
    nobody = RunError(
        f'the {processes or "other"} processes did not meet within {MEETING} s: start all of them, and see that each '
        f'can reach --coordinator={coordinator or "auto"}'
    )
    where = f'waits up to {MEETING} s for the other processes at {coordinator or "the address that JAX found"}'
    waiting = threading.Timer(10, print, [f'jaxformer: {where}'], {'file': sys.stderr, 'flush': True})
    waiting.daemon = True
    waiting.start()
    with _heartbeats.aborting(nobody):
        try:
            jax.distributed.initialize(**arguments, initialization_timeout=MEETING)
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f'--coordinator={coordinator or "auto"}: {_one_line(error)}; give HOST:PORT of process 0, '
                '--processes=N and --process=I (from 0), or --coordinator=none for a process alone'
            ) from error
        finally:
            waiting.cancel()
    if number() == 1:
        yield
        return
    if index():
        logging.set_verbosity(logging.ERROR)  # process 0 says it
    with _heartbeats.beating(distributed.global_state.client, index(), number()):
        try:
            yield
        except BaseException as error:
            if not getattr(error, 'everywhere', False):
                stopped = f'process {index()} on {socket.gethostname()} stopped: {_one_line(error)}'
                _heartbeats.tell(
                    error.found if isinstance(error, LostError) else stopped, getattr(error, 'exit_status', 1)
                )
            raise
    with _heartbeats.aborting(DONE, status=0), contextlib.suppress(Exception):
        _client().wait_at_barrier('jaxformer/done', 1000 * FAREWELL)


def _arguments(coordinator: str, processes: int, process: int) -> dict[str, Any] | None:
    """What `jax.distributed.initialize` is told, None for a process alone."""
    if coordinator in ('', 'auto', 'none') and (processes or process >= 0):
        raise UserError(f'--processes={processes} --process={process}: need --coordinator=HOST:PORT, that of process 0')
    if coordinator in ('none', ''):
        tasks = os.environ.get('SLURM_STEP_NUM_TASKS', '1')
        return {} if coordinator == '' and tasks.isdigit() and int(tasks) > 1 else None
    if coordinator == 'auto':
        return {}
    host, _, port = coordinator.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f'--coordinator={coordinator}: not HOST:PORT of process 0, nor auto, nor none')
    if not 0 <= process < processes:
        raise UserError(
            f'--processes={processes} --process={process}: give the number of processes, and of this one (from 0)'
        )
    if process == 0:
        _refuse_taken(coordinator, int(port))
    return {'coordinator_address': coordinator, 'num_processes': processes, 'process_id': process}


def _refuse_taken(coordinator: str, port: int) -> None:
    """Before JAX listens there: it may end the process without a word of Python."""
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(('', port))
        except OSError as error:
            raise UserError(f'--coordinator={coordinator}: {error.strerror}; choose another port') from error


def on_first(action: Callable[[], Result]) -> Result:
    """What `action` gives on process 0, a JSON value, on every process. It fails everywhere where it fails there.

    All processes have to call it, in the same order.
    """
    if number() == 1:
        return action()
    key = f'jaxformer/first/{next(_count)}'
    if index():
        return _told(json.loads(_client().blocking_key_value_get(key, _FOREVER_MS)))
    try:
        result = action()
    except Exception as error:
        _client().key_value_set(key, json.dumps({'user': isinstance(error, UserError), 'error': _one_line(error)}))
        raise
    _client().key_value_set(key, json.dumps({'result': result}))
    return result


def on_each(action: Callable[[], None]) -> None:
    """Does `action` on every process; where it fails on one it fails on all, with the number of that one."""
    if number() == 1:
        return action()
    key, error = f'jaxformer/each/{next(_count)}/', None
    try:
        action()
    except (UserError, RunError, OSError) as found:
        error = found
    _client().key_value_set(f'{key}{index()}', _one_line(error) if error else '')

    def look() -> None:
        for other in range(number()):
            if said := _client().blocking_key_value_get(f'{key}{other}', _FOREVER_MS):
                raise UserError(said if other == 0 else f'process {other}: {said}')

    try:
        on_first(look)
    except (UserError, RunError) as failed:
        raise (error or failed) from None


def meet() -> None:
    """Waits for all processes to come here; hours, if need be, as long as all of them live."""
    if number() > 1:
        _client().wait_at_barrier(f'jaxformer/meet/{next(_count)}', _FOREVER_MS)


def _told(said: dict[str, Any]) -> Any:
    if 'error' not in said:
        return said['result']
    kind = UserError if said['user'] else RunError
    raise kind(f'process 0: {said["error"]}')


def agree(cfg: Config) -> None:
    """Sees that every process was started with the same config and the same versions.

    Raises:
      UserError: one was not; it is named, with the field or the package.
    """
    if number() == 1:
        return
    ours = {
        'host': socket.gethostname(),
        'config': config.to_dict(cfg),
        'versions': {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    _client().key_value_set(f'jaxformer/start/{index()}', json.dumps(ours))

    def compare() -> None:
        for other in range(1, number()):
            found = _client().blocking_key_value_get(f'jaxformer/start/{other}', MEETING * 1000)
            if difference := _difference(cfg, ours, theirs := json.loads(found)):
                raise UserError(f'process {other} on {theirs["host"]}: {difference}')

    on_first(compare)


def _difference(cfg: Config, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """What another process was started with that is not as here, '' for nothing."""
    for name, version in ours['versions'].items():
        if (there := theirs['versions'].get(name)) != version:
            return f'{name} is {there} there and {version} on process 0; install the same versions everywhere'
    for field, (here, there) in config.diff(cfg, config.from_dict(theirs['config'])).items():
        if field not in LOCAL:
            return f'config.{field} is {there!r} there and {here!r} on process 0; start all with the same command'
    return ''


def explained(error: BaseException) -> BaseException:
    """`error`, or in its place, where it comes from a process that has gone, a LostError that names that one, and where
    it says that memory is out, a RunError with a remedy.

    Takes up to `heartbeats.LISTEN` seconds.
    """
    if 'RESOURCE_EXHAUSTED' in str(error) and not isinstance(error, RunError):
        return RunError(f'{_one_line(error)}; {SMALLER}')
    if number() == 1 or not is_loss(error):
        return error
    assert _heartbeats
    return _heartbeats.who_has_gone(_one_line(error))


def is_loss(error: BaseException) -> bool:
    """Whether an exception may say that another process cannot be reached any more."""
    return number() > 1 and any(word in str(error) for word in _LOSS)


SMALLER = (
    'set a smaller config.train.batch_size (to decode, config.eval.batch_size or beam_size), a greater '
    'config.train.accumulation, config.model.remat=block, config.model.attention.kernel=blockwise, or more devices '
    '(config.mesh)'
)
"""What helps where memory is out."""

_LOSS = ('Gloo', 'NCCL', 'UNAVAILABLE', 'DEADLINE_EXCEEDED', 'CANCELLED', 'Connection', 'Socket closed', 'ABORTED')


@contextlib.contextmanager
def last_words(say: Callable[[RunError], None]) -> Iterator[None]:
    """While the context lasts, `say` is called (by another thread) where this process is ended by the loss of one."""
    if _heartbeats is None:
        yield
        return
    _heartbeats.last_words = say
    try:
        yield
    finally:
        _heartbeats.last_words = None


def leave(status: int) -> NoReturn:
    """Ends this process of several: it waits for nobody, and JAX, which would, is not asked."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    assert _heartbeats
    with _heartbeats.aborting(DONE, status):
        if not index():
            time.sleep(2)  # for the others to read why; with process 0 goes the table
        os._exit(status)


def _client() -> Any:
    return distributed.global_state.client


def _one_line(error: BaseException) -> str:
    text = ' '.join(str(error).split()) or type(error).__name__
    return text if isinstance(error, (UserError, RunError)) else f'{type(error).__name__}: {text[:300]}'
