"""A run: one command that starts it, and goes on with it after whatever ended it.

What `train` does with a directory:
  1. It takes the lock of the directory; a second live process is refused.
  2. A directory that holds a config must hold the same one. What may differ is what changes no number of the training:
     where data and compiled programs lie, how often something is logged, saved or evaluated, the mesh, and num_steps
     where the schedule does not depend on it.
  3. A run that is done is left alone: its metrics are returned.
  4. The newest whole checkpoint is restored; damaged ones are named and passed over. Steps without a whole one are an
     error, no steps at all are a fresh start.
  5. The data iterator goes on where the checkpoint left it; dropout keys follow from seed and step. On one topology of
     CPU devices the run is bit-equal to one that never stopped.
  6. Lines of metrics.jsonl beyond the checkpoint are dropped and written anew.
"""

import contextlib
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh

from jaxformer import checkpoint, config, files, optim, runtime, sharding
from jaxformer.config import Config
from jaxformer.data import corpus as corpora
from jaxformer.data import pipeline
from jaxformer.decode.predict import Decoder
from jaxformer.errors import RunError, UserError
from jaxformer.files import CHECKPOINTS, CONFIG, VOCAB
from jaxformer.model import transformer
from jaxformer.train import state as states
from jaxformer.train.evaluate import Evaluator
from jaxformer.train.step import train_step
from jaxformer.train.writer import MetricWriter, Progress, read_status, write_environment, write_status

FREE_ON_RESUME = ('data.dir', 'train.log_every', 'train.log_example_ids', 'train.checkpoint_every', 'train.nan_limit',
                  'train.keep_checkpoints', 'eval.', 'mesh.', 'runtime.')  # fmt: skip
"""Fields (or groups) that may differ from the config a directory was started with: they change no update."""


class Preempted(RunError):
    """A signal ended the run; it is saved, and the same command goes on with it."""


def train(cfg: Config, workdir: epath.PathLike) -> dict[str, float]:
    """Trains until train.num_steps and evaluates; the final metrics ('dev/loss', …).

    Raises:
      UserError: the directory cannot be used with this config.
      RunError: the run failed (not-finite numbers, no whole checkpoint, a full disk); status.json says why.
      Preempted: SIGTERM or SIGINT came; everything up to the last finished step is saved.
    """
    workdir = epath.Path(workdir)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with files.lock(workdir / '.lock'):
            _claim(cfg, workdir)
            status = read_status(workdir)
            if status and status['status'] == 'done' and status['step'] == cfg.train.num_steps:
                return status['metrics']
            return _run(cfg, workdir)
    except PermissionError as error:
        raise UserError(f'--workdir={workdir}: {error.strerror}; choose a directory that can be written') from error
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f'--workdir={workdir}: {error.filename} is a file; choose a directory') from error
    except OSError as error:
        raise RunError(f'--workdir={workdir}: {error.strerror or error}; mend it and run the same command again') from error


def _claim(cfg: Config, workdir: epath.Path) -> None:
    """Writes the config, or holds it against the one the directory was started with (rule 2)."""
    path = workdir / CONFIG
    if path.exists():
        started = config.from_dict(files.read_json(path))
        for field, (before, now) in config.diff(started, cfg).items():
            extends = field == 'train.num_steps' and cfg.optim.schedule in ('noam', 'constant')
            if not extends and not field.startswith(FREE_ON_RESUME):
                raise UserError(
                    f'{path}: config.{field} is {before!r} there and {now!r} here; '
                    'use the same value, or another --workdir for another run'
                )
    files.write_json(path, config.to_dict(cfg))


def _run(cfg: Config, workdir: epath.Path) -> dict[str, float]:
    """Everything between the lock and the final status."""
    runtime.configure(cfg.runtime)
    corpus = corpora.load(cfg.data)
    mesh = sharding.make_mesh(cfg.mesh)
    model = transformer.build(cfg.model, len(corpus.vocab))
    optimizer = optim.build(cfg)
    files.write_json(workdir / VOCAB, corpus.vocab.to_json())

    target = states.abstract(model, optimizer, mesh)
    batches = pipeline.train_iterator(cfg, corpus, jax.process_index(), jax.process_count())
    step = checkpoint.newest_whole(workdir / CHECKPOINTS)
    if step is None:
        state, step = states.initialise(model, optimizer, cfg.seed, target), 0
    else:
        state, data_state = checkpoint.restore(workdir / CHECKPOINTS, step, target)
        batches.set_state(data_state)
        logging.info('%s: goes on from step %d', workdir, step)

    write_environment(workdir, mesh.shape, runtime.determinism())
    write_status(workdir, 'running', step, cfg.train.num_steps)
    update = runtime.CountedJit(functools.partial(train_step, model=model, optimizer=optimizer, cfg=cfg), donate_argnums=0)
    with (
        MetricWriter(workdir, step) as writer,
        Progress(cfg.train.num_steps) as progress,
        _signals() as stop_asked,
    ):
        run = _Run(cfg, workdir, mesh, update, batches, writer, progress, stop_asked,
                   Evaluator(cfg, model, mesh), Decoder(cfg, model, corpus, mesh), corpus.split(cfg.eval.split))  # fmt: skip
        try:
            metrics = run.to_the_end(state, step)
        except Preempted as error:
            write_status(workdir, 'preempted', run.step, cfg.train.num_steps, str(error))
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, RunError) else f'{type(error).__name__}: {error}'
            with contextlib.suppress(RunError):  # a full disk must not hide what happened
                write_status(workdir, 'failed', run.step, cfg.train.num_steps, reason)
            raise
    write_status(workdir, 'done', cfg.train.num_steps, cfg.train.num_steps, metrics=metrics)
    return metrics


