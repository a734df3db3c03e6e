"""A run: one command that starts it, and goes on with it after whatever ended it.

What `train` does with a directory:
  1. A directory that holds a config must hold the same one. What may differ is what changes no update (but for its
     rounding): where data and compiled programs lie, how often something is logged, saved or evaluated, what happens
     after a number that is not finite, the mesh, and num_steps where the schedule does not depend on it.
  2. A run that is done is left alone: its metrics are returned.
  3. It takes the lock of the directory; a second live process is refused.
  4. The newest whole checkpoint is restored; damaged ones are named and passed over. Steps without a whole one are an
     error, no steps at all are a fresh start, with the parameters of train.start_from where that is set.
  5. The data iterator goes on where the checkpoint left it; dropout keys follow from seed and step. On one topology of
     CPU devices the run is bit-equal to one that never stopped.
  6. Lines of metrics.jsonl beyond the checkpoint are dropped and written anew, and an evaluation that was due at the
     checkpoint and is not there is made up for.
  7. A user's mistake leaves the directory as it was.
"""

import contextlib
import dataclasses
import time
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint, config, files, objectives, optim, runtime, sharding
from jaxformer.config import Config
from jaxformer.data import corpus as corpora
from jaxformer.data import pipeline, special_ids, too_few
from jaxformer.data.splits import PairSplit
from jaxformer.decode.error_rates import rate_names
from jaxformer.decode.predict import Decoder
from jaxformer.errors import RunError, UserError
from jaxformer.model import transformer
from jaxformer.train import directory, start
from jaxformer.train import state as states
from jaxformer.train.evaluate import Evaluator
from jaxformer.train.signals import Preempted, Stop, stop_signals
from jaxformer.train.step import compiled_step
from jaxformer.train.writer import METRICS, MetricWriter, Progress, read_metrics, write_environment, write_status


def train(cfg: Config, workdir: epath.PathLike) -> dict[str, float]:
    """Trains until train.num_steps and evaluates; the final metrics ('dev/loss', …).

    Raises:
      UserError: the directory cannot be used, or not with this config.
      RunError: the run failed (not-finite numbers, no whole checkpoint, a full disk); status.json says why.
      Preempted: SIGTERM or SIGINT came; everything up to the last finished step is saved.
    """
    workdir = epath.Path(workdir).expanduser()
    metrics = directory.finished(cfg, workdir)
    if metrics is not None:
        return metrics
    with directory.claimed(cfg, workdir), stop_signals() as stop:
        run = None
        try:
            run = _Run(cfg, workdir, stop)
            metrics = run.to_the_end(run.restored())
            write_status(workdir, 'done', run.step, cfg.train.num_steps, metrics=metrics)
            return metrics
        except UserError:
            raise
        except BaseException as error:
            if stop.asked and not stop.polled and not isinstance(error, Preempted):
                # Raised by the signal's handler inside code that made another exception of it, as NumPy's C code does.
                error = Preempted('stopped by a signal before the first step; the same command goes on')
            ended = 'preempted' if isinstance(error, (Preempted, KeyboardInterrupt)) else 'failed'
            reason = str(error) if isinstance(error, RunError) else f'{type(error).__name__}: {error}'
            with contextlib.suppress(RunError):  # a full disk must not hide what happened
                write_status(workdir, ended, run.step if run else 0, cfg.train.num_steps, reason)
            raise error


@dataclasses.dataclass
class _Pending:
    """A dispatched step whose metrics are still on their way from the device."""

    step: int
    metrics: dict[str, jax.Array]
    example_ids: np.ndarray


