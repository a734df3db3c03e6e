"""Python files of a person's: a configuration or a grid, run for the functions that it defines."""

import runpy
import sys
from pathlib import Path
from typing import Any

from jaxformer.errors import UserError

ROOT = Path(__file__).parents[1]
"""Where the named configs and experiments lie, beside the package."""


def run(path: str | Path, *, needs: tuple[str, ...]) -> dict[str, Any]:
    """Runs a Python file (a config or a grid), which may import its neighbours, and returns its names.

    Raises:
      UserError: there is no such file, it fails, or a name in `needs` is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f'{path}: no such file; configs and grids to start from are in {ROOT}/configs and {ROOT}/experiments'
        )
    beside = str(path.parent.resolve())
    sys.path.append(beside)  # a file may import the one next to it
    try:
        names = runpy.run_path(str(path))
    except Exception as error:  # whatever a person's file may raise
        raise failure(path, error) from error
    finally:
        sys.path.remove(beside)
    for name in needs:
        if not callable(names.get(name)):
            raise UserError(f'{path}: defines no function {name}(); see configs/base.py or experiments/heads.py')
    return names


def failure(path: str | Path, error: Exception) -> UserError:
    """One line for whatever a person's file raised."""
    reason = ' '.join(str(error).split())  # one line, whatever the exception says
    return UserError(f'{path}: fails with {type(error).__name__}: {reason}; mend the file')
