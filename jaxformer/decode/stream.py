r"""Lines of a file or a pipe as they come, with bounded memory, and how far one is.

A line ends at '\n' alone, and a '\r' before it belongs to the end: U+2028, U+0085, VT and FF stand inside a line. The
last line needs no end. A byte order mark before the first one is passed over. Bytes that are not UTF-8 are read as
U+FFFD, and NUL is a character like others.
"""

import codecs
import collections
import select
import time
from typing import IO, BinaryIO, NamedTuple

_BLOCK = 1 << 16  # bytes read at a time
_HELD = 1 << 24  # bytes of lines that are held, about
_PATIENCE = 0.05  # seconds to wait for more lines before those that are there are given


class Line(NamedTuple):
    """A line without its end; of one that is longer than is read, no text, and its size in bytes."""

    text: str
    too_long: int = 0


class Lines:
    """The lines of a stream, by windows.

    damaged: lines so far that were not UTF-8. num_bytes: read so far.
    """

    def __init__(self, source: BinaryIO, longest: int) -> None:
        """longest: bytes of a line that are read; of a longer one none is kept."""
        self._source, self._longest = source, longest
        self._lines: collections.deque[Line] = collections.deque()
        self._begun = bytearray()  # of a line whose end has not come
        self._dropped = 0  # bytes of it that were not kept
        self._ended = False
        self._fresh = True
        self.damaged = self.num_bytes = 0

    def window(self, size: int) -> list[Line]:
        """The next lines: at least one, and as many more as are there, `size` at most; none at the end."""
        held = 0
        while not self._ended and (not self._lines or len(self._lines) < size and held < _HELD and self._more()):
            block = getattr(self._source, 'read1', self._source.read)(_BLOCK)
            held += len(block)
            self._take(block)
        return [self._lines.popleft() for _ in range(min(size, len(self._lines)))]

    def _more(self) -> bool:
        """Whether something can be read without much waiting."""
        try:
            return bool(select.select([self._source], [], [], _PATIENCE)[0])
        except (OSError, ValueError):  # no file of the system
            return True

    def _take(self, block: bytes) -> None:
        self.num_bytes += len(block)
        if not block:
            self._ended = True
            alone = self._fresh and self._begun == codecs.BOM_UTF8  # a mark before a first line that does not come
            if self._dropped or self._begun and not alone:
                self._finish()
            return
        *whole, begun = block.split(b'\n')
        for part in whole:
            self._add(part)
            self._finish()
        self._add(begun)

    def _add(self, part: bytes) -> None:
        self._begun += part
        if len(self._begun) > self._longest:
            self._dropped += len(self._begun)
            self._begun.clear()

    def _finish(self) -> None:
        if self._dropped:
            self._lines.append(Line('', self._dropped + len(self._begun)))
        else:
            line = bytes(self._begun)
            text = line.decode(errors='replace')
            self.damaged += text.encode() != line
            text = text.removeprefix('\ufeff') if self._fresh else text
            self._lines.append(Line(text.removesuffix('\r')))
        self._begun.clear()
        self._dropped, self._fresh = 0, False


class Progress:
    """A line on a terminal that says how far one is; nothing where there is none."""

    def __init__(self, stream: IO[str], size: int, unit: str = 'lines') -> None:
        """size: of what there is to read; 0 where nobody knows. unit: of what is done."""
        self._stream = stream if stream.isatty() else None
        self._size, self._unit, self._start = size, unit, time.monotonic()

    def show(self, done: int, read: int) -> None:
        """So many units are done, and so much of the size was read for them."""
        if self._stream:
            share = f' ({100 * read / self._size:.0f} % read)' if self._size else ''
            speed = done / max(time.monotonic() - self._start, 1e-9)
            self._stream.write(f'\r\x1b[K{done:,} {self._unit}{share}  {speed:,.1f} {self._unit}/s')
            self._stream.flush()

    def end(self) -> None:
        """Leaves the line as it is, and begins another."""
        if self._stream:
            self._stream.write('\n')
            self._stream.flush()
