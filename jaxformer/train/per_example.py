"""What a finished run did with each example of the split it was evaluated on: RUN/examples/<split>.npz.

Arrays by name, one entry per example in the order of the split: `example_id`, and of the last evaluation `nll`,
`correct` and `tokens` (see `Evaluator.examples`), of the last decoding `errors`, `symbols` and `wrong` (see
`Decoder.examples`). Metrics of the run are sums of these over sums of these.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from jaxformer import files
from jaxformer.errors import UserError

DIRECTORY = 'examples'
"""In the directory of a run."""


def write(workdir: epath.PathLike, split: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the file of a split, whole or not at all.

    Args:
      arrays: [n] each, with `example_id`.

    Raises:
      ValueError: they are not of one length.
    """
    if len({array.shape for array in arrays.values()}) != 1 or 'example_id' not in arrays:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f'{shapes}: one entry per example each is needed, and example_id')
    content = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(content, **named)
    path = _path(workdir, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, content.getvalue())


def read(workdir: epath.PathLike, split: str) -> dict[str, np.ndarray] | None:
    """The arrays of a split, None where the run has written none (yet).

    Raises:
      UserError: the file is damaged.
    """
    path = _path(workdir, split)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        return None
    except (
        ValueError,
        TypeError,
        KeyError,
        OSError,
        EOFError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError(f'{path}: not results per example ({error}); remove the file') from None
    if len({array.shape for array in arrays.values()}) != 1 or 'example_id' not in arrays:
        raise UserError(f'{path}: not results per example (of {sorted(arrays)}); remove the file')
    return arrays


def _path(workdir: epath.PathLike, split: str) -> epath.Path:
    return epath.Path(workdir) / DIRECTORY / f'{split}.npz'