@dataclasses.dataclass
class _Pending:
    """A dispatched step whose metrics are still on their way from the device."""

    step: int
    metrics: dict[str, jax.Array]
    example_ids: np.ndarray


@dataclasses.dataclass
class _Run:
    """The loop and what it works with. `step` is the last finished step whose numbers were looked at."""

    cfg: Config
    workdir: epath.Path
    mesh: Mesh
    update: runtime.CountedJit
    batches: Any
    writer: MetricWriter
    progress: Progress
    stop_asked: threading.Event
    evaluator: Evaluator
    decoder: Decoder
    split: corpora.Split
    step: int = 0
    tokens: float = 0.0  # since the last line of metrics
    since: float = 0.0

    def to_the_end(self, state: states.TrainState, start: int) -> dict[str, float]:
        """Updates from `start` on; the metrics of step t − 1 are looked at after step t was dispatched."""
        train, self.step, self.since = self.cfg.train, start, time.perf_counter()
        saved, metrics = start, {}
        pending: _Pending | None = None
        for step in range(start + 1, train.num_steps + 1):
            batch = next(self.batches)
            state, fresh = self.update(state, sharding.put_batch(batch, self.mesh))
            if pending:
                self._look_at(pending)
            pending = _Pending(step, fresh, batch['example_id'])
            last = step == train.num_steps
            evaluate = last or _due(step, self.cfg.eval.every)
            decode = last or _due(step, self.cfg.eval.decode_every)
            save = last or _due(step, train.checkpoint_every) or self.stop_asked.is_set()
            if evaluate or decode or save:  # nothing is saved or judged before its numbers were looked at
                self._look_at(pending)
                pending = None
            if save:
                saved = self._save(state, step)
            if self.stop_asked.is_set():
                raise Preempted(f'stopped by a signal at step {saved}, saved; the same command goes on from there')
            if evaluate or decode:
                metrics = self._evaluate(state.params, step, decode)
        return metrics or self._evaluate(state.params, start, decode=True)

    def _save(self, state: states.TrainState, step: int) -> int:
        checkpoint.save(
            self.workdir / CHECKPOINTS,
            step,
            state,
            self.batches.get_state(),
            config.to_dict(self.cfg),
            self.cfg.train.keep_checkpoints,
        )
        write_status(self.workdir, 'running', step, self.cfg.train.num_steps)
        return step

    def _evaluate(self, params: Any, step: int, decode: bool) -> dict[str, float]:
        name = self.cfg.eval.split
        paused = time.perf_counter()
        metrics = self.evaluator.split_losses(params, self.split)
        if decode:
            metrics |= self.decoder.split_error_rates(params, self.split)
        metrics = {f'{name}/{key}': value for key, value in metrics.items()}
        compiled = {'train': self.update, 'eval': self.evaluator.sums, 'decode': self.decoder.search}
        self.writer.write(step, metrics, compilations={key: jit.compilations for key, jit in compiled.items()})
        self.since += time.perf_counter() - paused  # evaluation is not counted against the training's speed
        return metrics

    def _look_at(self, pending: _Pending) -> None:
        """Waits for a step's metrics, refuses what is not finite, writes and shows what is due."""
        cfg, step = self.cfg, pending.step
        values = {name: value.item() for name, value in jax.device_get(pending.metrics).items()}
        if not values['finite']:
            found = f'step {step}: loss {values["loss"]:g}, gradient norm {values["grad_norm"]:g}'
            if cfg.train.nan_policy == 'stop':
                raise RunError(
                    f'{found}; the update was not applied and the checkpoints before it are whole. '
                    'Lower config.optim.learning_rate, set config.optim.clip_norm, or config.train.nan_policy=skip'
                )
            if values['skipped_in_row'] >= cfg.train.nan_limit:
                raise RunError(f'{found}; {values["skipped_in_row"]} updates in a row skipped (config.train.nan_limit)')
            logging.warning('%s; the update was skipped (%d so far)', found, values['skipped'])
        self.step = step
        self.tokens += values['tokens']
        speed = self.tokens / max(time.perf_counter() - self.since, 1e-9)
        self.progress.update(step, values['loss'], speed)
        if _due(step, cfg.train.log_every) or step == cfg.train.num_steps or not values['finite']:
            names = ('loss', 'grad_norm', 'learning_rate', 'tokens', 'skipped')
            line = {f'train/{name}': values[name] for name in names} | {'train/tokens_per_second': speed}
            ids = {'example_ids': pending.example_ids.tolist()} if cfg.train.log_example_ids else {}
            self.writer.write(step, line, **ids)
            self.tokens, self.since = 0.0, time.perf_counter()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; a second signal acts as if nobody listened."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
