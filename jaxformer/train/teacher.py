"""Another run from whose distribution over symbols a run learns beside the labels (Hinton et al. 2015)."""

from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import files, objectives, sharding
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import open_run, read_config
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.model.family import Family
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config
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
        workdir, step = _place(cfg)
        try:
            run = open_run(workdir, step, configure=False)  # this process is that of the student
            status = read_status(workdir)
            if step is None and status and status['status'] != 'done':
                raise UserError(f'{workdir} is not done, and its newest step may change; write {workdir}@{run.step}')
        except UserError as error:
            raise UserError(f'{field}: {error}') from error
        _refuse_another_family(run.cfg, cfg)
        refuse_other_symbols(field, files.read_json(workdir / files.VOCAB), vocab, cfg.data.name)
        model = transformer.build(run.cfg.model, len(run.vocab), len(run.vocab.classes), mesh)
        _refuse_another_size(model, cfg, num_symbols)
        self._params = jax.device_put(run.params, NamedSharding(mesh, PartitionSpec()))
        self.logits = _compiled(run.cfg, model, mesh)

    def __call__(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The batch with LOGITS."""
        return {**batch, LOGITS: self.logits(self._params, batch)}


def by_shape(cfg: Config, num_symbols: int, mesh: Mesh) -> tuple[CountedJit, Any]:
    """(the program that gives a teacher's logits, its parameters by shape), of which no array is read.

    Raises:
      UserError: there is no such run, or it is of another family or has another number of symbols.
    """
    field, (workdir, _) = f'config.train.teacher={cfg.train.teacher}', _place(cfg)
    try:
        theirs = read_config(workdir)
        vocab = Vocabulary.from_json(files.read_json(workdir / files.VOCAB))
    except FileNotFoundError:
        raise UserError(f'{field}: {workdir / files.VOCAB}: missing; put it back') from None
    except UserError as error:
        raise UserError(f'{field}: {error}') from error
    _refuse_another_family(theirs, cfg)
    sizes = len(vocab), len(vocab.classes)
    placed = lambda leaf: jax.ShapeDtypeStruct(  # noqa: E731
        leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec())
    )
    params = jax.tree.map(placed, transformer.abstract_params(theirs.model, *sizes))
    model = transformer.build(theirs.model, *sizes, mesh)
    _refuse_another_size(model, cfg, num_symbols)
    return _compiled(theirs, model, mesh), params


def _refuse_another_family(theirs: Config, cfg: Config) -> None:
    if (family := theirs.model.family) != cfg.model.family:
        field = f'config.train.teacher={cfg.train.teacher}'
        raise UserError(f'{field}: of model.family={family}, and this run of {cfg.model.family}')


def _refuse_another_size(theirs: Family, cfg: Config, num_symbols: int) -> None:
    if theirs.vocab_size != num_symbols:
        field = f'config.train.teacher={cfg.train.teacher}'
        raise UserError(f'{field}: model.vocab_size is {theirs.vocab_size} there and {num_symbols} here; make it equal')


def _compiled(cfg: Config, model: Family, mesh: Mesh) -> CountedJit:
    """(params, batch) → float32 [B, T, V] of a run with this config; compiled per bucket, and never differentiated."""
    laid_out, objective = sharding.laid_out(model, mesh), objectives.of(cfg, model.vocab_size)

    def logits(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        logits_BTV, _ = laid_out.apply({'params': params}, *objective(batch, None).inputs)
        return logits_BTV.astype(jnp.float32)

    return CountedJit(logits)


def _place(cfg: Config) -> tuple[epath.Path, int | None]:
    """Directory and step (None: the newest) that cfg.train.teacher names."""
    name, at, step = cfg.train.teacher.rpartition('@')
    if at and not step.isdecimal():
        field = f'config.train.teacher={cfg.train.teacher}'
        raise UserError(f'{field}: {step} is no step; write RUN@STEP, or RUN for the newest step of one that is done')
    return epath.Path(name if at else step).expanduser(), int(step) if at else None
