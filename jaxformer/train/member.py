"""The host's side of one run: where its state and its batches come from, and what it writes into its directory."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint, config, files, hyperparameters, runtime
from jaxformer.claims import Claim
from jaxformer.config import Config
from jaxformer.data import pipeline
from jaxformer.data.splits import PairSplit
from jaxformer.decode.error_rates import rate_names
from jaxformer.errors import RunError, UserError
from jaxformer.train import directory, per_example, start
from jaxformer.train import state as states
from jaxformer.train.program import Program
from jaxformer.train.signals import Preempted
from jaxformer.train.writer import METRICS, MetricWriter, read_metrics, write_environment, write_status


@dataclasses.dataclass
class Pending:
    """A dispatched step whose metrics are still on their way from the device."""

    step: int
    metrics: dict[str, jax.Array]
    example_ids: np.ndarray


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

    claim: of this process on the directory. begun: when it set to work (seconds since 1970), data and compiling
      included. together: how many runs share the process's time, this one included.
    """

    def __init__(
        self, cfg: Config, workdir: epath.Path, program: Program, claim: Claim, begun: float, together: int = 1
    ) -> None:
        self.cfg, self.workdir, self.program, self.claim = cfg, workdir, program, claim
        self.begun, self.together = begun, together
        self.values = hyperparameters.of(cfg)
        self.batches = pipeline.train_iterator(cfg, program.corpus, jax.process_index(), jax.process_count())
        self.step = 0
        self.speed = 0.0  # tokens per second
        self.metrics: dict[str, float] = {}  # of the last evaluation
        self._skipping = False  # the last update was dropped
        self._tokens, self._since = 0.0, 0.0  # of the steps after the last line of metrics
        self._fresh = True  # no step of this process was looked at

    def restored(self) -> states.TrainState:
        """The state to go on from; from here on the directory belongs to this config."""
        cfg, program, workdir = self.cfg, self.program, self.workdir
        checkpoints = workdir / files.CHECKPOINTS
        step = checkpoint.newest_whole(checkpoints)
        if step is None:
            state = program.initialise(cfg.seed)
            if cfg.train.start_from:
                state = state.replace(params=start.params_from(cfg, program.vocab, state.params, workdir))
        elif step > cfg.train.num_steps:
            raise UserError(
                f'config.train.num_steps={cfg.train.num_steps}: {workdir} is at step {step} already; '
                'ask for more steps, or use another --workdir'
            )
        else:
            directory.refuse_other_data(cfg, workdir)
            directory.refuse_another_vocabulary(workdir, program.vocab)
            state, data_state = checkpoint.restore(checkpoints, step, program.target)
            self.batches.set_state(data_state)
            self.step = step
            logging.info('%s: goes on from step %d', workdir, step)
        directory.mark(cfg, workdir, program.vocab)
        write_environment(workdir, program.mesh.shape, runtime.determinism(), self.begun, self.together)
        write_status(workdir, 'running', self.step, cfg.train.num_steps)
        return state

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the files of metrics open; the clock of the speed begins."""
        with MetricWriter(self.workdir, self.step) as self._writer:
            self._since = time.perf_counter()
            yield

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
        lines = read_metrics(self.workdir / METRICS)
        written = {name for line in lines if line['step'] == self.step for name in line}
        last = rate_names(self.cfg.data.name)[-1] if due.decode else 'loss'
        there = f'{self.program.split.name}/{last}' in written
        if self.step == self.cfg.train.num_steps or (self.step and due.evaluate and not there):
            self.evaluate(state.params, due.decode)

    def save(self, state: states.TrainState) -> None:
        """A checkpoint of the step that was looked at last."""
        self.claim.check()
        checkpoint.save(
            self.workdir / files.CHECKPOINTS,
            self.step,
            state,
            self.batches.get_state(),
            config.to_dict(self.cfg),
            self.cfg.train.keep_checkpoints,
        )
        write_status(self.workdir, 'running', self.step, self.cfg.train.num_steps)

    def evaluate(self, params: Any, decode: bool) -> None:
        """Losses of the whole split, error rates too where `decode`; after the last step those of every example."""
        paused = time.perf_counter()
        program, split = self.program, self.program.split
        examples = program.evaluator.examples(params, split)
        metrics = program.evaluator.totals(examples, split)
        if decode and isinstance(split, PairSplit):
            decoded = program.decoder.examples(params, split)
            metrics |= program.decoder.totals(decoded)
            examples |= decoded
        self.claim.check()
        self.metrics = {f'{split.name}/{name}': value for name, value in metrics.items()}
        self._writer.write(self.step, self.metrics, compilations=program.compilations())
        if self.step == self.cfg.train.num_steps:
            per_example.write(self.workdir, split.name, examples)
        write_status(self.workdir, 'running', self.step, self.cfg.train.num_steps, metrics=self.metrics)
        self._since += time.perf_counter() - paused  # evaluation is not counted against the training's speed

    def look_at(self, pending: Pending) -> float:
        """Waits for a step's metrics, writes what is due, refuses what is not finite; the loss.

        Raises:
          RunError: a number is not finite, and train.nan_policy does not skip it (any more).
        """
        train, step, counted = self.cfg.train, pending.step, self.program.counted
        values = {name: value.item() for name, value in jax.device_get(pending.metrics).items()}
        self._tokens += values['tokens']
        self.speed = self._tokens / max(time.perf_counter() - self._since, 1e-9)
        if _every(train.log_every, step) or step == train.num_steps or not values['finite']:
            line = {f'train/{name}': values[name] for name in ('loss', 'grad_norm', 'learning_rate', 'skipped')}
            line |= {f'train/{counted}': values['tokens'], f'train/{counted}_per_second': self.speed}
            self.claim.check()
            ids = {'example_ids': pending.example_ids.tolist()} if train.log_example_ids else {}
            self._writer.write(step, line, **ids)
            self._tokens, self._since = 0.0, time.perf_counter()
        if not values['finite']:
            found = f'step {step}: loss {values["loss"]:g}, gradient norm {values["grad_norm"]:g}'
            if train.nan_policy == 'stop':
                raise RunError(
                    f'{found}; the update was not applied, and the checkpoints before it are whole. Go on with '
                    'config.train.nan_policy=skip, or set config.optim.clip_norm or a lower config.optim.learning_rate '
                    'in another --workdir'
                )
            if values['skipped_in_row'] >= train.nan_limit:
                raise RunError(f'{found}; {values["skipped_in_row"]} updates in a row skipped (config.train.nan_limit)')
            logging.warning('%s: %s; the update was skipped (%d so far)', self.workdir, found, values['skipped'])
        self.step, self._skipping = step, not values['finite']
        if self._fresh:  # compiling is no part of the speed
            self._fresh, self._tokens, self._since = False, 0.0, time.perf_counter()
        return values['loss']


def finish(
    cfg: Config, workdir: epath.Path, claim: Claim, run: Member | None, error: BaseException | None = None
) -> None:
    """Says in status.json how a run ended: done, or by which exception.

    A user's mistake leaves no trace, and a directory that was lost is another process's.

    Raises:
      RunError: the run is done, and that could not be written.
    """
    if error is None:
        assert run is not None and run.step == cfg.train.num_steps
        claim.check()
        write_status(workdir, 'done', run.step, cfg.train.num_steps, metrics=run.metrics)
    elif not isinstance(error, UserError):
        ended = 'preempted' if isinstance(error, (Preempted, KeyboardInterrupt)) else 'failed'
        reason = str(error) if isinstance(error, RunError) else f'{type(error).__name__}: {error}'
        with contextlib.suppress(RunError):  # a full disk, or a directory that was lost, must not hide what happened
            claim.check()
            write_status(workdir, ended, run.step if run else 0, cfg.train.num_steps, reason)


def _every(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
