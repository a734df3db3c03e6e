"""A live process's claim on a directory: one at a time, over any shared file system, given up by dying.

    DIRECTORY/.claim/<generation>.json    who holds it; a thread of the holder touches the file every HEARTBEAT seconds
    DIRECTORY/.claim/<generation>.free    the same claim was given back

The claim with the highest generation counts. A next one is made by a hard link to a file that was written aside, which
appears whole or not at all and for one process only. It may be made where the current one

  * was given back, or
  * belongs to a process of the same machine that is not there any more (or another one has its pid): at once, or
  * belongs to another machine and was not touched for STALE seconds by the file system's own clock, so that machines
    whose clocks differ do no harm. Where a process cannot be looked up (no /proc) this rule stands alone.

Generations only grow, and whoever made a claim looks whether it is the highest: who was slow between looking and making
finds out. A holder that was suspended for longer than STALE may have been taken for dead; `Claim.check` tells it so,
and is called before anything is written. Bucket paths have no claims: there the launcher has to see to it that a
directory has one writer.

Of a mistake of the user's nothing is to stay: where one ends the holder of the first claim ever made, all of .claim
goes, by one renaming, so that who was about to make a claim has lost the file to make it of, and looks again.
"""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator

from etils import epath

from jaxformer.errors import RunError, UserError

HEARTBEAT = 5.0
"""Seconds between two signs of life."""

STALE = 60.0
"""Seconds without one after which a process of another machine counts as dead."""

DIRECTORY = '.claim'

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class BusyError(UserError):
    """Another live process holds the claim."""


class LostError(RunError):
    """The claim of this process was taken over while it was suspended; the directory is another one's now."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that holds a claim. `age`: seconds since its last sign of life; `started` tells its pid from a later
    process with the same one. `node` is the machine (and the container) in which the pid has its meaning.
    """

    host: str
    pid: int
    node: str
    started: str
    age: float

    def __str__(self) -> str:
        return f'pid {self.pid} on {self.host}'


class Claim:
    """What `hold` yields."""

    def __init__(self, place: pathlib.Path | None, generation: int = 0, content: str = '') -> None:
        self._place, self._generation, self._content = place, generation, content

    def check(self) -> None:
        """Raises LostError where another process has taken the claim over. Call it before each write."""
        if self._place is None:
            return
        try:
            content = _file(self._place, self._generation).read_text()
            if max(_generations(self._place)) == self._generation and content == self._content:
                return
        except FileNotFoundError:
            pass
        raise LostError(
            f'{self._place.parent}: another process took this directory over, as this one was suspended or out of '
            'reach; it stops here and leaves the directory to the other one'
        )


@contextlib.contextmanager
def hold(directory: epath.PathLike, *, stale: float = STALE, heartbeat: float = HEARTBEAT) -> Iterator[Claim]:
    """Holds the claim on a directory, which is made where it is missing, while the context lasts.

    Where a UserError ends the first claim of a directory, nothing of it stays there.

    Raises:
      BusyError: another live process (or another thread of this one) holds it.
      OSError: the directory cannot be written.
    """
    if '://' in os.fspath(directory):
        yield Claim(None)
        return
    place = pathlib.Path(directory) / DIRECTORY
    generation, content = _take(place, stale)
    over, owner = threading.Event(), os.getpid()
    threading.Thread(target=_beat, args=(place, generation, over, heartbeat), name='claim', daemon=True).start()
    claim, end = Claim(place, generation, content), _give_back
    try:
        yield claim
    except UserError:
        if generation == 1:
            end = _take_along
        raise
    finally:
        over.set()
        if os.getpid() == owner:  # a fork has not got it
            with contextlib.suppress(LostError, OSError):  # what is another one's is not to be given back
                claim.check()
                end(place, generation)


def holder(directory: epath.PathLike, *, now: float | None = None, stale: float = STALE) -> Holder | None:
    """The live process that holds the claim on a directory. Changes nothing; the directory need not exist.

    Args:
      now: seconds since 1970 by the clock of the file system (see `clock`); by this machine's clock without it.
    """
    if '://' in os.fspath(directory):
        return None
    try:
        return _current(pathlib.Path(directory) / DIRECTORY, time.time() if now is None else now, stale)[1]
    except (FileNotFoundError, NotADirectoryError):
        return None


def clock(directory: epath.PathLike) -> float:
    """Seconds since 1970 by the clock of the file system that holds `directory`; touches a file `.clock` there."""
    if '://' in os.fspath(directory):
        return time.time()
    path = pathlib.Path(directory) / '.clock'
    path.touch()
    return path.stat().st_mtime


