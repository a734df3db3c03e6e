"""SIGTERM and SIGINT as a request to save and leave."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from absl import logging

from jaxformer.errors import RunError, UserError


class Preempted(RunError):  # noqa: N818 - not an error of the run
    """A signal ended the run; what is saved is whole, and the same command goes on with it."""

    exit_status = 128 + signal.SIGTERM


class Stop:
    """Whether a signal came. Until `polled` is set there is nothing to save, and it ends the run where it stands."""

    def __init__(self) -> None:
        self.asked = False
        self.polled = False

    def meant(self, error: BaseException) -> BaseException:
        """What ended the run: before it is `polled`, the handler's exception may have come out of NumPy's C code, say,
        as another one."""
        if self.asked and not self.polled and not isinstance(error, (Preempted, UserError)):
            return Preempted('stopped by a signal before the first step; the same command goes on')
        return error

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self.polled:
            raise Preempted(f'stopped by {signal.Signals(number).name} before the first step; the same command goes on')
        logging.warning('%s: saves and leaves after this step', signal.Signals(number).name)


@contextlib.contextmanager
def stop_signals() -> Iterator[Stop]:
    """Listens for the first signal; a second one acts as if nobody listened. Outside the main thread none is heard."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop.ask(number, frame)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
