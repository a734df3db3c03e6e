"""What a checkpoint holds, for who looks into it: also a damaged one, one that is not ours, or a very large one.

Training restores whole checkpoints or none. Here every array counts for itself: they are listed from metadata, whatever
the size of the arrays, and read one at a time.
"""

import base64
import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore
from absl import logging
from etils import epath

from jaxformer import checkpoint, files
from jaxformer.decode.open import run_directory
from jaxformer.errors import RunError, UserError
from jaxformer.files import CHECKPOINTS

SMALL = 256 * 1024
"""Bytes up to which `suspicion` reads a file: metadata, not arrays."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a checkpoint. shape, dtype: None where damage hides them.

    divided: of each dimension the mesh axes of a size above 1 that divided it when it was saved.
    spec: by which tensorstore opens it; None where that cannot be known.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype | None
    divided: tuple[tuple[str, ...], ...]
    spec: Mapping[str, Any] | None = None


def suspicion(path: epath.Path) -> str | None:
    """Why the checkpoint `path` is not whole, as far as sizes and small files show; None where they show nothing.

    `checkpoint.check` reads every byte; this does not read the arrays.
    """
    manifest = path / checkpoint.MANIFEST
    if reason := checkpoint.newer(path):
        return reason
    try:
        listing = files.read_json(manifest)['files']
        expected = {name: (int(entry['size']), str(entry['sha256'])) for name, entry in listing.items()}
        if not expected:
            return checkpoint.check(path)
        for name, (size, digest) in expected.items():
            file = path / name
            if not file.exists() or file.stat().length != size or (size <= SMALL and files.sha256(file) != digest):
                return _of_one_file(path, name, size)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, UserError):
        return f'{checkpoint.MANIFEST}: unreadable' if manifest.exists() else f'{checkpoint.MANIFEST}: missing'
    return None


def _of_one_file(path: epath.Path, name: str, size: int) -> str:
    if not (path / name).exists():
        return f'{name}: missing'
    found = (path / name).stat().length
    return f'{name}: {found} bytes instead of {size}' if found != size else f'{name}: its content has changed'


def find(workdir: epath.PathLike, step: int | None = None) -> int:
    """The step to look into: `step`, or the newest without a `suspicion`, or the newest of all where each has one.

    A warning names what is wrong with a step that is taken, or passed over.

    Raises:
      UserError: not the directory of a run, no checkpoint yet, or no such step (with those that are there).
    """
    directory = run_directory(workdir) / CHECKPOINTS
    steps = checkpoint.steps(directory)
    if step is not None and step not in steps:
        there = ', '.join(map(str, steps)) or 'none'
        raise UserError(f'{workdir}: no checkpoint of step {step}; the steps there are: {there}')
    if not steps:
        raise UserError(f'{workdir}: no checkpoint yet; wait until step config.train.checkpoint_every')
    for candidate in reversed(steps) if step is None else [step]:
        reason = suspicion(directory / str(candidate))
        if reason is None:
            return candidate
        logging.warning('%s: not a whole checkpoint (%s)', directory / str(candidate), reason)
    chosen = steps[-1] if step is None else step
    logging.warning('%s: what can be read of it follows', directory / str(chosen))
    return chosen


def listed(path: epath.Path) -> dict[str, Stored]:
    """Path of each array ('params/…', 'opt_state/…', 'step'; other names where it is not ours) → what it is.

    Read from the descriptions that Zarr keeps beside each array, so that one that is lost hides no other. Where none is
    left, the index of the tree still says names, and shapes if one device has saved them.

    Raises:
      RunError: nothing of it can be read.
    """
    places = [path / 'state', path, *(sorted(path.iterdir()) if path.is_dir() else ())]
    directory = next((place for place in places if (place / '_METADATA').exists()), path / 'state')
    index, divided = _index(directory / '_METADATA'), _shardings(directory / '_sharding')
    found = {}
    reason = 'it has no arrays of orbax'
    try:
        described = _descriptions(directory)
    except (ValueError, OSError) as error:
        described, reason = {}, _one_line(error)
    for key, (shape, dtype, spec) in described.items():
        name, _ = index.get(key, (key.replace('.', '/'), None))
        found[name] = Stored(shape, dtype, _by_dimension(divided.get(key, {}), len(shape))[0], spec)
    for key, (name, written) in index.items():
        by_dimension, devices = _by_dimension(divided.get(key, {}), len(written))
        # Of several devices each has written a part, of copies, too.
        found.setdefault(name, Stored(written if devices == 1 else None, None, by_dimension))
    if not found:
        raise RunError(f'{path}: no array of it can be listed ({reason}); choose another step')
    return found


def read(path: epath.Path, name: str, stored: Stored) -> np.ndarray:
    """One array of a checkpoint, on the host, whatever devices it was saved from.

    Raises:
      RunError: it cannot be read.
    """
    if stored.spec is None:
        raise RunError(f'{path}: {name} cannot be read, as the description of it is lost; choose another step')
    try:
        return tensorstore.open(dict(stored.spec), open=True).result().read().result()
    except (ValueError, OSError) as error:
        raise RunError(f'{path}: {name} cannot be read ({_one_line(error)}); choose another step') from error


_DESCRIPTIONS = {'/zarr.json': ('zarr3', 'data_type'), '/.zarray': ('zarr', 'dtype')}
"""End of a key → (the driver that reads the array, what it calls a dtype)."""


def _descriptions(directory: epath.Path) -> dict[str, tuple[tuple[int, ...], np.dtype, dict[str, Any]]]:
    """Dotted name → (shape, dtype, spec) of the arrays whose description can be read."""
    url = os.fspath(directory.resolve())
    store = {'driver': 'ocdbt', 'base': f'{url if "://" in url else f"file://{url}"}/'}
    keys = tensorstore.KvStore.open(store).result()
    found = {}
    for key in sorted(key.decode() for key in keys.list().result()):
        for end, (driver, called) in _DESCRIPTIONS.items():
            if key.endswith(end):
                with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
                    value, name = json.loads(keys.read(key).result().value), key.removesuffix(end)
                    spec = {'driver': driver, 'kvstore': {**store, 'path': f'{name}/'}}
                    found[name] = tuple(value['shape']), jnp.dtype(value[called]), spec
    return found


def _index(path: epath.Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dotted name → (path, shape of what a device has written) by orbax's index of the tree; {} where it is damaged."""
    found = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for entry in json.loads(path.read_text())['tree_metadata'].values():
            parts = [str(key['key']) for key in entry['key_metadata']]
            written = tuple(entry['value_metadata'].get('write_shape') or ())
            found['.'.join(parts)] = '/'.join(parts), written
    return found


def _shardings(path: epath.Path) -> dict[str, dict[str, Any]]:
    """Dotted name → the sharding that orbax noted; {} where there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        noted = json.loads(path.read_text())
        return {base64.b64decode(name).decode(): json.loads(text) for name, text in noted.items()}
    return {}


def _by_dimension(sharding: Mapping[str, Any], rank: int) -> tuple[tuple[tuple[str, ...], ...], int]:
    """(of each dimension the axes above 1 that divide it, the number of devices) by a sharding as it was noted."""
    sizes = dict(zip(sharding.get('axis_names', ()), sharding.get('shape', ()), strict=False))
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in sharding.get('partition_spec', ())]
    entries = [*entries, *[()] * rank][:rank]
    return tuple(tuple(axis for axis in entry if sizes[axis] > 1) for entry in entries), math.prod(sizes.values())


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(' [', 1)[0][:200]
