"""Another run from whose distribution over symbols a run learns beside the labels (Hinton et al. 2015)."""

from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import files, objectives, sharding
from jaxformer.config import Config
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.runtime import CountedJit
from jaxformer.train.start import refuse_other_symbols
from jaxformer.train.writer import read_status

LOGITS = 'teacher'
"""In a batch: float32 [B, T, V], the logits of the teacher."""


class Teacher:
    """The run cfg.train.teacher, as 'RUN' (which must be done) or 'RUN@STEP'; its whole parameters lie on each device.

    Raises:
      UserError: there is no such run or step, it is not done, or it is of another family or has other symbols.
    """

    def __init__(self, cfg: Config, vocab: Vocabulary, num_symbols: int, mesh: Mesh) -> None:
        field = f'config.train.teacher={cfg.train.teacher}'
        name, at, step = cfg.train.teacher.rpartition('@')
        workdir = epath.Path(name if at else step).expanduser()
        if at and not step.isdecimal():
            raise UserError(
                f'{field}: {step} is no step; write RUN@STEP, or RUN for the newest step of one that is done'
            )
        try:
            run = open_run(workdir, int(step) if at else None)
            status = read_status(workdir)
            if not at and (status is None or status['status'] != 'done'):
                raise UserError(f'{workdir} is not done, and its newest step may change; write {workdir}@{run.step}')
        except UserError as error:
            raise UserError(f'{field}: {error}') from error
        if run.cfg.model.family != cfg.model.family:
            raise UserError(f'{field}: of model.family={run.cfg.model.family}, and this run of {cfg.model.family}')
        refuse_other_symbols(field, files.read_json(workdir / files.VOCAB), vocab, cfg.data.name)
        model = transformer.build(run.cfg.model, len(run.vocab), len(run.vocab.classes), mesh)
        if model.vocab_size != num_symbols:
            raise UserError(
                f'{field}: model.vocab_size is {model.vocab_size} there and {num_symbols} here; make it equal'
            )
        self._model, self._objective = sharding.laid_out(model, mesh), objectives.of(run.cfg, num_symbols)
        self._params = jax.device_put(run.params, NamedSharding(mesh, PartitionSpec()))
        self.logits = CountedJit(self._logits)

    def _logits(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        logits_BTV, _ = self._model.apply({'params': params}, *self._objective(batch, None).inputs)
        return logits_BTV.astype(jnp.float32)

    def __call__(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The batch with LOGITS."""
        return {**batch, LOGITS: self.logits(self._params, batch)}
