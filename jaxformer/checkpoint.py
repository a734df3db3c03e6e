"""Checkpoints that are whole or do not count: saved by orbax, listed in a manifest, checked before every restore.

    checkpoints/<step>/state/…        parameters, optimiser state, step …, one entry per array
                       data/…         where the data iterator stands
                       config/…       the resolved configuration
                       manifest.json  the number of this format; size and SHA-256 of every file above

A save is written as `<step>.partial` and takes its name only once orbax has committed it and the manifest stands in
it, so a kill at any moment leaves the steps that were there before and at most a directory that nobody counts, which
the next save clears away. The manifest is needed because a flipped byte otherwise restores as wrong numbers. (On an
object store a rename is a copy; there a kill in the middle of it can leave a step that `check` names as damaged.)
"""

import contextlib
from collections.abc import Collection, Iterator
from logging import ERROR, LogRecord
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from orbax.checkpoint import v1 as ocp

from jaxformer import files, processes
from jaxformer.errors import RunError, UserError

MANIFEST = 'manifest.json'
FORMAT = 1
"""Of what is written here; a manifest without a number is of it, too. A greater one is that of a newer version."""
_PARTIAL = '.partial'
_LEFTOVERS = ('*.orbax-checkpoint-tmp*', '*' + _PARTIAL)


def save(
    directory: epath.PathLike,
    step: int,
    state: Any,
    data_state: dict,
    config: dict,
    keep: int,
    best: Collection[int] = (),
) -> epath.Path:
    """Saves `state` (any tree of arrays) with the data position and the configuration as `directory/<step>`.

    Call it on every process. Returns the path, after the checkpoint is whole on disk and only then older ones have
    gone: the `keep` newest whole ones and the steps in `best` stay. A damaged one does not count as kept; it stays for
    inspection until it is older than the oldest kept one, and then goes like any other. An existing whole
    `directory/<step>` is left as it is, a damaged one is replaced.

    Raises:
      RunError: nothing could be written (full disk, no permission …). The earlier checkpoints are untouched.
    """
    if keep < 1:
        raise ValueError(f'keep is {keep}; at least the newest checkpoint has to stay')
    directory = epath.Path(directory)
    path, partial = directory / str(step), directory / f'{step}{_PARTIAL}'

    def prepare() -> bool:
        _refuse_file(directory, 'a directory')
        _refuse_file(path, 'a checkpoint')
        directory.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(directory)
        partial.mkdir()  # what cannot be written fails here, not in orbax's threads
        partial.rmdir()
        return path.exists() and check(path) is None

    def finish() -> None:
        files.write_json(partial / MANIFEST, {'format': FORMAT, 'files': _listing(partial)})
        if path.exists():
            logging.warning('%s: damaged (%s); replaced', path, check(path))
            path.rmtree()
        partial.rename(path)

    try:
        if processes.on_first(prepare):
            return path
        _write(partial, {'state': state, 'data': data_state, 'config': config})
        processes.on_first(finish)
    except OSError as error:
        if processes.index() == 0:
            with contextlib.suppress(OSError):
                _clear_leftovers(directory)
        raise RunError(
            f'{path}: the checkpoint could not be written ({_one_line(error)}); free space or choose another workdir. '
            'Earlier checkpoints are untouched'
        ) from error
    if processes.index() == 0:
        _prune(directory, step, keep, best)
    return path


def steps(directory: epath.PathLike) -> list[int]:
    """The steps that have a directory, whole or not, in ascending order; what has another name is left alone.

    Raises:
      RunError: `directory` is a file.
    """
    directory = epath.Path(directory)
    if not directory.exists():
        return []
    _refuse_file(directory, 'a directory')
    # Another spelling of a number (007, ٣) is no name that `save` gives.
    names = (p.name for p in directory.iterdir() if p.name.isdecimal() and p.is_dir())
    return sorted(int(name) for name in names if name == str(int(name)))


def check(path: epath.PathLike) -> str | None:
    """None where the checkpoint `path` (= directory/<step>) is whole, else one line: the file and what is wrong.

    Reads and hashes every file that the manifest lists; files that it does not list do no harm. One of a newer version
    counts as whole to nobody here.
    """
    path = epath.Path(path)
    if reason := newer(path):
        return reason
    try:
        manifest = files.read_json(path / MANIFEST)
        if not manifest.keys() <= {'format', 'files'} or manifest.get('format', 1) not in range(1, FORMAT + 1):
            return f'{MANIFEST}: damaged'
        expected = {name: (int(entry['size']), str(entry['sha256'])) for name, entry in manifest['files'].items()}
    except FileNotFoundError:
        return f'{MANIFEST}: missing'
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return f'{MANIFEST}: unreadable'
    if not expected:
        return f'{MANIFEST}: lists no file'
    for name, (size, digest) in expected.items():
        try:
            found = (path / name).stat().length
            if found != size:
                return f'{name}: {found} bytes instead of {size}'
            if files.sha256(path / name) != digest:
                return f'{name}: its content has changed (SHA-256 differs)'
        except FileNotFoundError:
            return f'{name}: missing'
        except (OSError, ValueError) as error:
            return f'{name}: unreadable ({_one_line(error)})'
    return None


