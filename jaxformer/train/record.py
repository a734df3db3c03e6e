"""What a run writes into its directory, which of several processes one does: process 0, which holds the claim."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from jaxformer import checkpoint, files, processes, runtime
from jaxformer.claims import Claim
from jaxformer.errors import RunError, UserError
from jaxformer.schema import Config
from jaxformer.train import directory, per_example
from jaxformer.train.program import Program
from jaxformer.train.signals import Preempted
from jaxformer.train.writer import METRICS, MetricWriter, read_metrics, write_environment, write_status


class Record:
    """Before it writes, each of these functions looks whether the directory is still this process's. Those below `open`
    want to be between `open` and `close`."""

    def __init__(self, cfg: Config, workdir: epath.Path, claim: Claim) -> None:
        self._cfg, self._workdir, self.claim = cfg, workdir, claim
        self._loss = f'{cfg.eval.split}/loss'

    def begin(self, step: int, program: Program, begun: float, together: int) -> None:
        """The directory belongs to this config from here on; `begun` and `together` as of `write_environment`."""
        self.claim.check()
        directory.mark(self._cfg, self._workdir, program.vocab)
        write_environment(self._workdir, program.mesh.shape, runtime.determinism(), begun, together)
        self.status('running', step)

    def status(
        self, state: str, step: int, reason: str | None = None, metrics: Mapping[str, float] | None = None
    ) -> None:
        self.claim.check()
        write_status(self._workdir, state, step, self._cfg.train.num_steps, reason, metrics)

    def ended(self, step: int, error: BaseException | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Says how the run ended: done, or by which exception.

        A user's mistake leaves no trace, and a directory that was lost is another process's.

        Raises:
          RunError: the run is done, and that could not be written.
        """
        if error is None:
            self.status('done', step, metrics=metrics)
        elif not isinstance(error, UserError):
            stopped = isinstance(error, KeyboardInterrupt) or getattr(error, 'exit_status', 1) == Preempted.exit_status
            ended = 'preempted' if stopped else 'failed'
            reason = str(error) if isinstance(error, RunError) else f'{type(error).__name__}: {error}'
            with contextlib.suppress(RunError):  # a full disk, or a lost directory, must not hide what happened
                self.status(ended, step, reason)

    def open(self, step: int) -> None:
        """Opens the files of metrics for a run that stands at `step`; what was written beyond it counts no more."""
        self._writer = MetricWriter(self._workdir, step)
        lines = read_metrics(self._workdir / METRICS)
        self._losses = {line['step']: line[self._loss] for line in lines if self._loss in line}

    def close(self) -> None:
        self._writer.close()

    def write(self, step: int, metrics: Mapping[str, float], **extra: Any) -> None:
        """A line of metrics; see `MetricWriter.write`."""
        self.claim.check()
        self._writer.write(step, metrics, **extra)
        if self._loss in metrics:
            self._losses[step] = metrics[self._loss]

    def best(self) -> list[int]:
        """The train.keep_best steps with a checkpoint and the least loss at their evaluation; of equals the later."""
        there = checkpoint.steps(self._workdir / files.CHECKPOINTS)
        known = [(self._losses[step], -step) for step in there if math.isfinite(self._losses.get(step, math.nan))]
        return [-step for _, step in sorted(known)[: self._cfg.train.keep_best]]

    def examples(self, split: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Results per example; see `per_example.write`."""
        self.claim.check()
        per_example.write(self._workdir, split, arrays)


class NoRecord(Record):
    """That of a process that writes nothing."""

    def begin(self, step: int, program: Program, begun: float, together: int) -> None:
        pass

    def status(
        self, state: str, step: int, reason: str | None = None, metrics: Mapping[str, float] | None = None
    ) -> None:
        pass

    def open(self, step: int) -> None:
        pass

    def close(self) -> None:
        pass

    def write(self, step: int, metrics: Mapping[str, float], **extra: Any) -> None:
        pass

    def best(self) -> list[int]:
        return []

    def examples(self, split: str, arrays: Mapping[str, np.ndarray]) -> None:
        pass


def of_this_process(cfg: Config, workdir: epath.Path, claim: Claim) -> Record:
    kind = Record if processes.index() == 0 else NoRecord
    return kind(cfg, workdir, claim)
