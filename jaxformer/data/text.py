"""Lines of text files, by the newline alone."""

import sys

from etils import epath

from jaxformer.errors import UserError


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
    try:
        content = sys.stdin.buffer.read() if path == '-' else epath.Path(path).read_bytes()
        return split_lines(content.decode('utf-8-sig'))
    except UnicodeDecodeError as error:
        raise UserError(f'{path}: not UTF-8 ({error}); convert the file to UTF-8') from None
    except OSError as error:
        raise UserError(f'{path}: cannot be read ({error.strerror}); give the path of a text file') from None
