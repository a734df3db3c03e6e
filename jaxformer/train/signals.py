"""SIGTERM and SIGINT as a request to save and leave."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import processes
from jaxformer.errors import RunError, UserError


class Preempted(RunError):  # noqa: N818 - not an error of the run
    """A signal ended the run; what is saved is whole, and the same command goes on with it.

    everywhere: all processes of the run end by it, at the same step.
    """

    exit_status = 128 + signal.SIGTERM

    def __init__(self, text: str, everywhere: bool = False) -> None:
        super().__init__(text)
        self.everywhere = everywhere


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


class AskedAnywhere:
    """Whether a signal came to any process of the run; all of them are told the same after the same step.

    A sum over all processes is dispatched with each step and read with the next, so that no step waits for it.
    """

    def __init__(self, stop: Stop, mesh: Mesh) -> None:
        self._stop, self._said = stop, None
        self._everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._sum = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def now(self) -> bool:
        if processes.number() == 1:
            return self._stop.asked
        before, asked = self._said, np.array([self._stop.asked], np.int32)
        devices = self._everywhere.mesh.size
        flags = jax.make_array_from_callback((devices,), self._everywhere, lambda index: asked)
        self._said = self._sum(flags)
        return before is not None and bool(before)


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