def _take(place: pathlib.Path, stale: float) -> tuple[int, str]:
    """Makes the next claim. Returns its generation and its content."""
    while True:
        who = {'host': socket.gethostname(), 'node': _node(), 'pid': os.getpid(), 'started': _started(os.getpid())}
        content = json.dumps({**who, 'time': round(time.time(), 3), 'id': uuid.uuid4().hex})
        try:
            place.mkdir(parents=True)  # the directory, too: another one's mistake may just have taken it along
        except FileExistsError:
            if place.is_symlink() and not place.exists():
                raise
        try:
            aside, now = _written_aside(place, content)
        except FileNotFoundError:  # a mistake took the place along
            continue
        try:
            highest, other = _current(place, now, stale)
            if other:
                raise BusyError(
                    f'{place.parent}: another live process ({other}) uses this directory; '
                    'wait for it or choose another one'
                )
            generation = highest + 1
            made = _made(aside, _file(place, generation))
        except FileNotFoundError:  # the winner of a race swept the file aside away, or a mistake took it along
            continue
        finally:
            aside.unlink(missing_ok=True)
        if not made:
            continue
        mine = _file(place, generation)
        if any(found >= generation and name != mine.name for name, found in _entries(place)):
            mine.unlink(missing_ok=True)  # slow: others had it, and gave it back or not, in the meantime
            continue
        for name, found in _entries(place):
            if (
                found < generation - 1
            ):  # the one before stays, so that none who lists the directory now sees none at all
                (place / name).unlink(missing_ok=True)
        for leftover in place.glob('.*.tmp'):
            leftover.unlink(missing_ok=True)
        for leftover in place.parent.glob(f'{DIRECTORY}-*'):  # of `_take_along` in a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        return generation, content


def _current(place: pathlib.Path, now: float, stale: float) -> tuple[int, Holder | None]:
    """(highest generation, 0 for none; who holds it and lives)."""
    generation = max(_generations(place), default=0)
    if not generation or _file(place, generation, 'free').exists():
        return generation, None
    try:
        with _file(place, generation).open() as file:  # opened, as that makes a client of NFS ask the server
            text, touched = file.read(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:  # swept away by the next one
        return generation, None
    try:
        who = json.loads(text)
        found = Holder(str(who['host']), int(who['pid']), str(who['node']), str(who['started']), now - touched)
    except (ValueError, KeyError, TypeError):  # lost its content when a machine went down
        found = Holder('an unknown host', 0, '', '', now - touched)
    alive = _alive(found)
    if alive is None:
        alive = found.age < stale
    return generation, found if alive else None


def _alive(found: Holder) -> bool | None:
    """Whether its process is there; None where that cannot be looked up from here."""
    if not found.node or found.node != _node() or not found.started:
        return None
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    started = _started(found.pid)
    return started == found.started if started else None


def _node() -> str:
    """Names what this process's pid is unique in: a boot of a machine, and the container. '' where unknown."""
    try:
        boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
        return f'{socket.gethostname()} {boot} {pathlib.Path("/proc/self/ns/pid").readlink()}'
    except OSError:
        return ''


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; 'ended' for one that waits to be buried, '' where unknown."""
    try:
        state, *fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    except OSError:
        return ''
    return 'ended' if state in 'ZX' else fields[18]


def _beat(place: pathlib.Path, generation: int, over: threading.Event, every: float) -> None:
    while not over.wait(every):
        try:
            if max(_generations(place), default=0) != generation:  # taken over
                return
            os.utime(_file(place, generation))
        except FileNotFoundError:
            return
        except OSError:  # a file server that is away for a while
            continue


def _give_back(place: pathlib.Path, generation: int) -> None:
    free = _file(place, generation, 'free')
    try:
        free.touch()
    except OSError:  # a full disk; where this does not help either, the claim ends with the process
        with contextlib.suppress(OSError):
            _file(place, generation).rename(free)


def _take_along(place: pathlib.Path, generation: int) -> None:
    """No claim was ever made here, as far as the file system lets it be so."""
    gone = place.with_name(f'{DIRECTORY}-{uuid.uuid4().hex}')
    try:
        place.rename(gone)
    except OSError:
        _give_back(place, generation)
    shutil.rmtree(gone, ignore_errors=True)


def _made(aside: pathlib.Path, mine: pathlib.Path) -> bool:
    """Whether the file written aside is now `mine` as well, which nobody else had."""
    try:
        os.link(aside, mine)
    except FileExistsError:
        return aside.stat().st_nlink == 2  # it was made, and the file server's answer was lost
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        content = aside.read_text()  # first, as the place may not be the one that it was
        try:
            with mine.open('x') as file:
                file.write(content)
        except FileExistsError:
            return False
    return True


def _written_aside(place: pathlib.Path, content: str) -> tuple[pathlib.Path, float]:
    """(a new file of that content, the time at which it was written)."""
    aside = place / f'.{uuid.uuid4().hex}.tmp'
    try:
        with aside.open('x') as file:
            file.write(content)
            file.flush()
            return aside, os.fstat(file.fileno()).st_mtime
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _file(place: pathlib.Path, generation: int, kind: str = 'json') -> pathlib.Path:
    return place / f'{generation}.{kind}'


def _entries(place: pathlib.Path) -> list[tuple[str, int]]:
    """(name, generation) of what is in the directory of the claims, in the order of the generations."""
    split = [(name, name.partition('.')[0]) for name in os.listdir(place)]
    return sorted(((name, int(number)) for name, number in split if number.isdecimal()), key=lambda entry: entry[1])


def _generations(place: pathlib.Path) -> list[int]:
    return [generation for _, generation in _entries(place)]
