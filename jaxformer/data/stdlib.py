"""The source of the running Python's standard library: text that every installation has (PSF licence)."""

import contextlib
import hashlib
import os
import sysconfig
import tokenize
from pathlib import Path

from etils import epath

from jaxformer.data.held_out import divided
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

LEFT_OUT = {'site-packages', 'dist-packages', '__pycache__', 'test', 'tests', 'idle_test', 'lib-dynload'}
"""Directories of what others wrote, and of tests, which are as large as the rest."""

_BUILT = ('config-', '_sysconfigdata')  # files that building Python made, with the paths of a machine in them


def library() -> Path:
    """The directory of the standard library."""
    return Path(sysconfig.get_path('stdlib'))


def modules() -> list[str]:
    """The source files, as sorted paths below `library()`.

    Raises:
      UserError: there are none.
    """
    root = library()
    found = []
    for directory, below, files in os.walk(root):
        below[:] = [name for name in below if name not in LEFT_OUT and not name.startswith(_BUILT)]
        relative = Path(directory).relative_to(root)
        found += [
            (relative / name).as_posix() for name in files if name.endswith('.py') and not name.startswith(_BUILT)
        ]
    if not found:
        raise UserError(
            f'config.data.name=stdlib: {root} holds no source of Python; install one with its standard library'
        )
    return sorted(found)


def fingerprint() -> str:
    """A digest of the names and sizes of the files: distributions leave some out."""
    root, digest = library(), hashlib.sha256()
    for module in modules():
        digest.update(f'{module} {(root / module).stat().st_size}\n'.encode())
    return digest.hexdigest()


def texts() -> dict[str, str]:
    """Path of a module → its source. Files that hold nothing, or not what their encoding allows, are left out."""
    root, found = library(), {}
    for module in modules():
        with contextlib.suppress(SyntaxError, UnicodeDecodeError), tokenize.open(root / module) as file:
            if text := file.read():
                found[module] = text
    return found


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[str]]:
    """The modules of each split, by a hash of their path."""
    del data, directory
    found = texts()
    return divided(list(found.values()), found)
