"""The table of a model's parameters: from a configuration or from a checkpoint's metadata, never from the arrays."""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from flax import traverse_util

from jaxformer import optim, sharding
from jaxformer.decode import int8
from jaxformer.errors import RunError
from jaxformer.files import CHECKPOINTS
from jaxformer.inspection import stored
from jaxformer.inspection.stored import Stored
from jaxformer.model import transformer
from jaxformer.schema import Config

UNKNOWN = '?'
"""Letter of a dimension that `sharding.PARAMETERS` does not name (a checkpoint of another version)."""

PREFIX = 'params/'
"""Of the names of parameters among the arrays of a checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounded(Stored):
    """An array in int8 form (`decode/int8.py`): as a Stored the codes, and `scale` their scales."""

    scale: Stored


@dataclasses.dataclass(frozen=True)
class Row:
    """A parameter.

    letters: name the dimensions of `shape`. shape, dtype: None and UNKNOWN where damage hides them; they count as 0.
    bytes: of what is saved of it; of one with int8 weights that is codes and scales.
    divided: 'H:model' where mesh axes divide it, several with a blank between them; '' where each device has all of it.
    decayed: whether weight decay, where the config has any, applies to it.
    """

    path: str
    letters: str
    shape: tuple[int, ...] | None
    dtype: str
    divided: str
    count: int
    bytes: int
    decayed: bool


def from_config(cfg: Config, vocab_size: int, num_classes: int = 0) -> list[Row]:
    """The parameters of cfg.model over data with so many symbols (and classes), by path; nothing is allocated.

    Raises:
      UserError: cfg.model.vocab_size is below what the data needs.
    """
    params = transformer.abstract_params(cfg.model, vocab_size, num_classes)
    axes = {axis for axis, size in zip(sharding.AXES, sharding.sizes(cfg.mesh), strict=True) if size != 1}

    def planned(path: str, leaf: Any) -> Stored:
        wanted = [sharding.MESH_AXES.get(letter, ()) for letter in _letters(path, leaf.ndim)]
        divided = tuple(tuple(axis for axis in entry if axis in axes) for entry in wanted)
        return Stored(tuple(leaf.shape), leaf.dtype, divided)

    return rows({path: planned(path, leaf) for path, leaf in _by_path(params)})


def from_checkpoint(workdir: epath.PathLike, step: int | None = None) -> list[Row]:
    """The parameters that a run saved at `step` (None: the newest step), by path; from metadata alone.

    It does not matter how many devices the checkpoint was saved from, nor how many there are. Of a damaged one a
    warning says what is wrong, and what can be read of it is listed; of one without parameters of ours, every array.

    Raises:
      UserError: as `jaxformer.inspection.stored.find`.
      RunError: nothing of the checkpoint can be read.
    """
    return rows(of_checkpoint(epath.Path(workdir) / CHECKPOINTS / str(stored.find(workdir, step))))


def of_checkpoint(path: epath.Path) -> dict[str, Stored]:
    """The parameters in the checkpoint `path` by their paths below 'params', or every array where there is none.

    A parameter with int8 weights is one entry, a `Rounded`.

    Raises:
      RunError: nothing of it can be read, or it holds no array.
    """
    arrays = stored.listed(path)
    if not arrays:
        raise RunError(f'{path}: holds no array')
    if params := {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}:
        tree = traverse_util.unflatten_dict({tuple(path.split('/')): array for path, array in params.items()})
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=int8.is_rounded)
        return {sharding.path_name(path): _rounded(leaf) if int8.is_rounded(leaf) else leaf for path, leaf in leaves}
    logging.warning('%s: not a checkpoint of jaxformer (it has no params); every array of it is listed', path)
    return arrays


def _rounded(leaf: Mapping[str, Stored]) -> Rounded:
    codes = leaf[int8.Q]
    return Rounded(codes.shape, codes.dtype, codes.divided, codes.spec, scale=leaf[int8.SCALE])


def read(path: epath.Path, name: str, array: Stored) -> np.ndarray:
    """The numbers of one of `of_checkpoint`, on the host; of int8 weights those that they stand for.

    Raises:
      RunError: it cannot be read.
    """
    if not isinstance(array, Rounded):
        return stored.read(path, name, array)
    parts = {int8.Q: array, int8.SCALE: array.scale}
    return np.asarray(int8.floats({part: stored.read(path, f'{name}/{part}', of) for part, of in parts.items()}))


def groups(rows: Sequence[Row]) -> dict[str, int]:
    """Number of parameters by part of the model, in alphabetical order; each parameter is in exactly one part.

    The parts are `embedding` (input tables, which are the output layer too where it is tied), `softmax` (an output
    layer of its own), `positions`, `norms`, and `encoder/…` or `decoder/…` with the name of the sublayer.
    """
    return _summed(rows, lambda row: row.count)


def group_bytes(rows: Sequence[Row]) -> dict[str, int]:
    """Bytes of each of the `groups`."""
    return _summed(rows, lambda row: row.bytes)


def _summed(rows: Sequence[Row], of: Callable[[Row], int]) -> dict[str, int]:
    sums: collections.Counter[str] = collections.Counter()
    for row in rows:
        sums[group(row.path)] += of(row)
    return dict(sorted(sums.items()))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """{"total", "bytes", "groups": {part: count}, "group_bytes", "parameters": [one object per row]}."""
    return {
        'total': sum(row.count for row in rows),
        'bytes': sum(row.bytes for row in rows),
        'groups': groups(rows),
        'group_bytes': group_bytes(rows),
        'parameters': [{**dataclasses.asdict(row), 'shape': row.shape and list(row.shape)} for row in rows],
    }


def as_text(rows: Sequence[Row]) -> str:
    """The rows as an aligned table, then the totals by part."""
    total = sum(row.count for row in rows)
    lines = [('parameter', 'letters', 'shape', 'dtype', 'divided', 'count', 'bytes', 'decayed')]
    for row in rows:
        numbers = f'{row.count:,}', f'{row.bytes:,}'
        decayed = 'yes' if row.decayed else 'no'
        lines.append((row.path, row.letters, shape_text(row.shape), row.dtype, row.divided or '-', *numbers, decayed))
    parts, sizes = [('part', 'count', 'share', 'bytes')], group_bytes(rows)
    parts += [
        (part, f'{count:,}', f'{count / max(total, 1):.1%}', f'{sizes[part]:,}') for part, count in groups(rows).items()
    ]
    size = sum(row.bytes for row in rows)
    end = f'total {total:,} parameters, {size:,} bytes ({size / 2**20:,.1f} MiB)'
    return '\n\n'.join((aligned(lines, right=(5, 6)), aligned(parts, right=(1, 2, 3)), end))


def rows(params: Mapping[str, Stored]) -> list[Row]:
    """A row for each parameter by its path; which are decayed says the mask that the optimiser takes."""
    tree = traverse_util.unflatten_dict({tuple(path.split('/')): path for path in params})
    decayed = {
        path: mask for (_, path), (_, mask) in zip(_by_path(tree), _by_path(optim.decay_mask(tree)), strict=True)
    }
    return [
        Row(
            path=path,
            letters=(letters := _letters(path, len(array.divided))),
            shape=array.shape,
            dtype=UNKNOWN if array.dtype is None else array.dtype.name,
            divided=' '.join(
                f'{letter}:{"+".join(axes)}' for letter, axes in zip(letters, array.divided, strict=True) if axes
            ),
            count=_count(array),
            bytes=_bytes(array) + (_bytes(array.scale) if isinstance(array, Rounded) else 0),
            decayed=decayed[path],
        )
        for path, array in sorted(params.items())
    ]


def _count(array: Stored) -> int:
    return 0 if array.shape is None else math.prod(array.shape)


def _bytes(array: Stored) -> int:
    return 0 if array.dtype is None else _count(array) * array.dtype.itemsize


def _by_path(tree: Any) -> list[tuple[str, Any]]:
    return [(sharding.path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _letters(path: str, rank: int) -> str:
    try:
        letters = sharding.letters(path)
    except KeyError:
        letters = ''
    return letters if len(letters) == rank else UNKNOWN * rank


def group(path: str) -> str:
    """The part of the model that a parameter is in, of `groups`."""
    parts = path.split('/')
    if any(part.endswith('norm') for part in parts):
        return 'norms'
    if 'position' in parts:
        return 'positions'
    if parts[0] in ('encoder', 'decoder') and len(parts) > 3:
        return f'{parts[0]}/{parts[2]}'
    return 'embedding' if parts[0].endswith('embedding') else parts[0]


def shape_text(shape: tuple[int, ...] | None) -> str:
    """'2 x 48 x 96'."""
    return UNKNOWN if shape is None else ' x '.join(map(str, shape))


def aligned(lines: Sequence[tuple[str, ...]], right: Collection[int]) -> str:
    """Columns as wide as their widest cell, those in `right` flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        '  '.join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return '\n'.join(line.rstrip() for line in padded)
