"""Files that are either whole or absent: written aside and renamed; one writer at a time."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import IO, Any

from etils import epath

from jaxformer.errors import UserError

CONFIG, VOCAB, DATA = 'config.json', 'vocab.json', 'data.json'
CHECKPOINTS, GRID = 'checkpoints', 'grid.json'
"""Names in the directory of a run that more than its training reads."""


def write_atomic(path: epath.PathLike, content: bytes | str) -> None:
    """Writes `content` beside `path` and renames it into place, so that a kill leaves the old file or the new one."""
    path = epath.Path(path)
    aside = path.parent / f'.{path.name}.{os.getpid()}.tmp'
    aside.write_bytes(content.encode() if isinstance(content, str) else content)
    aside.replace(path)


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """A file to write to, piece by piece, that takes the name `path` once the context is left without an error.

    A symbolic link stays one, and what is no file (a pipe, /dev/null) is written to as it is.
    """
    place = pathlib.Path(path).resolve()
    if place.exists() and not place.is_file():
        with place.open('wb') as file:
            yield file
        return
    aside = place.parent / f'.{place.name}.{os.getpid()}.tmp'
    try:
        with aside.open('wb') as file:
            yield file
        aside.replace(place)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: epath.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. NaN and infinity are refused: JSON has no such numbers."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def read_json(path: epath.PathLike) -> Any:
    """Reads a JSON file. Raises UserError naming the file where it is not valid JSON."""
    try:
        return json.loads(epath.Path(path).read_text())
    except FileNotFoundError:
        raise
    except (ValueError, RecursionError, OSError) as error:  # also of 5000 digits, or of 100 000 brackets
        raise UserError(f'{path}: not a JSON file ({error}); put back a copy of it') from None


def sha256(path: epath.PathLike) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with epath.Path(path).open('rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _taken(file: IO[str], wait: bool) -> bool:
    """Takes the lock of an open file. Without `wait` it tries for a moment: readers hold it as briefly."""
    for pause in (0.01, 0.03, 0.1, 0.3):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
        except BlockingIOError:
            time.sleep(pause)
    return False


@contextlib.contextmanager
def lock(path: epath.PathLike, *, wait: bool = False) -> Iterator[None]:
    """Holds an exclusive lock on the file `path` while the context lasts.

    The lock belongs to the process, so a kill frees it: there is no stale lock to clear away. Bucket paths have no
    locks; there the context does nothing, and the launcher has to see to it that a directory has one writer.

    Raises:
      UserError: another live process holds the lock and `wait` is False.
    """
    path = epath.Path(path)
    if '://' in os.fspath(path):
        yield
        return
    with pathlib.Path(path).open('a+') as file:
        if not _taken(file, wait):
            file.seek(0)
            holder = file.read().strip() or 'unknown'
            raise UserError(
                f'{path.parent}: another live process ({holder}) uses this directory; wait for it or choose another one'
            )
        file.seek(0)
        file.truncate()
        file.write(f'pid {os.getpid()}')
        file.flush()
        yield
