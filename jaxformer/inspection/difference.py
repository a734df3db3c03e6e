"""How far the parameters of two checkpoints are apart, of one run or of two, array by array."""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from jaxformer.errors import RunError, UserError
from jaxformer.files import CHECKPOINTS
from jaxformer.inspection import parameters, stored
from jaxformer.inspection.compare import jsonable, table
from jaxformer.inspection.parameters import shape_text
from jaxformer.inspection.statistics import blocks
from jaxformer.inspection.stored import Stored

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Apart:
    """Two arrays a and b of one shape. distance: ‖b − a‖. relative: to ‖a‖. cosine: of the angle between them (nan
    where one is all zeros)."""

    distance: float
    relative: float
    cosine: float


@dataclasses.dataclass(frozen=True)
class Difference:
    """Parameters by path. added, gone: with their shapes. reshaped: (shape in a, shape in b).

    apart: those that both have in one shape; None where one of the two cannot be read (a warning says why).
    whole: all that could be read of `apart` as one vector; None where that is nothing.
    """

    names: tuple[str, str]
    added: Mapping[str, Shape | None]
    gone: Mapping[str, Shape | None]
    reshaped: Mapping[str, tuple[Shape, Shape]]
    apart: Mapping[str, Apart | None]
    whole: Apart | None


def place(argument: str) -> tuple[str, int] | None:
    """(directory, step) of 'RUN@60', None of anything else; also of a directory that is called so."""
    match = re.fullmatch(r'(.+)@(\d+)', argument)
    return None if match is None or os.path.isdir(argument) else (match[1], int(match[2]))


def between(a: str, b: str) -> Difference:
    """The difference of two checkpoints, each 'RUN@step'; arrays are read in pairs, one pair at a time.

    int8 weights are compared as the numbers that they stand for.

    Raises:
      UserError: an argument of another form, not the directory of a run, or no such step.
      RunError: nothing of a checkpoint can be read.
    """
    (path_a, of_a), (path_b, of_b) = _opened(a), _opened(b)
    both = [path for path in of_a if path in of_b]
    reshaped = {
        path: (shape_a, shape_b)
        for path in both
        if (shape_a := of_a[path].shape) is not None
        and (shape_b := of_b[path].shape) is not None
        and shape_a != shape_b
    }
    apart: dict[str, Apart | None] = {}
    total = np.zeros(4)
    for path in both:
        if path in reshaped:
            continue
        try:
            pair = parameters.read(path_a, path, of_a[path]), parameters.read(path_b, path, of_b[path])
            sums = _sums(*pair)
            apart[path], total = _apart(sums), total + sums
        except RunError as error:
            logging.warning('%s', error)
            apart[path] = None
    return Difference(
        names=(a, b),
        added={path: array.shape for path, array in of_b.items() if path not in of_a},
        gone={path: array.shape for path, array in of_a.items() if path not in of_b},
        reshaped=reshaped,
        apart=apart,
        whole=_apart(total) if any(apart.values()) else None,
    )


def _opened(argument: str) -> tuple[epath.Path, dict[str, Stored]]:
    if (found := place(argument)) is None:
        raise UserError(f'compare {argument}: not RUN@step; write both with a step, or both without one')
    workdir, step = found
    path = epath.Path(workdir) / CHECKPOINTS / str(stored.find(workdir, step))
    return path, parameters.of_checkpoint(path)


def _sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 [4]: the sums of (b − a)², a², b² and ab."""
    pairs = zip(blocks(a), blocks(b), strict=True)
    return sum((np.array([(y - x) @ (y - x), x @ x, y @ y, x @ y]) for x, y in pairs), np.zeros(4))


def _apart(sums: np.ndarray) -> Apart:
    moved, size_a, size_b, product = map(float, sums)
    sizes = math.sqrt(size_a) * math.sqrt(size_b)
    relative = math.sqrt(moved / size_a) if size_a else math.inf if moved else 0.0
    return Apart(math.sqrt(moved), relative, product / sizes if sizes else math.nan)


def as_json(difference: Difference) -> dict[str, Any]:
    """The fields as JSON values; numbers that are not finite as text."""
    return jsonable(dataclasses.asdict(difference))


def as_text(difference: Difference) -> str:
    """What is only on one side, then a table of the others, the farthest (relative to their size) first.

    A dash stands for what is not defined: a share or an angle of an array that is all zeros.
    """
    a, b = difference.names
    lines = [f'[1] {a}\n[2] {b}']
    lines += [f'added in [2]: {path} {shape_text(shape)}' for path, shape in difference.added.items()]
    lines += [f'gone in [2]: {path} {shape_text(shape)}' for path, shape in difference.gone.items()]
    lines += [
        f'reshaped: {path} {shape_text(old)} -> {shape_text(new)}' for path, (old, new) in difference.reshaped.items()
    ]
    if not difference.apart:
        return '\n'.join([*lines, '', 'nothing can be compared: no parameter is on both sides in one shape'])
    known = sorted(difference.apart.items(), key=lambda item: -(item[1].relative if item[1] else math.inf))
    rows = {path: ('?',) * 3 if entry is None else _numbers(entry) for path, entry in known}
    if difference.whole:
        rows['all of them'] = _numbers(difference.whole)
    return '\n'.join(lines) + '\n\n' + table('parameter', ('distance', 'of [1]', 'cosine'), rows, '')


def _numbers(entry: Apart) -> tuple[str, str, str]:
    finite = math.isfinite(entry.distance)  # else the arrays hold what is not, and that has to be seen
    relative = '-' if finite and math.isinf(entry.relative) else f'{entry.relative:.3%}'
    return f'{entry.distance:.4g}', relative, '-' if finite and math.isnan(entry.cosine) else f'{entry.cosine:.6f}'
