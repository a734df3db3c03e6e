"""The training of one cohort: the loop of `jaxformer.train.loop` over several runs at once."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxformer.ablate.together import Shared, free_bytes, stacked
from jaxformer.claims import Claim
from jaxformer.data.splits import Batch
from jaxformer.decode import cache
from jaxformer.errors import RunError
from jaxformer.schema import Config
from jaxformer.train import directory, record
from jaxformer.train.layerwise import Found
from jaxformer.train.member import Member, Pending, aside
from jaxformer.train.signals import Preempted, Stop, stop_signals
from jaxformer.train.state import TrainState
from jaxformer.train.writer import Progress

Outcome = dict[str, float] | Exception
"""The final metrics of a run, or why it has none."""


@dataclasses.dataclass
class _Dispatched:
    """A step of all members whose metrics are on their way; the examples of those that take part, by number.

    layers: what `Member.inspected` gave of those for whom it was due.
    """

    step: int
    metrics_C: dict[str, jax.Array]
    example_ids: dict[int, np.ndarray]
    layers: dict[int, Found]


class Members:
    """Runs that are trained together; `alive` are those whose outcome is still open, by their number.

    begun: when the process set to work on them, in seconds since 1970.
    """

    def __init__(self, shared: Shared, configs: Sequence[Config], paths: Sequence[epath.Path], begun: float) -> None:
        self.shared, self.configs, self.paths, self.begun = shared, configs, paths, begun
        self.claimed: dict[int, Claim] = {}
        self.alive: dict[int, Member] = {}
        self.held = [contextlib.ExitStack() for _ in configs]  # claims and files, by number
        self.outcomes: dict[int, Any] = {}
        self._slicing = threading.Lock()

    def outcomes_of_all(self) -> list[Outcome]:
        """Trains them; what came of each, in order.

        Raises:
          Preempted: a signal came; all that are alive are saved.
        """
        with stop_signals() as stop, contextlib.ExitStack() as closing:
            for held in self.held:
                closing.enter_context(held)
            try:
                self._claim()
                self._to_the_end(self._restored(), stop)
            except BaseException as error:
                error = stop.meant(error)
                for number in self.claimed.keys() - self.outcomes.keys():
                    self._out(number, error)
                if isinstance(error, Preempted) or not isinstance(error, Exception):
                    raise error  # noqa: TRY201 - it may be another one
        return [self.outcomes[number] for number in range(len(self.configs))]

    def _claim(self) -> None:
        for number, (cfg, path) in enumerate(zip(self.configs, self.paths, strict=True)):
            with self._of(number):
                if (metrics := directory.finished(cfg, path)) is not None:
                    self.outcomes[number] = metrics
                    continue
                self.claimed[number] = self.held[number].enter_context(directory.claimed(cfg, path))

    def _restored(self) -> dict[int, TrainState]:
        """The states to go on from, of those that could be restored."""
        states = {}
        program = self.shared.program
        for number, claim in self.claimed.items():
            with self._of(number):
                of_run = record.Record(self.configs[number], self.paths[number], claim)
                run = Member(self.configs[number], self.paths[number], program, of_run, self.begun, len(self.claimed))
                states[number] = run.restored()
                self.held[number].enter_context(run.writing())
                self.alive[number] = run
        return states

    def _to_the_end(self, states: dict[int, TrainState], stop: Stop) -> None:
        """Every update that is left to any, then the farewell of those that got there."""
        stop.polled = True
        for number, run in list(self.alive.items()):
            with self._of(number):
                run.make_up_for_evaluation(states[number])
        left = {number: state for number, state in states.items() if number in self.alive}
        with Progress(self.configs[0].train.num_steps, self.shared.program.counted, len(left)) as progress:
            self._train(left, stop, progress)
        for number in list(self.alive):
            self._out(number)

    def _train(self, states: dict[int, TrainState], stop: Stop, progress: Progress) -> None:
        """The updates. A member that a checkpoint has put ahead of the others waits for them."""
        begun = {number: self.alive[number].step for number in states}
        first, last = min(begun.values(), default=0), self.configs[0].train.num_steps
        if not begun or first == last:
            return
        row = {number: row for row, number in enumerate(states)}
        together = self.shared.step(len(row))
        rows = together.rows(len(row))
        state_C = jax.device_put(stacked(list(states.values()), rows), together.sharding)
        values_C = stacked([self.alive[number].values for number in row], rows)
        states.clear()
        progress.compiling(first)
        pending: _Dispatched | None = None
        for step in range(first + 1, last + 1):
            batches = {number: next(run.batches) for number, run in self.alive.items() if begun[number] < step}
            if not self.alive:
                return
            if not batches:  # those behind have gone; the others are waited for by nobody
                continue
            filler = next(iter(batches.values()))
            self.shared.wait_for_step(filler)
            batch_C = stacked([batches.get(number, filler) for number in row], rows)
            active_C = np.array([number in batches for number in row] + [False] * (rows - len(row)))
            layers = self._inspected(step, batches, state_C, row)
            state_C, metrics_C = together(state_C, batch_C, values_C, active_C)
            if pending:
                self._look_at(pending, row, progress)
            pending = _Dispatched(step, metrics_C, _example_ids(batches), layers)
            stopped = stop.asked
            if stopped or any(run.due(step).anything for number, run in self.alive.items() if number in batches):
                self._look_at(pending, row, progress)
                pending = None
                self._after(sorted(self.alive.keys() & batches.keys()), stopped, state_C, row)
            if stopped:
                raise Preempted(f'stopped by a signal; step {step} is saved; the same command goes on from there')

    def _inspected(
        self, step: int, batches: dict[int, Batch], state_C: TrainState, row: dict[int, int]
    ) -> dict[int, Found]:
        """`Member.inspected` of each that takes part, one after the other, where it is due."""
        found: dict[int, Found] = {}
        with aside([*self.alive.values()]):
            for number in self.alive.keys() & batches.keys():
                with self._of(number):
                    if (run := self.alive[number]).inspects(step):
                        placed = self.shared.program.placed(batches[number])
                        found[number] = run.inspected(self._state(state_C, row[number]), placed)
        return found

    def _state(self, state_C: TrainState, row: int) -> TrainState:
        """That of one member, where its own programs want it."""
        with self._slicing:  # it gathers from all devices: programs of two threads that do would wait for each other
            return jax.block_until_ready(jax.device_put(self.shared.member(state_C, row), self.shared.place))

    def _look_at(self, dispatched: _Dispatched, row: dict[int, int], progress: Progress) -> None:
        """`Member.look_at` of each that took part and is alive."""
        metrics_C = jax.device_get(dispatched.metrics_C)
        found = []
        for number, ids in dispatched.example_ids.items():
            if run := self.alive.get(number):
                with self._of(number):
                    own = {name: column[row[number]] for name, column in metrics_C.items()}
                    pending = Pending(dispatched.step, own, ids, dispatched.layers.get(number))
                    found.append((run.look_at(pending), run.speed))
        if found:
            losses, speeds = zip(*found, strict=True)
            progress.update(dispatched.step, sum(losses) / len(losses), sum(speeds))

    def _after(self, numbers: Sequence[int], stopped: bool, state_C: TrainState, row: dict[int, int]) -> None:
        """What is due to these members after the step that was looked at last: each saves, then each is evaluated."""
        evaluated = []
        for number in numbers:
            with self._of(number):
                run = self.alive[number]
                due = run.due(run.step)
                if stopped or due.save:
                    run.save(self._state(state_C, row[number]))
                if due.evaluate and not stopped:
                    evaluated.append(number)
        if not evaluated:
            return

        def evaluate(number: int) -> None:
            run = self.alive[number]
            run.evaluate(self._state(state_C, row[number]), run.due(run.step).decode)

        with aside([*self.alive.values()]):
            self.shared.wait_for_evaluation()
            with self._of(evaluated[0]):
                evaluate(evaluated[0])  # by itself, for it compiles
            pool = ThreadPoolExecutor(self._at_once())
            try:
                for number, end in [(number, pool.submit(evaluate, number)) for number in evaluated[1:]]:
                    with self._of(number):
                        end.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # who interrupts this waits for no other

    def _at_once(self) -> int:
        """How many members are evaluated at once: one per core, as far as their states and caches fit into memory."""
        devices = jax.local_devices()
        if jax.default_backend() != 'cpu' or len(devices) == 1:
            return 1
        state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.shared.program.target))
        each = state + cache.of_search(self.configs[0])
        return max(1, min(len(devices), int(free_bytes(devices[0]) // each)))

    @contextlib.contextmanager
    def _of(self, number: int) -> Iterator[None]:
        """What fails here is the outcome of one member, and leaves the others alone."""
        try:
            yield
        except Preempted:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self._out(number, error)

    def _out(self, number: int, error: BaseException | None = None) -> None:
        """The end of a run: its status is written, its directory is free."""
        run = self.alive.pop(number, None)
        if claim := self.claimed.get(number):
            try:
                record.Record(self.configs[number], self.paths[number], claim).ended(
                    run.step if run else 0, error, run.metrics if run else None
                )
            except RunError as broken:
                error = error or broken
        self.outcomes[number] = error or (run and run.metrics)
        self.held[number].close()


def _example_ids(batches: dict[int, Batch]) -> dict[int, np.ndarray]:
    return {number: batch['example_id'] for number, batch in batches.items()}
