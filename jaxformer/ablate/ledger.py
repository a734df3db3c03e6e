"""The ledger of a grid is its directory; nothing else remembers what ran.

    GRID/grid.json                    the cells in order: id, label, overrides, what differs from the baseline
    GRID/cells/<id>/seed-<seed>/      one run each (see `jaxformer.train.loop` for what is in it)

A cell's id is the hash of its resolved configuration without the seed, and the directory of a run bears the seed
itself. Both are functions of the configuration alone, so a value added to an axis moves nothing, and a rerun finds what
is there. A cell that has left the grid keeps its directory and is listed as a former one.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer import claims, files
from jaxformer.errors import UserError
from jaxformer.train.writer import read_status, write_status

STATES = ('missing', 'running', 'done', 'failed', 'preempted')
"""Of a run. `running` means that a live process holds its claim; one that was killed counts as `preempted`."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What the directory of a run says about it. `status` is its status.json as it stands ({} where there is none).

    `holder`: the live process that works on it, None where there is none.
    """

    path: epath.Path
    seed: int
    state: str
    step: int
    reason: str | None
    status: Mapping[str, Any]
    holder: claims.Holder | None = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell as grid.json keeps it. `derived` and `further` map fields to `(baseline's value, this cell's value)`.

    `reference`: figures of others about the same cell, by title.
    """

    id: str
    label: str
    overrides: Mapping[str, Any]
    derived: Mapping[str, Sequence[Any]]
    further: Mapping[str, Sequence[Any]]
    parameters: int | None
    reference: Mapping[str, float | str]


@dataclasses.dataclass(frozen=True)
class Ledger:
    """grid.json: the first cell is the baseline; `former` are cells on disk that are no longer in the grid.

    `notes`: paragraphs for the report. `reference_source`: where the cells' reference figures come from.
    """

    name: str
    docstring: str
    axis: tuple[str, ...]
    metric: str
    seeds: tuple[int, ...]
    baseline: Mapping[str, Any]
    warnings: tuple[str, ...]
    cells: tuple[Entry, ...]
    former: tuple[Entry, ...]
    reference_source: str
    notes: tuple[str, ...]


def run_dir(workdir: epath.PathLike, cell_id: str, seed: int) -> epath.Path:
    """The directory of a run."""
    return epath.Path(workdir) / 'cells' / cell_id / f'seed-{seed}'


def read_run(path: epath.PathLike, now: float | None = None) -> Run:
    """Reads the state of the run in `path` (`…/seed-<seed>`), which need not exist. Writes nothing.

    A status.json that cannot be read makes the run a failed one that says so, and leaves the rest of the grid alone.

    Args:
      now: what `claims.clock` says, where several machines work on the grid and their clocks may differ.
    """
    path = epath.Path(path)
    seed = int(path.name.removeprefix('seed-'))
    holder = claims.holder(path, now=now)  # before the status: a process says `done` before it gives the claim back
    try:
        status = read_status(path)
    except UserError as error:
        return Run(path, seed, 'failed', 0, str(error), {}, holder)
    if status is None:
        return Run(path, seed, 'running' if holder else 'missing', 0, None, {}, holder)
    state, step, reason = status['status'], status['step'], status['reason']
    if state == 'running' and not holder:
        state, reason = 'preempted', 'its process ended without a word (killed, or the machine went down)'
    elif holder and state != 'done':
        state, reason = 'running', None
    return Run(path, seed, state, step, reason, status, holder)


def runs_of(workdir: epath.PathLike, cell_id: str, seeds: Sequence[int] = ()) -> list[Run]:
    """The runs of a cell by seed: those on disk, and those of `seeds`, which may be missing."""
    directory = epath.Path(workdir) / 'cells' / cell_id
    names = [path.name.removeprefix('seed-') for path in directory.glob('seed-*')] if directory.exists() else []
    found = {int(name) for name in names if name.isdecimal()}
    return [read_run(run_dir(workdir, cell_id, seed)) for seed in sorted(found | set(seeds))]


def mark(path: epath.PathLike, state: str, reason: str, num_steps: int) -> None:
    """Records in status.json how the run in `path` ended, where it could not do so itself.

    Raises:
      BusyError: another live process has taken the run over in the meantime.
      UserError: status.json is damaged.
    """
    path = epath.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    with claims.hold(path):
        status = read_run(path).status
        write_status(path, state, status['step'] if status else 0, num_steps, reason)


def record(workdir: epath.PathLike, ledger: Ledger) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Writes grid.json; seeds add up over calls, and cells that have left the grid are kept under `former`.

    Returns:
      The cells that leave it by this call, and the fields of the baseline that are not what they were.

    Raises:
      UserError: the directory belongs to another grid, or cannot be written.
    """
    workdir = epath.Path(workdir)
    left: tuple[Entry, ...] = ()
    changed: tuple[str, ...] = ()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if (workdir / files.CONFIG).exists():
            raise UserError(f'--workdir={workdir}: the directory of a run; choose another one for a grid')
        if (workdir / files.GRID).exists():
            old = read(workdir, expected=ledger.name)
            changed = tuple(_changed(old.baseline, _as_json(ledger.baseline)))
            ledger = _following(old, ledger)
            left = tuple(cell for cell in old.cells if cell in ledger.former)
        content = dataclasses.asdict(ledger)
        if not (workdir / files.GRID).exists() or files.read_json(workdir / files.GRID) != _as_json(content):
            files.write_json(workdir / files.GRID, content)
    except OSError as error:
        raise UserError(f'--workdir={workdir}: cannot be written ({error.strerror}); choose another one') from None
    return left, changed


def read(workdir: epath.PathLike, expected: str | None = None) -> Ledger:
    """Reads grid.json.

    Args:
      expected: name of the grid that the directory must belong to, where that matters.

    Raises:
      UserError: there is none, it is damaged, or it belongs to another grid.
    """
    path = epath.Path(workdir) / files.GRID
    if not path.exists():
        if (path.parent / files.CONFIG).exists():
            raise UserError(f'--workdir={workdir}: the directory of a run; give that of a grid')
        raise UserError(f'--workdir={workdir}: holds no grid.json; start the grid with `jaxformer ablate`')
    content = files.read_json(path)
    try:
        entries = {key: tuple(Entry(**cell) for cell in content[key]) for key in ('cells', 'former')}
        lists = {key: tuple(content[key]) for key in ('axis', 'seeds', 'warnings', 'notes')}
        ledger = Ledger(**{**content, **entries, **lists})
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f'{path}: not a ledger ({error}); remove the file, `jaxformer ablate` writes it anew') from None
    if expected is not None and ledger.name != expected:
        raise UserError(
            f'--workdir={workdir}: belongs to the grid {ledger.name!r}, not {expected!r}; choose another one'
        )
    return ledger


def _changed(old: Any, new: Any, field: str = '') -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in [*new, *(name for name in old if name not in new)]:
            yield from _changed(old.get(name), new.get(name), f'{field}.{name}' if field else name)
    elif old != new:
        yield field


def _following(old: Ledger, new: Ledger) -> Ledger:
    current = {cell.id for cell in new.cells}
    former = {cell.id: cell for cell in (*old.former, *old.cells) if cell.id not in current}
    return dataclasses.replace(new, seeds=tuple(sorted({*old.seeds, *new.seeds})), former=tuple(former.values()))


def _as_json(content: Any) -> Any:
    """`content` as it comes back from a JSON file: tuples are lists there."""
    if isinstance(content, Mapping):
        return {key: _as_json(value) for key, value in content.items()}
    return [_as_json(value) for value in content] if isinstance(content, (list, tuple)) else content