def newer(path: epath.PathLike) -> str | None:
    """One line where the checkpoint `path` is of a format that a newer version writes, else None."""
    try:
        found = files.read_json(epath.Path(path) / MANIFEST)['format']
    except (OSError, KeyError, TypeError, UserError):
        return None
    if not isinstance(found, int) or found <= FORMAT:
        return None
    return f'{MANIFEST}: format {found} of a newer version, and this one knows {FORMAT}; use the version that wrote it'


def newest_whole(directory: epath.PathLike) -> int | None:
    """The newest whole step, None where there is no step at all. Each damaged one passed over is warned of by name.

    Raises:
      RunError: there are steps and none of them is whole; a run must not quietly start afresh.
      UserError: one is of a newer version, which a run that goes on here would take for damaged, and replace.
    """
    directory = epath.Path(directory)
    damage = []
    for step in reversed(steps(directory)):
        if reason := newer(directory / str(step)):
            raise UserError(f'{directory / str(step)}: {reason}')
        reason = check(directory / str(step))
        if reason is None:
            return step
        logging.warning('%s: damaged checkpoint skipped: %s', directory / str(step), reason)
        damage.append(f'step {step}: {reason}')
    if damage:
        raise RunError(
            f'{directory}: no whole checkpoint ({"; ".join(damage)}); put back a copy of one, '
            'or remove this directory to train from the start'
        )
    return None


def restore(directory: epath.PathLike, step: int, abstract_state: Any) -> tuple[Any, dict]:
    """The state and the data position of a step, bit-equal to what was saved, on whatever mesh the caller names.

    Call it on every process. `abstract_state` has the structure of the state, with `jax.ShapeDtypeStruct`s (whose
    sharding says where an array goes) or arrays as leaves.

    Raises:
      UserError: no such step, or its parameters differ from `abstract_state` in name, shape or dtype.
      RunError: the checkpoint is damaged.
    """
    path = epath.Path(directory) / str(step)
    wanted = jax.tree.map(_abstract, abstract_state)

    def look() -> None:
        _whole(directory, step)
        _raise_on_mismatch(path, _named(wanted), metadata(directory, step))

    processes.on_first(look)  # which reads every file
    loaded = _load(path, {'state': wanted, 'data': None})
    return loaded['state'], loaded['data']


def restore_params(directory: epath.PathLike, step: int) -> Any:
    """The parameter tree of a step on the default device, whatever it was saved from; the optimiser state is not read.

    Where the run keeps a moving average of its parameters (train.ema_decay), by which it is judged, it is that.

    Raises: as `restore`.
    """
    path = _whole(directory, step)
    there = _state_metadata(path)
    place = lambda tree: jax.tree.map(lambda leaf: _abstract(leaf, default=True), tree)  # noqa: E731
    last = there['opt_state'][-1] if there.get('opt_state') else None
    if not (isinstance(last, dict) and 'average' in last):
        return _load(path, {'state': {'params': place(there['params'])}}, partial=True)['state']['params']
    wanted = jax.tree.map(lambda leaf: ocp.PLACEHOLDER, there)  # is left where it is
    wanted['opt_state'][-1]['average'] = place(last['average'])
    average = _load(path, {'state': wanted})['state']['opt_state'][-1]['average']
    return jax.tree.map(lambda mean, leaf: mean.astype(leaf.dtype), average, there['params'])


