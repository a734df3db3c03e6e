"""What there is in the directory of a run's checkpoints: which steps, whole or not and why, what they are kept for."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from jaxformer import checkpoint, config
from jaxformer.decode.open import read_config, run_directory
from jaxformer.errors import RunError, UserError
from jaxformer.files import CHECKPOINTS
from jaxformer.inspection import stored
from jaxformer.inspection.compare import jsonable, table
from jaxformer.schema import Config
from jaxformer.train.writer import METRICS, read_metrics

WHOLE, DAMAGED, HALF, FOREIGN, OTHER = 'whole', 'damaged', 'half-written', 'not ours', 'another version'


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of the directory.

    step: None where the name is none.
    state: WHOLE, DAMAGED, HALF, FOREIGN or OTHER (of a format, or a config, that this version does not know).
    reason: of a state that is not WHOLE.
    bytes: of all its files.
    metrics: what the run wrote at that step.
    kept: 'newest' and 'best', for which a whole one stays.
    """

    name: str
    step: int | None
    state: str
    reason: str
    bytes: int
    metrics: Mapping[str, float]
    kept: tuple[str, ...]


def of_run(workdir: epath.PathLike) -> list[Entry]:
    """Every entry: steps in ascending order, then what has other names. Every file of a step is read and hashed.

    Raises:
      UserError: not the directory of a run, or one without checkpoints.
    """
    directory = run_directory(workdir) / CHECKPOINTS
    steps = checkpoint.steps(directory)
    others = [path for path in directory.iterdir() if path.name not in map(str, steps)] if directory.is_dir() else []
    if not steps and not others:
        raise UserError(f'{workdir}: no checkpoint yet; wait until step config.train.checkpoint_every')
    states = {step: _state(directory, step) for step in steps}
    metrics = _metrics(epath.Path(workdir) / METRICS)
    kept = _kept(workdir, [step for step in steps if states[step][0] in (WHOLE, OTHER)], metrics)
    found = [
        Entry(str(step), step, *states[step], _size(directory / str(step)), metrics.get(step, {}), kept.get(step, ()))
        for step in steps
    ]
    for path in sorted(others, key=lambda path: path.name):
        half = path.name.endswith('.partial') or '.orbax-checkpoint-tmp' in path.name
        reason = (
            'by a save that goes on or was killed; the next one clears it away' if half else 'not the name of a step'
        )
        found.append(Entry(path.name, None, HALF if half else FOREIGN, reason, _size(path), {}, ()))
    return found


def _state(directory: epath.Path, step: int) -> tuple[str, str]:
    """(state, reason) of a step."""
    path = directory / str(step)
    if reason := checkpoint.check(path):
        if checkpoint.newer(path):
            return OTHER, reason
        if (path / checkpoint.MANIFEST).exists():
            return DAMAGED, reason
        try:
            arrays = f'{len(stored.listed(path))} arrays of orbax'
        except RunError:
            arrays = 'no arrays of orbax'
        return FOREIGN, f'{checkpoint.MANIFEST}: missing; {arrays}'
    try:
        config.from_record(checkpoint.config(directory, step))
    except (UserError, RunError) as error:
        return OTHER, ' '.join(str(error).split())
    return WHOLE, ''


def _size(path: epath.Path) -> int:
    return sum(map(_size, path.iterdir())) if path.is_dir() else path.stat().length


def _metrics(path: epath.Path) -> dict[int, dict[str, float]]:
    """Step → every number that was written at it; {} where the file cannot be read, of which a warning says."""
    found: dict[int, dict[str, float]] = {}
    try:
        for line in read_metrics(path) if path.exists() else ():
            numbers = {name: value for name, value in line.items() if isinstance(value, (int, float))}
            found.setdefault(line['step'], {}).update(
                {name: value for name, value in numbers.items() if name not in ('step', 'time')}
            )
    except UserError as error:
        logging.warning('%s', error)
    return found


def _kept(
    workdir: epath.PathLike, whole: Sequence[int], metrics: Mapping[int, Mapping[str, float]]
) -> dict[int, tuple[str, ...]]:
    """Step → what it stays for, by the run's train.keep_checkpoints and train.keep_best; as `train.record` chooses."""
    try:
        cfg: Config = read_config(workdir)
    except UserError as error:
        logging.warning('%s', error)
        return {}
    losses = {step: metrics.get(step, {}).get(f'{cfg.eval.split}/loss', math.nan) for step in whole}
    known = sorted((loss, -step) for step, loss in losses.items() if math.isfinite(loss))
    best = [-step for _, step in known[: cfg.train.keep_best]]
    newest = whole[-cfg.train.keep_checkpoints :]
    return {
        step: tuple(name for name, steps in (('newest', newest), ('best', best)) if step in steps) for step in whole
    }


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """An object per entry; numbers that are not finite as text."""
    return [{**jsonable(dataclasses.asdict(entry))} for entry in entries]


def as_text(entries: Sequence[Entry]) -> str:
    """A table with the losses of each step, and a line for each entry that is not whole."""
    losses = sorted({name for entry in entries for name in entry.metrics if name.endswith('/loss')})
    rows = {
        entry.name: (
            entry.state,
            f'{entry.bytes / 2**20:,.1f} MiB',
            *(f'{entry.metrics[name]:.4g}' if name in entry.metrics else '-' for name in losses),
            ', '.join(entry.kept) or '-',
        )
        for entry in entries
    }
    told = [f'{entry.name}: {entry.state}: {entry.reason}' for entry in entries if entry.reason]
    return '\n\n'.join((table('step', ('state', 'size', *losses, 'kept as'), rows, ''), *told))
