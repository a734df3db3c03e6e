"""Text files: which ones a field of the configuration means, and their lines, by the newline alone."""

import contextlib
import glob
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, cast

from etils import epath

from jaxformer.data.held_out import SPLITS
from jaxformer.errors import UserError

IN_NAME = '{split}'
"""What stands in the name of a file for train, dev or test."""


def split_lines(text: str) -> list[str]:
    r"""The lines of `text`, split at '\n' only, each without its line end ('\n' or '\r\n').

    `str.splitlines` also splits at U+2028, U+0085, VT and FF, which occur inside sentences, and then the two sides of a
    corpus no longer match line by line. A last line counts with or without a newline after it.
    """
    lines = text.split('\n')
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix('\r') for line in lines]


def read_lines(path: epath.PathLike) -> list[str]:
    """The lines of a UTF-8 file, or of standard input for '-' (see `split_lines`).

    Raises:
      UserError: the file is absent or not UTF-8; names it.
    """
    return split_lines(read_text(path))


def read_text(path: epath.PathLike) -> str:
    """A UTF-8 file as it is, but for a byte order mark; standard input for '-'. Raises UserError as `read_lines`."""
    try:
        content = sys.stdin.buffer.read() if path == '-' else epath.Path(path).read_bytes()
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise UserError(f'{path}: not UTF-8 ({error}); convert the file to UTF-8') from None
    except OSError as error:
        raise UserError(f'{path}: cannot be read ({error.strerror}); give the path of a text file') from None


@contextlib.contextmanager
def opened(path: epath.PathLike) -> Iterator[tuple[BinaryIO, int]]:
    """A file to read bytes from, and its size; standard input for '-', whose size is 0, as is that of a pipe.

    Raises:
      UserError: it cannot be read; names it.
    """
    if path == '-':
        yield sys.stdin.buffer, 0
        return
    try:
        file = epath.Path(path).open('rb')
    except OSError as error:
        raise UserError(f'{path}: cannot be read ({error.strerror}); give the path of a text file') from None
    with file:
        yield cast(BinaryIO, file), epath.Path(path).stat().length


def find(field: str, name: str, split: str | None = None, several: bool = True) -> list[epath.Path]:
    """The files that `name` stands for: a file, all files below a directory (but hidden ones), or a pattern (*, ?, **).

    Args:
      field: of the configuration, for the message. split: what {split} in the name stands for.
      several: whether the name may be that of a directory, or a pattern; else it has to be a file.

    Raises:
      UserError: there is none.
    """
    path = epath.Path(name if split is None else name.replace(IN_NAME, split)).expanduser()
    if path.exists() and not path.is_dir():
        return [path]
    if not several:
        raise UserError(f'{field}={name}: {path} is no file; give one')
    pattern = f'{glob.escape(os.fspath(path))}/**' if path.is_dir() else os.fspath(path)
    found = [epath.Path(file) for file in sorted(glob.glob(pattern, recursive=True))]
    if not (files := [file for file in found if file.is_file()]):
        raise UserError(f'{field}={name}: {path} is no file, and no directory or pattern of some; give one')
    return files


def find_all(field: str, name: str, several: bool = True) -> list[epath.Path]:
    """The files of all splits."""
    splits = SPLITS if IN_NAME in name else (None,)
    return [file for split in splits for file in find(field, name, split, several)]


def fingerprint(paths: list[epath.Path]) -> list[tuple[str, int, int]]:
    """(path, size, time of change) of each file: other values mean another content."""
    return [(os.fspath(path), *_size_and_time(path)) for path in paths]


def _size_and_time(path: epath.Path) -> tuple[int, int]:
    if '://' in os.fspath(path):
        there = path.stat()
        return there.length, there.mtime
    here = os.stat(path)  # noqa: PTH116  (epath rounds times to seconds)
    return here.st_size, here.st_mtime_ns


PIECE = 4096
"""Characters, about, of the pieces that go to one split or another."""


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Cuts a text into pieces of about `size` characters at blank lines, else at line ends; joined they are `text`.

    The blank lines at its end belong to the last piece, and move no cut. A blank text has no pieces.
    """
    start, last = 0, len(text.rstrip())
    while start < last:
        end = start + size
        for mark, reach in (('\n\n', 2), ('\n', 3)):
            found = text.find(mark, end, min(start + reach * size, last))
            if found >= 0:
                end = found + len(mark)
                break
        yield text[start:end] if end < last else text[start:]
        start = end
