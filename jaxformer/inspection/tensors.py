"""Tensors in a safetensors file that is whole or absent, and that whoever may read the directory may read."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Writes them beside `path` and renames the file into place.

    Raises:
      OSError: it cannot be written; nothing is left of it.
    """
    aside = path.parent / f'.{path.name}.{os.getpid()}.tmp'
    try:
        aside.touch()
        mode = aside.stat().st_mode  # of any new file here: the library's own are for their owner alone
        save_file(dict(tensors), aside, metadata=metadata)
        aside.chmod(mode)
        aside.replace(path)
    except SafetensorError as error:
        if not (number := re.search(r'os error (\d+)', str(error))):
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    finally:
        aside.unlink(missing_ok=True)
