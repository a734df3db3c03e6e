"""The host's side of one run: where its state and its batches come from, and what it writes into its directory."""

import collections
import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint, config, files, hyperparameters, optim, processes, sharding
from jaxformer.data import pipeline
from jaxformer.data.splits import Batch, PairSplit
from jaxformer.decode.error_rates import rate_names
from jaxformer.errors import RunError, UserError
from jaxformer.schema import Config
from jaxformer.train import directory, layerwise, start
from jaxformer.train import state as states
from jaxformer.train.layerwise import Found
from jaxformer.train.program import Program
from jaxformer.train.record import Record
from jaxformer.train.writer import METRICS, read_metrics

SPIKE_WINDOW, SPIKE_LEAST = 100, 10
"""A loss is compared with the median of so many before it, once there are so many."""


class NotFinite(RunError):  # noqa: N818 - what it says is what was found
    """Numbers of a step for which train.nan_policy=restore goes back (see `Member.back`)."""

    def __init__(self, found: str, step: int, loss: float) -> None:
        super().__init__(found)
        self.found, self.step, self.loss = found, step, loss


@dataclasses.dataclass
class Pending:
    """A dispatched step whose metrics are still on their way from the device. layers: as of `Member.inspected`."""

    step: int
    metrics: dict[str, jax.Array]
    example_ids: np.ndarray
    layers: Found | None = None


@dataclasses.dataclass(frozen=True)
class Due:
    """What is to be done after a step; `decode` is a part of an evaluation."""

    save: bool
    evaluate: bool
    decode: bool

    @property
    def anything(self) -> bool:
        return self.save or self.evaluate


