"""Cohorts: runs whose compiled program is the same, trained together as one program, each as if it were alone.

Members differ in seed, learning rate, weight decay, betas, dropout rates and label smoothing (see
`jaxformer.hyperparameters`). They have one start, one compile and one step in common. Each has its own initialisation,
dropout and order of the data; it saves, resumes, is evaluated and written about in its own directory as a run alone
is; and where one fails, the others go on.
"""

import math
import time
from collections.abc import Hashable, Sequence
from typing import Any

import jax
from etils import epath

from jaxformer import hyperparameters, runtime
from jaxformer.ablate.members import Members, Outcome
from jaxformer.ablate.together import Shared, mode_of
from jaxformer.errors import UserError
from jaxformer.schema import Config
from jaxformer.train import loop
from jaxformer.train.program import Program
from jaxformer.train.signals import Preempted


class Trainer:
    """Trains runs one cohort after the other, and keeps what is compiled for the next one of the same program.

    Where this process has not started JAX, each core that it may run on becomes a device of the CPU, and the members
    are spread over them: operations of small models do not divide among cores, whole members do.

    workers: how many such processes share this machine's memory.
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._cores = runtime.cores_as_devices()
        self._key: Hashable = None
        self._kept: Any = None

    def program(self, cfg: Config, /) -> Hashable:
        """Equal for runs that can be a cohort."""
        return hyperparameters.program(cfg)

    def train(self, configs: Sequence[Config], workdirs: Sequence[epath.PathLike], /) -> list[Outcome]:
        """Trains the first ones of some runs of one `program` to their ends, or goes on with what is there.

        Returns:
          Their outcomes, in order: of as many as are trained together, or of one.

        Raises:
          Preempted: a signal came; every run is saved up to its last finished step.
        """
        begun = time.time()
        runtime.configure(configs[0].runtime)  # before devices are asked for
        paths = [epath.Path(workdir).expanduser() for workdir in workdirs]
        alone = len(configs) == 1 or mode_of(configs[0]) is None
        key = (self.program(configs[0]), alone)
        if key != self._key:
            self._key = self._kept = None  # before anything new takes memory
            try:
                beside = len(configs) if self._workers == 1 else 0  # the other workers have the other cores
                self._kept = self._program(configs[0]) if alone else Shared(configs[0], beside)
            except UserError as error:
                return [error] * len(configs)
            self._key = key
        if alone:
            return [_alone(configs[0], paths[0], self._kept)]
        cohorts = math.ceil(len(configs) / self._kept.fitting(configs, self._workers))
        size = math.ceil(len(configs) / cohorts)  # the same for all of them
        return Members(self._kept, configs[:size], paths[:size], begun).outcomes_of_all()

    def _program(self, cfg: Config) -> Program:
        """Of a run alone, as `jaxformer train` has it: the CPU is one device to it."""
        return Program(cfg, jax.local_devices()[:1] if self._cores and jax.default_backend() == 'cpu' else None)


def _alone(cfg: Config, path: epath.Path, shared: Program) -> Outcome:
    """One run in the manner of `jaxformer train`."""
    try:
        return loop.train(cfg, path, shared)
    except Preempted:
        raise
    except Exception as error:  # noqa: BLE001 - whatever fails is the outcome of this run and of no other
        return error
