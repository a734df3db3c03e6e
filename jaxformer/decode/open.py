"""Opening the directory of a run: its configuration, symbols, model and parameters, without the data set."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import checkpoint, config, files, runtime, sharding
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import int8
from jaxformer.errors import RunError, UserError
from jaxformer.files import CHECKPOINTS, CONFIG, VOCAB
from jaxformer.model import transformer
from jaxformer.model.family import Family
from jaxformer.schema import Config, MeshConfig


@dataclasses.dataclass(frozen=True, eq=False)
class OpenRun:
    """A trained model and what belongs to it.

    params lie on the default device; see `on_every_device`.
    """

    workdir: epath.Path
    cfg: Config
    vocab: Vocabulary
    model: Family
    params: Any
    step: int


def open_run(
    workdir: epath.PathLike, step: int | None = None, keep_int8: bool = False, configure: bool = True
) -> OpenRun:
    """Opens a run at `step`, None for its newest whole checkpoint.

    Args:
      keep_int8: leave weights that are int8 as they are, for a model that takes them; else they are numbers again.
      configure: apply its cfg.runtime to this process, before any device is asked for.

    Raises:
      UserError: not the directory of a run, no checkpoint yet, no such step, or parameters of another config.
      RunError: the checkpoint is damaged, or every one is.
    """
    workdir = epath.Path(workdir)
    cfg = read_config(workdir)
    step = find_step(workdir, step)
    if not (workdir / VOCAB).exists():
        raise UserError(f'{workdir / VOCAB}: missing; put it back, or train again in another directory')
    vocab = Vocabulary.from_json(files.read_json(workdir / VOCAB))
    if configure:
        runtime.configure(cfg.runtime)
    params = checkpoint.restore_params(workdir / CHECKPOINTS, step)
    expected = transformer.abstract_params(cfg.model, len(vocab), len(vocab.classes))
    _refuse_strangers(workdir, jax.eval_shape(int8.floats, params), expected)
    model = transformer.build(cfg.model, len(vocab), len(vocab.classes))
    if not keep_int8:
        params = int8.floats(params)
    elif int8.any_rounded(params):
        model = int8.reading(model)
    return OpenRun(workdir, cfg, vocab, model, params, step)


def changed(run: OpenRun, changes: Mapping[str, Any], command: str, groups: tuple[str, ...]) -> OpenRun:
    """The run with other values of some fields.

    Args:
      changes: {'eval.search': 'beam'}. command: that they are made for. groups: of fields that may be, 'eval.'.

    Raises:
      UserError: a field of another group, no field, or what `config.resolve` refuses.
    """
    for field in changes:
        if not field.startswith(groups):
            names = ' and '.join(group.removesuffix('.') for group in groups)
            raise UserError(f'--config.{field}: {command} changes only {names}; the model is that of the run')
    if not changes:
        return run
    edited = config.load(run.workdir / CONFIG)
    config.override(edited, changes)
    return dataclasses.replace(run, cfg=config.resolve(edited))


def _refuse_strangers(workdir: epath.Path, params: Any, expected: Any) -> None:
    """Raises UserError where the checkpoint holds other parameters than config.json and vocab.json ask for."""
    shapes = [
        {sharding.path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (params, expected)
    ]
    for name in shapes[0] | shapes[1]:
        there, here = (shape.get(name, 'none') for shape in shapes)
        if there != here:
            raise UserError(
                f'{workdir}: parameter {name} is {there} in the checkpoint and {here} by {CONFIG} and {VOCAB}; '
                'put back the files that belong to it'
            )


def on_every_device(run: OpenRun) -> tuple[Mesh, Any]:
    """(a mesh that divides the rows of a batch among all devices here, the parameters on each of them).

    Not the mesh that the run was trained on: a checkpoint is evaluated on whatever there is.
    """
    mesh = sharding.make_mesh(MeshConfig(data=-1, fsdp=1, model=1, seq=1, strategy=''))
    return mesh, jax.device_put(run.params, NamedSharding(mesh, PartitionSpec()))


def read_config(workdir: epath.PathLike) -> Config:
    """The configuration of a run. Raises UserError where `workdir` is not the directory of a run."""
    path = run_directory(workdir) / CONFIG
    values = files.read_json(path)
    try:
        return config.from_record(values)
    except UserError as error:
        raise UserError(f'{path}: {error}; put back a copy of the file') from error


def run_directory(workdir: epath.PathLike) -> epath.Path:
    """`workdir` as a path. Raises UserError where it is not the directory of a run."""
    workdir = epath.Path(workdir)
    if not workdir.is_dir():
        raise UserError(f'{workdir}: no such directory; give the --workdir of a `jaxformer train`')
    if not (workdir / CONFIG).exists():
        raise UserError(f'{workdir}: not the directory of a run (no {CONFIG}); give that of a `jaxformer train`')
    return workdir


def find_step(workdir: epath.PathLike, step: int | None = None) -> int:
    """`step` where it has a whole checkpoint, and for None the newest step that has one.

    Raises:
      UserError: not the directory of a run, no checkpoint yet, or no such step (with those that are there).
      RunError: the checkpoint of that step is damaged, or for None every one is.
    """
    directory = run_directory(workdir) / CHECKPOINTS
    if step is None:
        newest = checkpoint.newest_whole(directory)
        if newest is None:
            raise UserError(f'{workdir}: no checkpoint yet; wait until step config.train.checkpoint_every')
        return newest
    if step not in (steps := checkpoint.steps(directory)):
        there = ', '.join(map(str, steps)) or 'none'
        raise UserError(f'{workdir}: no checkpoint of step {step}; the steps there are: {there}')
    if reason := checkpoint.newer(directory / str(step)):
        raise UserError(f'{directory / str(step)}: {reason}')
    if reason := checkpoint.check(directory / str(step)):
        raise RunError(f'{directory / str(step)}: damaged checkpoint: {reason}; choose another step of {steps}')
    return step
