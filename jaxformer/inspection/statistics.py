"""Numbers about the arrays of a checkpoint, read one at a time: norms, extremes, zeros, the size of updates."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint
from jaxformer.errors import RunError
from jaxformer.files import CHECKPOINTS
from jaxformer.inspection import parameters, stored
from jaxformer.inspection.compare import jsonable
from jaxformer.inspection.parameters import Row

BLOCK = 1 << 22
"""Numbers that are taken to float64 at once."""

EXACT = 2e10
"""Products that a spectral norm may cost; a second or two."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of one array; norm, least, greatest and zeros over its finite numbers (nan where there is none).

    norm: the root of the sum of squares. spectral: the greatest singular value of its matrix, of a stack of layers that
      of the layer where it is greatest; nan where a number is not finite. zeros: their share. non_finite: how many are.
    update: norm of the difference to an earlier step over the norm there; None without one, or where it was another
      array there.
    """

    norm: float
    spectral: float
    least: float
    greatest: float
    zeros: float
    non_finite: int
    update: float | None = None


def of_checkpoint(
    workdir: epath.PathLike, step: int | None = None, since: int | None = None
) -> list[tuple[Row, Statistics | None]]:
    """Every parameter at `step` (None: the newest) and its statistics, None where it cannot be read, as is warned of.

    Of int8 weights they are those of the numbers that these stand for.
    since: another step, to which updates are measured.

    Raises: as `parameters.from_checkpoint`.
    """
    directory = epath.Path(workdir) / CHECKPOINTS
    path = _checked(directory / str(stored.find(workdir, step)))
    now = parameters.of_checkpoint(path)
    other = None if since is None else _checked(directory / str(stored.find(workdir, since)))
    then = parameters.of_checkpoint(other) if other else {}
    found: list[tuple[Row, Statistics | None]] = []
    for row in parameters.rows(now):
        before = None
        try:
            array = parameters.read(path, row.path, now[row.path])
            if other and row.path in then and then[row.path].shape == array.shape:
                before = parameters.read(other, row.path, then[row.path])
            found.append((row, of_array(array, row, before)))
        except RunError as error:
            logging.warning('%s', error)
            found.append((row, None))
    return found


def _checked(path: epath.Path) -> epath.Path:
    """Warns where the content of a file has changed; the rest has been said."""
    if stored.suspicion(path) is None and (reason := checkpoint.check(path)):
        logging.warning('%s: damaged checkpoint: %s; numbers of it may be wrong', path, reason)
    return path


def of_array(array: np.ndarray, row: Row, before: np.ndarray | None = None) -> Statistics:
    """before: the same array at an earlier step."""
    squares = zeros = finite = 0.0
    least, greatest = math.inf, -math.inf
    for block in blocks(array):
        good = block[np.isfinite(block)]
        finite += good.size
        squares += float(good @ good)
        zeros += int(np.count_nonzero(good == 0))
        least, greatest = min(least, good.min(initial=math.inf)), max(greatest, good.max(initial=-math.inf))
    if not finite:
        return Statistics(math.nan, math.nan, math.nan, math.nan, math.nan, array.size)
    whole = finite == array.size
    return Statistics(
        norm=math.sqrt(squares),
        spectral=max(map(spectral_norm, matrices(array, row))) if whole else math.nan,
        least=float(least),
        greatest=float(greatest),
        zeros=zeros / finite,
        non_finite=array.size - int(finite),
        update=None if before is None else _update(array, before),
    )


def blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The numbers of an array in order as float64, at most BLOCK at a time."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        yield flat[start : start + BLOCK].astype(np.float64)


def _update(now: np.ndarray, before: np.ndarray) -> float:
    moved = sum(float(np.sum((a - b) ** 2)) for a, b in zip(blocks(now), blocks(before), strict=True))
    size = sum(float(b @ b) for b in blocks(before))
    return math.sqrt(moved / size) if size else math.inf if moved else 0.0


def matrices(array: np.ndarray, row: Row) -> Iterator[np.ndarray]:
    """The matrices [inputs, outputs] that a parameter is: one per layer, and of scores between positions one per head.

    A projection from D has D on one side and all the rest (heads and their columns) on the other; every other array has
    its last dimension there. A vector is a matrix of one row.
    """
    letters = row.letters
    if '/layers/' in f'/{row.path}' or letters.endswith('HMM'):
        for part in array:
            yield from matrices(part, dataclasses.replace(row, path='', letters=letters[1:]))
    elif array.ndim < 2:
        yield array.reshape(1, -1)
    elif letters.startswith('D'):
        yield array.reshape(array.shape[0], -1)
    else:
        yield array.reshape(-1, array.shape[-1])


def spectral_norm(matrix: np.ndarray) -> float:
    """The greatest singular value, to about six digits; nan where it is not found.

    By all eigenvalues of the smaller of the two products with its transpose, or, where these cost more than EXACT, by
    Lanczos' iteration for the greatest.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    rows, side = tall.shape
    if rows * side**2 <= EXACT:
        wide = tall.astype(np.float64)
        return math.sqrt(max(float(np.linalg.eigvalsh(wide.T @ wide)[-1]), 0.0))
    if not np.any(tall):
        return 0.0
    from scipy.sparse import linalg  # late: it takes a moment, and only large models need it

    tall = tall.astype(np.float32)
    product = linalg.LinearOperator((side, side), matvec=lambda v: tall.T @ (tall @ v.astype(np.float32)), dtype=float)
    begin = np.random.default_rng(0).normal(size=side)
    try:
        return math.sqrt(float(linalg.eigsh(product, k=1, tol=1e-6, v0=begin, return_eigenvectors=False)[0]))
    except linalg.ArpackNoConvergence:
        return math.nan


