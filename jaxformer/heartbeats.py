"""Signs of life of the processes of a run, in the table of process 0: `jaxformer.processes` says what that is.

Each process writes a count every BEAT seconds. Process 0 takes one whose count stands still for SILENT seconds for dead
(a machine that has gone, a process that was suspended); the others watch process 0 in the same way, and hear from it of
the rest. Whoever learns of a death ends its process with one line, whatever its main thread waits for: a collective
operation with a dead process may wait forever. JAX's own check, after 100 seconds, aborts without a word of Python.

A process that was killed is noticed at once on CPU, as its connections break. Where process 0 was killed JAX aborts the
others within seconds; there the line is said by a handler of that abort.
"""

import contextlib
import ctypes
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from jaxformer.errors import RunError

BEAT = 5.0
SILENT = 40.0

LISTEN = 2.5 * BEAT
"""Seconds in which a living process has shown a sign of life."""

GRACE = 10.0
"""Seconds that the main thread has for an end of its own, after another process said that it stops."""

REMEDY = 'start all processes again with the same command: they go on from the newest checkpoint'

_STOPPED, _BEATS = 'jaxformer/stopped', 'jaxformer/beats/'
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


class LostError(RunError):
    """Another process has gone, or stopped by itself.

    found: which one. cause: in the words of what noticed it. exit_status: that of the other one, where it said so.
    """

    def __init__(self, found: str, cause: str = '', exit_status: int = 1) -> None:
        remedy = '' if exit_status > 128 else f'; {REMEDY}'  # who was stopped by a signal said it
        super().__init__(found + remedy + (f' ({cause})' if cause else ''))
        self.found = found
        self.exit_status = exit_status if exit_status > 128 else 1


class Heartbeats:
    """Those of this process, and an ear for those of the others.

    last_words: called with what ends the process, where that is not its main thread's doing.
    """

    def __init__(self) -> None:
        self.last_words: Callable[[RunError], None] | None = None
        self._ending = threading.Lock()  # taken by whoever ends the process, and never given back
        self._index, self._number = 0, 1
        self._client: Any = None
        self._heard: LostError | None = None  # why another process stops
        self._seen: dict[int, tuple[int, float]] = {}  # of each that is watched the last count, and when it was new

    @contextlib.contextmanager
    def beating(self, client: Any, index: int, number: int) -> Iterator[None]:
        """Beats and listens while the context lasts. client: of the table."""
        self._client, self._index, self._number = client, index, number
        watched = range(1, number) if index == 0 else (0,)
        self._seen = {name: (-1, time.monotonic()) for name in watched}
        over = threading.Event()
        for task in (self._beat, self._judge):
            threading.Thread(target=task, args=(over,), name='heartbeats', daemon=True).start()
        gone = 'process 0 has gone or is out of reach' if index else 'JAX gave the other processes up'
        try:
            with self.aborting(LostError(gone)):
                yield
        finally:
            over.set()

    @contextlib.contextmanager
    def aborting(self, error: RunError, status: int = 1) -> Iterator[None]:
        """Where JAX aborts the process while the context lasts, `error` is the last thing it says."""

        def aborted(number: int) -> None:  # on the thread that aborts; the others go on while this one is in here
            self._end(self._heard or error, status)

        libc, handler = ctypes.CDLL(None), _HANDLER(aborted)
        libc.signal.restype = ctypes.c_void_p
        before = libc.signal(signal.SIGABRT, handler)
        try:
            yield
        finally:
            libc.signal(signal.SIGABRT, ctypes.c_void_p(before))

    def tell(self, text: str, exit_status: int) -> None:
        """Says to all why this process stops. Its own end is the main thread's business from here on."""
        self._ending.acquire(blocking=False)
        with contextlib.suppress(Exception):  # another said something before, or process 0 is not there
            self._client.key_value_set(_STOPPED, json.dumps([text, exit_status]))

    def who_has_gone(self, cause: str) -> LostError:
        """Names the processes that show no sign of life any more, or says what another one does; it listens for LISTEN
        seconds."""
        try:
            before, until = self._beats(), time.monotonic() + LISTEN
            while time.monotonic() < until:
                if said := self._listen(until - time.monotonic()):
                    return said
            after = self._beats()
        except Exception:  # noqa: BLE001 - in whatever form it says so: there is no table any more
            return LostError('process 0 has gone or is out of reach', cause)
        silent = [name for name in range(self._number) if name != self._index and before.get(name) == after.get(name)]
        if not silent:
            return LostError(f'all {self._number} processes live, but one was not ready in time', cause)
        return LostError(f'process {_names(silent)} of {self._number} has gone or is out of reach', cause)

    def _beat(self, over: threading.Event) -> None:
        """A thread: shows life and looks for it. A process 0 that hangs may hold it up forever."""
        for count in itertools.count():
            next_beat = time.monotonic() + BEAT
            with contextlib.suppress(Exception):  # process 0 cannot be reached: its silence grows
                self._client.key_value_set(f'{_BEATS}{self._index}', str(count), allow_overwrite=True)
                for name, beat in self._beats().items():
                    if name in self._seen and beat != self._seen[name][0]:
                        self._seen[name] = beat, time.monotonic()
                self._listen(BEAT)
            if over.wait(max(0.0, next_beat - time.monotonic())):
                return

    def _judge(self, over: threading.Event) -> None:
        """A thread: ends the process where another one has gone."""
        while not over.wait(1.0):
            silent = [name for name, (_, since) in self._seen.items() if time.monotonic() - since > SILENT]
            if self._heard:
                if over.wait(GRACE):
                    return
                self._end(self._heard, self._heard.exit_status)
            if silent:
                text = f'process {_names(silent)} of {self._number} gave no sign of life for {SILENT:.0f} seconds'
                if self._index == 0:
                    with contextlib.suppress(Exception):
                        self._client.key_value_set(_STOPPED, json.dumps([text, 1]))
                self._end(LostError(text))

    def _beats(self) -> dict[int, int]:
        found = self._client.key_value_dir_get(_BEATS)
        return {int(key.rpartition('/')[2]): int(count) for key, count in found}

    def _listen(self, seconds: float) -> LostError | None:
        """Why another process stops, as soon as it says so; None where none does within some seconds."""
        try:
            text, exit_status = json.loads(self._client.blocking_key_value_get(_STOPPED, max(1, int(1000 * seconds))))
            self._heard = LostError(text, exit_status=exit_status)
        except Exception as error:  # noqa: BLE001 - its types are private
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise
        return self._heard

    def _end(self, error: RunError, status: int = 1) -> NoReturn:
        """Ends the process, or leaves that to a main thread that is about to."""
        if not self._ending.acquire(blocking=False):
            time.sleep(3 * LISTEN)
        else:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                print(f'jaxformer: {error}', file=sys.stderr, flush=True)
            if self.last_words:
                with contextlib.suppress(Exception):  # nothing may keep it from its end
                    self.last_words(error)
            if self._index == 0:
                time.sleep(2)  # for the others to read why
        os._exit(status)


def _names(numbers: list[int]) -> str:
    return ', '.join(map(str, numbers)) or 'unknown'