def metadata(directory: epath.PathLike, step: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Path → (shape, dtype) of every array of the state ('params/…', 'opt_state/…', 'step'), reading no array."""
    return _named(_state_metadata(_existing(directory, step)))


def config(directory: epath.PathLike, step: int) -> dict:
    """The configuration that a step was saved with, as plain JSON values (tuples come back as lists)."""
    return _load(_existing(directory, step), {'config': None})['config']


def _existing(directory: epath.PathLike, step: int) -> epath.Path:
    path = epath.Path(directory) / str(step)
    if not path.is_dir():
        there = ', '.join(map(str, steps(directory))) or 'none'
        raise UserError(f'{path}: no such checkpoint; the steps there are: {there}')
    return path


def _whole(directory: epath.PathLike, step: int) -> epath.Path:
    path = _existing(directory, step)
    if reason := newer(path):
        raise UserError(f'{path}: {reason}')
    reason = check(path)
    if reason is not None:
        raise RunError(f'{path}: damaged checkpoint: {reason}; choose another step or put back a copy of it')
    return path


def _listing(path: epath.Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file below `path`, by its name relative to it."""
    return {
        file.relative_to(path).as_posix(): {'size': file.stat().length, 'sha256': files.sha256(file)}
        for file in _files_below(path)
    }


def _files_below(path: epath.Path) -> Iterator[epath.Path]:
    for entry in sorted(path.iterdir()):
        if entry.is_dir():
            yield from _files_below(entry)
        else:
            yield entry


def _refuse_file(path: epath.Path, place: str) -> None:
    if path.exists() and not path.is_dir():
        raise RunError(f'{path}: a file in the place of {place}; move it away')


def _clear_leftovers(directory: epath.Path) -> None:
    """Removes what killed saves and removals have left behind; the caller is the only writer of the directory."""
    for pattern in _LEFTOVERS:
        for orphan in directory.glob(pattern):
            logging.info('%s: left over from a killed process; removed', orphan)
            if orphan.is_dir():
                orphan.rmtree()
            else:
                orphan.unlink()


def _prune(directory: epath.Path, saved: int, keep: int, best: Collection[int]) -> None:
    """Removes every step but `saved`, which is new and whole, and `best` that has `keep` newer whole ones.

    What a newer version wrote is left alone.
    """
    whole = 0
    for step in reversed(steps(directory)):
        path = directory / str(step)
        if whole < keep:
            whole += step == saved or check(path) is None
        elif step != saved and step not in best and not newer(path):
            # Renamed first: a kill must not leave half a checkpoint under a step's name.
            try:
                path.rename(directory / f'{step}{_PARTIAL}').rmtree()
            except OSError as error:
                logging.warning('%s: an old checkpoint that could not be removed: %s', path, _one_line(error))


@contextlib.contextmanager
def _context(*, partial: bool = False) -> Iterator[None]:
    """Orbax's settings: data position and configuration as JSON files, which any editor opens; `partial` trees."""
    registry = ocp.handlers.local_registry()
    for name in ('data', 'config'):
        registry.add(ocp.handlers.JsonHandler, checkpointable_name=name)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.pytree.loading.partial_load = partial
    with context:
        yield


def _write(path: epath.Path, checkpointables: dict[str, Any]) -> None:
    """Saves by orbax, which wants absolute paths.

    Every failure is an OSError, and orbax's log of it (pages of traceback) is not printed.
    """
    logger = logging.get_absl_logger()
    logger.addFilter(_not_an_error_of_orbax)
    try:
        with _context():
            ocp.save_checkpointables(path.resolve(), checkpointables)
    except (ValueError, RuntimeError) as error:  # the storage layer's form of "No space left on device"
        if processes.is_loss(error):
            raise
        raise OSError(_one_line(error)) from error
    finally:
        logger.removeFilter(_not_an_error_of_orbax)


def _not_an_error_of_orbax(record: LogRecord) -> bool:
    return record.levelno < ERROR or 'orbax' not in record.pathname


def _load(path: epath.Path, wanted: dict[str, Any], *, partial: bool = False) -> dict[str, Any]:
    try:
        with _context(partial=partial):
            return ocp.load_checkpointables(path.resolve(), wanted)
    except Exception as error:  # noqa: BLE001 - v1 raises KeyErrors and ValueErrors of many kinds; the cause is useful
        raise RunError(f'{path}: the checkpoint cannot be read: {_one_line(error.__cause__ or error)}') from error


def _state_metadata(path: epath.Path) -> dict[str, Any]:
    try:
        with _context():
            return ocp.checkpointables_metadata(path.resolve()).metadata['state']
    except Exception as error:  # noqa: BLE001 - as in _load
        raise RunError(f'{path}: the checkpoint cannot be read: {_one_line(error.__cause__ or error)}') from error


def _abstract(leaf: Any, *, default: bool = False) -> jax.ShapeDtypeStruct:
    """Shape, dtype and target of a leaf: where its sharding says, or the default device (`default`: in any case)."""
    # Without a target, orbax asks for the devices of the save, and its metadata raises where they are not here.
    sharding = None if default else getattr(leaf, 'sharding', None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _named(tree: Any) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator='/'): (tuple(leaf.shape), np.dtype(leaf.dtype))
        for path, leaf in leaves
    }


def _raise_on_mismatch(path: epath.Path, wanted: dict, stored: dict) -> None:
    alone = lambda names: all(name.startswith('params/') for name in names)  # noqa: E731
    if stored and alone(stored) and not alone(wanted):
        raise UserError(
            f'{path}: parameters alone, with which no training goes on; '
            'begin another run with them in a new directory (config.train.start_from)'
        )
    remedy = 'use the config that it was saved with, or another workdir'
    for name in [*wanted, *(name for name in stored if name not in wanted)]:
        here, there = (_say(side[name]) if name in side else 'not there' for side in (wanted, stored))
        if here != there:  # orbax would cast a dtype silently
            raise UserError(f'{path}: {name} is {there} in the checkpoint and {here} in this run; {remedy}')


def _say(array: tuple[tuple[int, ...], np.dtype]) -> str:
    return f'{array[1].name}{list(array[0])}'


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
