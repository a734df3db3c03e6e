"""The table of a model's parameters: from a configuration or from a checkpoint's metadata, never from the arrays."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from etils import epath
from flax import traverse_util

from jaxformer import checkpoint, optim, sharding
from jaxformer.config import Config
from jaxformer.decode.open import find_step
from jaxformer.files import CHECKPOINTS
from jaxformer.model import transformer

UNKNOWN = '?'
"""Letter of a dimension that `sharding.PARAMETERS` does not name (a checkpoint of another version)."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A parameter: `letters` names the dimensions of `shape`; `decayed` says whether weight decay applies to it."""

    path: str
    letters: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    bytes: int
    decayed: bool


def from_config(cfg: Config, vocab_size: int, num_classes: int = 0) -> list[Row]:
    """The parameters of cfg.model over data with so many symbols (and classes), by path; nothing is allocated.

    Raises:
      UserError: cfg.model.vocab_size is below what the data needs.
    """
    return _rows(transformer.abstract_params(cfg.model, vocab_size, num_classes))


def from_checkpoint(workdir: epath.PathLike, step: int | None = None) -> list[Row]:
    """The parameters that a run saved at `step` (None: its newest whole checkpoint), by path; no array is loaded.

    It does not matter how many devices the checkpoint was saved from, nor how many there are.

    Raises: as `jaxformer.decode.open.find_step`.
    """
    step = find_step(workdir, step)
    arrays = checkpoint.metadata(epath.Path(workdir) / CHECKPOINTS, step)
    params = {
        tuple(path.split('/'))[1:]: jax.ShapeDtypeStruct(shape, dtype)
        for path, (shape, dtype) in arrays.items()
        if path.startswith('params/')
    }
    return _rows(traverse_util.unflatten_dict(params))


def groups(rows: Sequence[Row]) -> dict[str, int]:
    """Number of parameters by part of the model, in alphabetical order; each parameter is in exactly one part.

    The parts are `embedding` (input tables, which are the output layer too where it is tied), `softmax` (an output
    layer of its own), `positions`, `norms`, and `encoder/…` or `decoder/…` with the name of the sublayer.
    """
    counts: collections.Counter[str] = collections.Counter()
    for row in rows:
        counts[_group(row.path)] += row.count
    return dict(sorted(counts.items()))


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """{"total", "bytes", "groups": {part: count}, "parameters": [one object per row]}."""
    return {
        'total': sum(row.count for row in rows),
        'bytes': sum(row.bytes for row in rows),
        'groups': groups(rows),
        'parameters': [{**dataclasses.asdict(row), 'shape': list(row.shape)} for row in rows],
    }


def as_text(rows: Sequence[Row]) -> str:
    """The rows as an aligned table, then the totals by part."""
    total = sum(row.count for row in rows)
    lines = [('parameter', 'letters', 'shape', 'dtype', 'count', 'bytes', 'decayed')]
    for row in rows:
        shape = ' x '.join(map(str, row.shape))
        decayed = 'yes' if row.decayed else 'no'
        lines.append((row.path, row.letters, shape, row.dtype, f'{row.count:,}', f'{row.bytes:,}', decayed))
    parts = [('part', 'count', 'share')]
    parts += [(part, f'{count:,}', f'{count / max(total, 1):.1%}') for part, count in groups(rows).items()]
    size = sum(row.bytes for row in rows)
    end = f'total {total:,} parameters, {size:,} bytes ({size / 2**20:,.1f} MiB)'
    return '\n\n'.join((_aligned(lines, right=(4, 5)), _aligned(parts, right=(1, 2)), end))


def _rows(params: Any) -> list[Row]:
    decayed = dict(_by_path(optim.decay_mask(params)))
    return [
        Row(
            path=path,
            letters=_letters(path, len(leaf.shape)),
            shape=tuple(leaf.shape),
            dtype=leaf.dtype.name,
            count=(count := math.prod(leaf.shape)),
            bytes=count * leaf.dtype.itemsize,
            decayed=bool(decayed[path]),
        )
        for path, leaf in _by_path(params)
    ]


def _by_path(tree: Any) -> list[tuple[str, Any]]:
    return [(sharding.path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _letters(path: str, rank: int) -> str:
    try:
        letters = sharding.letters(path)
    except KeyError:
        letters = ''
    return letters if len(letters) == rank else UNKNOWN * rank


def _group(path: str) -> str:
    parts = path.split('/')
    if any(part.endswith('norm') for part in parts):
        return 'norms'
    if 'position' in parts:
        return 'positions'
    if parts[0] in ('encoder', 'decoder') and len(parts) > 3:
        return f'{parts[0]}/{parts[2]}'
    return 'embedding' if parts[0].endswith('embedding') else parts[0]


def _aligned(lines: Sequence[tuple[str, ...]], right: tuple[int, ...]) -> str:
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