class _Run:
    """What a run works with, and `step`: the last one that is finished and whose numbers were looked at."""

    def __init__(self, cfg: Config, workdir: epath.Path, stop: Stop) -> None:
        self.cfg, self.workdir, self.stop = cfg, workdir, stop
        runtime.configure(cfg.runtime)
        corpus = corpora.load(cfg.data)
        special_ids.refuse_others(cfg.model, cfg.data, corpus.vocab.ids)
        self.vocab, self.split = corpus.vocab, corpus.split(cfg.eval.split)
        self.mesh = sharding.make_mesh(cfg.mesh)
        sharding.refuse_undivided(cfg, self.mesh)
        self.model = transformer.build(cfg.model, len(corpus.vocab), len(corpus.vocab.classes))
        self.optimizer = optim.build(cfg)
        self.target = states.abstract(self.model, self.optimizer, self.mesh)
        self.batches = pipeline.train_iterator(cfg, corpus, jax.process_index(), jax.process_count())
        self.update = compiled_step(cfg, self.model, self.optimizer, self.target)
        self.evaluator = Evaluator(cfg, self.model, self.mesh)
        self.decoder = Decoder(cfg, self.model, corpus.vocab, self.mesh)
        held_out = self.evaluator.batches(self.split)  # refuses one that has none now, not after the training
        too_few.warn(cfg.data, self.split.name, held_out.num_examples)
        self.step = 0
        self.skipping = False  # the last update was dropped
        self.counted = objectives.counted(cfg.model.family)
        self.tokens, self.since = 0.0, 0.0  # of the steps after the last line of metrics
        self.fresh = True  # no step of this process was looked at

    def restored(self) -> states.TrainState:
        """The state to go on from (rules 4 and 5); from here on the directory belongs to this config."""
        checkpoints = self.workdir / files.CHECKPOINTS
        step = checkpoint.newest_whole(checkpoints)
        if step is None:
            state = states.initialise(self.model, self.optimizer, self.cfg.seed, self.target)
            if self.cfg.train.start_from:
                state = state.replace(params=start.params_from(self.cfg, self.vocab, state.params, self.workdir))
        elif step > self.cfg.train.num_steps:
            raise UserError(
                f'config.train.num_steps={self.cfg.train.num_steps}: {self.workdir} is at step {step} already; '
                'ask for more steps, or use another --workdir'
            )
        else:
            directory.refuse_other_data(self.cfg, self.workdir)
            directory.refuse_another_vocabulary(self.workdir, self.vocab)
            state, data_state = checkpoint.restore(checkpoints, step, self.target)
            self.batches.set_state(data_state)
            self.step = step
            logging.info('%s: goes on from step %d', self.workdir, step)
        directory.mark(self.cfg, self.workdir, self.vocab)
        write_environment(self.workdir, self.mesh.shape, runtime.determinism())
        write_status(self.workdir, 'running', self.step, self.cfg.train.num_steps)
        return state

    def to_the_end(self, state: states.TrainState) -> dict[str, float]:
        """Every update that is left. The metrics of step t − 1 are looked at after step t was dispatched."""
        train = self.cfg.train
        with (
            MetricWriter(self.workdir, self.step) as self.writer,
            Progress(train.num_steps, self.counted) as self.progress,
        ):
            self.stop.polled = True
            metrics = self._make_up_for_evaluation(state)
            self.since = time.perf_counter()
            pending: _Pending | None = None
            if self.step < train.num_steps:
                self.progress.compiling(self.step)
            for step in range(self.step + 1, train.num_steps + 1):
                batch = next(self.batches)
                state, fresh = self.update(state, sharding.put_batch(batch, self.mesh), self.cfg.seed)
                if pending:
                    self._look_at(pending)
                pending = _Pending(step, fresh, batch['example_id'])
                stop, last = self.stop.asked, step == train.num_steps
                evaluate, decode = self._evaluation_due(step)
                if stop or evaluate or _due(step, train.checkpoint_every):
                    self._look_at(pending)  # nothing is saved or judged before its numbers were looked at
                    pending = None
                # While updates are dropped the state may be the culprit: good checkpoints do not make room for it.
                if stop or last or (_due(step, train.checkpoint_every) and not self.skipping):
                    self._save(state)
                if stop:
                    raise Preempted(f'stopped by a signal; step {step} is saved; the same command goes on from there')
                if evaluate:
                    metrics = self._evaluate(state.params, decode)
            return metrics

    def _evaluation_due(self, step: int) -> tuple[bool, bool]:
        """(losses, decoding too) after a step; the last step has both. Only sequences have references to decode for."""
        last = step == self.cfg.train.num_steps
        decode = isinstance(self.split, PairSplit) and (last or _due(step, self.cfg.eval.decode_every))
        return last or decode or _due(step, self.cfg.eval.every), decode

    def _make_up_for_evaluation(self, state: states.TrainState) -> dict[str, float]:
        """The evaluation that a kill took from the step gone on from; no metrics where nothing is missing."""
        evaluate, decode = self._evaluation_due(self.step)
        lines = read_metrics(self.workdir / METRICS)
        written = {name for line in lines if line['step'] == self.step for name in line}
        last = rate_names(self.cfg.data.name)[-1] if decode else 'loss'
        there = f'{self.split.name}/{last}' in written
        if self.step == self.cfg.train.num_steps or (self.step and evaluate and not there):
            return self._evaluate(state.params, decode)
        return {}

    def _save(self, state: states.TrainState) -> None:
        checkpoint.save(
            self.workdir / files.CHECKPOINTS,
            self.step,
            state,
            self.batches.get_state(),
            config.to_dict(self.cfg),
            self.cfg.train.keep_checkpoints,
        )
        write_status(self.workdir, 'running', self.step, self.cfg.train.num_steps)

    def _evaluate(self, params: Any, decode: bool) -> dict[str, float]:
        paused = time.perf_counter()
        metrics = self.evaluator.split_losses(params, self.split)
        if decode and isinstance(self.split, PairSplit):
            metrics |= self.decoder.split_error_rates(params, self.split)
        metrics = {f'{self.split.name}/{name}': value for name, value in metrics.items()}
        compiled = {'train': self.update, 'eval': self.evaluator.sums, 'decode': self.decoder.search}
        self.writer.write(self.step, metrics, compilations={name: jit.compilations for name, jit in compiled.items()})
        write_status(self.workdir, 'running', self.step, self.cfg.train.num_steps, metrics=metrics)
        self.since += time.perf_counter() - paused  # evaluation is not counted against the training's speed
        return metrics

    def _look_at(self, pending: _Pending) -> None:
        """Waits for a step's metrics, writes and shows what is due, refuses what is not finite."""
        train, step = self.cfg.train, pending.step
        values = {name: value.item() for name, value in jax.device_get(pending.metrics).items()}
        self.tokens += values['tokens']
        speed = self.tokens / max(time.perf_counter() - self.since, 1e-9)
        if _due(step, train.log_every) or step == train.num_steps or not values['finite']:
            line = {f'train/{name}': values[name] for name in ('loss', 'grad_norm', 'learning_rate', 'skipped')}
            line |= {f'train/{self.counted}': values['tokens'], f'train/{self.counted}_per_second': speed}
            ids = {'example_ids': pending.example_ids.tolist()} if train.log_example_ids else {}
            self.writer.write(step, line, **ids)
            self.tokens, self.since = 0.0, time.perf_counter()
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
            logging.warning('%s; the update was skipped (%d so far)', found, values['skipped'])
        self.step, self.skipping = step, not values['finite']
        self.progress.update(step, values['loss'], speed)
        if self.fresh:  # compiling is no part of the speed
            self.fresh, self.tokens, self.since = False, 0.0, time.perf_counter()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