def group_norms(found: Sequence[tuple[Row, Statistics | None]]) -> dict[str, float]:
    """Norm of each part of the model (`parameters.groups`), over what of it can be read and is finite."""
    squares: dict[str, float] = {}
    for row, statistics in found:
        part = parameters.group(row.path)
        square = statistics.norm**2 if statistics and math.isfinite(statistics.norm) else 0.0
        squares[part] = squares.get(part, 0.0) + square
    return {part: math.sqrt(square) for part, square in sorted(squares.items())}


def as_json(found: Sequence[tuple[Row, Statistics | None]]) -> dict[str, Any]:
    """As `parameters.as_json` with "group_norms", each with its "statistics" (null where it cannot be read)."""
    listed = {**parameters.as_json([row for row, _ in found]), 'group_norms': group_norms(found)}
    for entry, (_, statistics) in zip(listed['parameters'], found, strict=True):
        entry['statistics'] = statistics and jsonable(dataclasses.asdict(statistics))
    return listed


def as_text(found: Sequence[tuple[Row, Statistics | None]]) -> str:
    """An aligned table, the column `update` only where an earlier step was given; and the parts of the model."""
    updates = any(statistics and statistics.update is not None for _, statistics in found)
    lines: list[tuple[str, ...]] = [
        ('parameter', 'shape', 'norm', 'spectral', 'least', 'greatest', 'zeros', 'not finite', 'update')
    ]
    for row, s in found:
        shape = parameters.shape_text(row.shape)
        if s is None:
            lines.append((row.path, shape, *['?'] * 7))
            continue
        numbers = [f'{value:.4g}' for value in (s.norm, s.spectral, s.least, s.greatest)]
        update = '' if s.update is None else f'{s.update:.3%}'
        lines.append((row.path, shape, *numbers, f'{s.zeros:.2%}', f'{s.non_finite:,}', update))
    rows = [row for row, _ in found]
    counts, sizes, norms = parameters.groups(rows), parameters.group_bytes(rows), group_norms(found)
    parts = [('part', 'count', 'bytes', 'norm')]
    parts += [(part, f'{counts[part]:,}', f'{sizes[part]:,}', f'{norms[part]:.4g}') for part in counts]
    table = parameters.aligned([line if updates else line[:-1] for line in lines], right=range(2, 9))
    return f'{table}\n\n{parameters.aligned(parts, right=(1, 2, 3))}'