class Member:
    """One run; `step` is the last one that is finished and whose numbers were looked at.

    record: what is written into the directory goes through it. begun: when it set to work (seconds since 1970), data
      and compiling included. together: how many runs share the process's time, this one included.
    """

    def __init__(
        self, cfg: Config, workdir: epath.Path, program: Program, record: Record, begun: float, together: int = 1
    ) -> None:
        self.cfg, self.workdir, self.program, self.record = cfg, workdir, program, record
        self.begun, self.together = begun, together
        self.values = hyperparameters.of(cfg)
        self.batches = pipeline.train_iterator(
            cfg, program.corpus, sharding.rows_here(cfg.train.batch_size, program.mesh)
        )
        self.step = 0
        self.speed = 0.0  # tokens per second
        self.metrics: dict[str, float] = {}  # of the last evaluation
        self._skipping = False  # the last update was dropped
        self._passed = 0  # batches that no update was made of, as `back` went past them
        self._returns: list[dict[str, Any]] = []  # of `back`, to the newest checkpoint
        self._returned = False  # the next line says so
        self._losses: collections.deque[float] = collections.deque(maxlen=SPIKE_WINDOW)  # where spikes are looked for
        self._tokens, self._since = 0.0, 0.0  # of the steps after the last line of metrics
        self._fresh = True  # no step of this process was looked at

    def restored(self) -> states.TrainState:
        """The state to go on from; from here on the directory belongs to this config."""
        state = self._newest()
        self.record.begin(self.step, self.program, self.begun, self.together)
        return state

    def _newest(self) -> states.TrainState:
        """The state of the newest whole checkpoint, a fresh one where there is none; `self` stands there, too."""
        cfg, program, workdir = self.cfg, self.program, self.workdir
        checkpoints = workdir / files.CHECKPOINTS
        self.step = self._passed = 0
        self._losses.clear()
        step = processes.on_first(lambda: checkpoint.newest_whole(checkpoints))
        if step is None:
            state = program.initialise(cfg.seed)
            if cfg.train.start_from:
                state = program.beginning(start.params_from(cfg, program.vocab, state.params, workdir), state)
        elif step > cfg.train.num_steps:
            raise UserError(
                f'config.train.num_steps={cfg.train.num_steps}: {workdir} is at step {step} already; '
                'ask for more steps, or use another --workdir'
            )
        else:
            directory.refuse_other_data(cfg, workdir)
            directory.refuse_another_vocabulary(workdir, program.vocab)
            state, data_state = checkpoint.restore(checkpoints, step, program.target)
            if (found := int(state.step)) != step:
                raise RunError(f'{checkpoints / str(step)}: holds the state of step {found}; it was renamed, remove it')
            self._losses.extend(data_state.pop('losses', ()))
            self.batches.set_state(data_state)
            self.step, self._passed = step, data_state['next_index'] - step
            logging.info('%s: goes on from step %d', workdir, step)
        return state

    def back(self, failed: NotFinite) -> states.TrainState:
        """The state of the newest whole checkpoint (a fresh one before the first), to go on from on other batches.

        All updates after that checkpoint are undone: one of them may have led to the step that failed. The batches
        they were made of, up to and with the one that failed, are passed over and come again in the next epoch only;
        step c + 1 after a return to c gets the batch after the one that failed, and the dropout key that is always
        that of step c + 1. The position goes into the next checkpoint, so a run that is killed afterwards resumes as
        exactly as any; killed before, it meets the same numbers again and goes back again.

        Raises:
          RunError: it failed train.nan_limit times in a row without a new checkpoint.
        """
        limit, end = self.cfg.train.nan_limit, failed.step + self._passed
        failures = len(self._returns) + 1
        if failures >= limit:
            raise RunError(
                f'{failed.found}; {failures} failures in a row without a new checkpoint (config.train.nan_limit); set '
                'config.optim.clip_norm or a lower config.optim.learning_rate in another --workdir'
            )
        self.record.claim.check()
        state = self._newest()
        self.batches.set_state({'next_index': end})
        passed, self._passed = end - self.step - self._passed, end - self.step
        logging.warning(
            '%s: %s; back to step %d, and past %d batches (%d of %d times at most)',
            self.workdir, failed.found, self.step, passed, failures, limit - 1,
        )  # fmt: skip
        self._returns.append({'step': failed.step, 'back_to': self.step, 'loss': str(failed.loss)})
        self._returned = True
        self.record.close()
        self.record.open(self.step)
        self.record.status('running', self.step)
        self._tokens, self._since = 0.0, time.perf_counter()
        return state

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the files of metrics open; the clock of the speed begins."""
        self.record.open(self.step)
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self.record.close()

    def example_ids(self, batch: Batch, placed: dict[str, jax.Array]) -> np.ndarray:
        """[B] of a whole step where they are logged, else those of this process's rows."""
        if self.cfg.train.log_example_ids and processes.number() > 1:
            return sharding.everywhere(placed['example_id'], self.program.mesh)
        return batch['example_id']

    def inspects(self, step: int) -> bool:
        """Whether `inspected` is due to a step."""
        return _every(self.cfg.train.inspect_every, step)

    def inspected(self, state: states.TrainState, batch: dict[str, jax.Array]) -> Found:
        """What goes on in the layers in a step, by the state before it and its placed batch."""
        assert self.program.layers
        return self.program.layers(state, batch, self.values)

    def paused(self, seconds: float) -> None:
        """So many seconds do not count against the training's speed."""
        self._since += seconds

    def due(self, step: int) -> Due:
        """After a step; the last step has everything. Only sequences have references to decode for."""
        last = step == self.cfg.train.num_steps
        pairs = isinstance(self.program.split, PairSplit)
        decode = pairs and (last or _every(self.cfg.eval.decode_every, step))
        evaluate = last or decode or _every(self.cfg.eval.every, step)
        # While updates are dropped the state may be the culprit: good checkpoints do not make room for it.
        save = last or (_every(self.cfg.train.checkpoint_every, step) and not self._skipping)
        return Due(save, evaluate, decode)

    def make_up_for_evaluation(self, state: states.TrainState) -> None:
        """The evaluation that a kill took from the step gone on from."""
        due = self.due(self.step)
        last = rate_names(self.cfg.data.name)[-1] if due.decode else 'loss'

        def is_there() -> bool:
            lines = read_metrics(self.workdir / METRICS)
            written = {name for line in lines if line['step'] == self.step for name in line}
            return f'{self.program.split.name}/{last}' in written

        there = processes.on_first(is_there)
        if self.step == self.cfg.train.num_steps or (self.step and due.evaluate and not there):
            self.evaluate(state, due.decode)

    def save(self, state: states.TrainState) -> None:
        """A checkpoint of the step that was looked at last."""
        self.record.claim.check()
        losses = {'losses': list(self._losses)} if self._losses else {}
        checkpoint.save(
            self.workdir / files.CHECKPOINTS,
            self.step,
            state,
            self.batches.get_state() | losses,
            config.to_dict(self.cfg),
            self.cfg.train.keep_checkpoints,
            self.record.best(),
        )
        self._returns.clear()
        self.record.status('running', self.step)

    def evaluate(self, state: states.TrainState, decode: bool) -> None:
        """Losses of the whole split, error rates too where `decode`; after the last step those of every example."""
        program, split, params = self.program, self.program.split, optim.judged(state.params, state.opt_state)
        examples = program.evaluator.examples(params, split)
        metrics = program.evaluator.totals(examples, split)
        if decode and isinstance(split, PairSplit):
            decoded = program.decoder.examples(params, split)
            metrics |= program.decoder.totals(decoded)
            examples |= decoded
        self.metrics = {f'{split.name}/{name}': value for name, value in metrics.items()}
        self.record.write(self.step, self.metrics, compilations=program.compilations())
        if self.step == self.cfg.train.num_steps:
            self.record.examples(split.name, examples)
        self.record.status('running', self.step, metrics=self.metrics)

    def look_at(self, pending: Pending) -> float:
        """Waits for a step's metrics, writes what is due, refuses what is not finite; the loss.

        Raises:
          NotFinite: a number is not finite, and train.nan_policy=restore: call `back`.
          RunError: a number is not finite, and train.nan_policy does not skip it (any more).
        """
        train, step, counted = self.cfg.train, pending.step, self.program.counted
        values = {name: value.item() for name, value in jax.device_get(pending.metrics).items()}
        self._tokens += values['tokens']
        self.speed = self._tokens / max(time.perf_counter() - self._since, 1e-9)
        spike = self._spike(step, values) if train.spike_factor else {}
        due = _every(train.log_every, step) or step == train.num_steps
        if due or spike or self._returned or not values['finite']:
            logged = ('loss', 'grad_norm', 'learning_rate', 'skipped', 'loss_scale')
            line = {f'train/{name}': values[name] for name in logged if name in values}
            line |= {f'train/{counted}': values['tokens'], f'train/{counted}_per_second': self.speed}
            ids = {'example_ids': pending.example_ids.tolist()} if train.log_example_ids else {}
            back = {'restored': self._returns} if self._returned else {}
            self.record.write(step, line | spike, **ids, **back)
            self._tokens, self._since, self._returned = 0.0, time.perf_counter(), False
        if pending.layers:
            self.record.write(step, layerwise.named(pending.layers))
        if not values['finite']:
            found = f'step {step}: loss {values["loss"]:g}, gradient norm {values["grad_norm"]:g}'
            if train.nan_policy == 'stop':
                raise RunError(
                    f'{found}; the update was not applied, and the checkpoints before it are whole. Go on with '
                    'config.train.nan_policy=skip or restore, or set config.optim.clip_norm or a lower '
                    'config.optim.learning_rate in another --workdir'
                )
            if train.nan_policy == 'restore':
                raise NotFinite(found, step, values['loss'])
            if values['skipped_in_row'] >= train.nan_limit:
                raise RunError(
                    f'{found}; {values["skipped_in_row"]} updates in a row skipped (config.train.nan_limit); set '
                    'config.optim.clip_norm or a lower config.optim.learning_rate in another --workdir'
                )
            logging.warning('%s: %s; the update was skipped (%d so far)', self.workdir, found, values['skipped'])
        self.step, self._skipping = step, not values['finite']
        if self._fresh:  # compiling is no part of the speed
            self._fresh, self._tokens, self._since = False, 0.0, time.perf_counter()
        return values['loss']

    def _spike(self, step: int, values: dict[str, float]) -> dict[str, float]:
        """train/spike, the loss in medians of those before it, where it is beyond train.spike_factor; it is warned of.

        The losses are saved with the checkpoint, so a resumed run finds what the straight one finds.
        """
        loss = values['loss']
        if not (values['finite'] and math.isfinite(loss)):
            return {}
        usual = statistics.median(self._losses) if len(self._losses) >= SPIKE_LEAST else math.inf
        self._losses.append(loss)
        if loss <= self.cfg.train.spike_factor * usual or not usual:
            return {}
        logging.warning(
            '%s: step %d: loss %.4g, %.3g times the usual %.4g', self.workdir, step, loss, loss / usual, usual
        )
        return {'train/spike': loss / usual}


@contextlib.contextmanager
def aside(runs: Sequence[Member]) -> Iterator[None]:
    """Evaluation, or a look at the layers, of one of the runs that share a process: no part of the training of any."""
    began = time.perf_counter()
    try:
        yield
    finally:
        for run in runs:
            run.paused(time.perf_counter() - began)


def _every(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
