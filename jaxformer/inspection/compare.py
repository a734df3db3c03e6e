"""What sets runs apart: their configurations, what they ran on, and where their metrics stand."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer import config, files
from jaxformer.decode.open import run_directory
from jaxformer.errors import UserError
from jaxformer.files import CONFIG
from jaxformer.train.writer import ENVIRONMENT, METRICS, read_metrics, read_status

ABSENT = '(none)'
"""Stands where a run has no such field: a config of another version, an environment that was not recorded."""

Values = tuple[Any, ...]  # one per run

_EVERY_PROCESS_ITS_OWN = ('time', 'pid', 'command')


@dataclasses.dataclass(frozen=True)
class Metric:
    """The last value of a metric in each run and the step it was measured at; None where a run has none (yet).

    differences: value minus that of the first run.
    """

    values: tuple[float | None, ...]
    steps: tuple[int | None, ...]
    differences: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two or more runs side by side; each tuple has one entry per run.

    state: 'status', 'step', 'num_steps' and 'reason' of every run, the same or not.
    config, environment: dotted field → values, of the fields that differ.
    metrics: every metric that some run has.
    """

    runs: tuple[str, ...]
    state: Mapping[str, Values]
    config: Mapping[str, Values]
    environment: Mapping[str, Values]
    metrics: Mapping[str, Metric]


def compare(workdirs: Sequence[epath.PathLike]) -> Comparison:
    """Compares runs, whether they are done, running, failed or not started; the first is the one others differ from.

    Runs of different versions of this package compare, too: fields that an older one did not have count as what was
    done without them. Of the environment, the record of the last start counts.

    Raises:
      UserError: fewer than two directories, one that is not the directory of a run, or a file of it that is damaged.
    """
    if len(workdirs) < 2:
        raise UserError(f'compare: {len(workdirs)} run given; it takes at least two')
    directories = [run_directory(workdir) for workdir in workdirs]
    statuses = [read_status(directory) or {'status': 'not started'} for directory in directories]
    configs = [flat(_recorded(directory), directory / CONFIG) for directory in directories]
    return Comparison(
        runs=tuple(map(str, directories)),
        state={
            name: tuple(status.get(name) for status in statuses) for name in ('status', 'step', 'num_steps', 'reason')
        },
        config=differing(configs),
        environment=_differing_environment(directories),
        metrics=_metrics([_last_metrics(directory) for directory in directories]),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; numbers that are not finite as text ("nan", "inf", "-inf")."""
    return {
        'runs': list(comparison.runs),
        'state': jsonable(comparison.state),
        'config': jsonable(comparison.config),
        'environment': jsonable(comparison.environment),
        'metrics': {name: jsonable(dataclasses.asdict(metric)) for name, metric in comparison.metrics.items()},
    }


def as_text(comparison: Comparison) -> str:
    """The comparison as aligned tables, the runs as columns; a difference stands in brackets behind a value."""
    letters = [f'[{number}]' for number in range(1, len(comparison.runs) + 1)]
    named = '\n'.join(f'{letter} {run}' for letter, run in zip(letters, comparison.runs, strict=True))
    state = {name: values for name, values in comparison.state.items() if any(value is not None for value in values)}
    state = {name: tuple('' if value is None else str(value) for value in values) for name, values in state.items()}
    metrics = {name: _metric_cells(metric) for name, metric in comparison.metrics.items()}
    parts = [
        table('run', letters, state, ''),
        table('config', letters, written(comparison.config), 'no field differs'),
        table('environment', letters, written(comparison.environment), 'nothing differs'),
        table('metric', letters, metrics, 'no run has any yet'),
    ]
    return '\n\n'.join((named, *parts))


def _recorded(directory: epath.Path) -> Any:
    """The config.json of a run with every field that there is now; as it stands where this version does not read it."""
    values = files.read_json(directory / CONFIG)
    try:
        return json.loads(config.canonical_json(config.from_record(values)))
    except UserError:
        return values


def flat(value: Any, path: epath.Path, prefix: str = '') -> dict[str, Any]:
    """{'model.d_model': 48, …} of the object that the file `path` holds; lists count as values."""
    if not isinstance(value, Mapping):
        raise UserError(f'{path}: holds {value!r} where an object has to be; put back the file')
    found: dict[str, Any] = {}
    for key, entry in value.items():
        nested = isinstance(entry, Mapping)
        found |= flat(entry, path, f'{prefix}{key}.') if nested else {f'{prefix}{key}': entry}
    return found


def differing(records: Sequence[Mapping[str, Any] | None]) -> dict[str, Values]:
    """Path → value in each record, of the paths where records differ; None (nothing is known) differs from nothing."""
    paths = dict.fromkeys(path for record in records if record is not None for path in record)
    found = {}
    for path in paths:
        values = [ABSENT if record is None else record.get(path, ABSENT) for record in records]
        known = [value for value, record in zip(values, records, strict=True) if record is not None]
        if any(value != known[0] for value in known):
            found[path] = tuple(values)
    return found


def _differing_environment(directories: Sequence[epath.Path]) -> dict[str, Values]:
    records = [environment(directory) for directory in directories]
    found = differing(records)
    if len({record is None for record in records}) == 2:
        recorded = tuple('missing' if record is None else 'recorded' for record in records)
        found = {ENVIRONMENT: recorded, **found}
    return found


def environment(directory: epath.Path) -> dict[str, Any] | None:
    """What the last process that worked on a run ran on, by dotted field; None where it is not recorded."""
    path = directory / ENVIRONMENT
    starts = files.read_json(path) if path.exists() else []
    if not starts:
        return None
    return {name: value for name, value in flat(starts[-1], path).items() if name not in _EVERY_PROCESS_ITS_OWN}


def _last_metrics(directory: epath.Path) -> dict[str, tuple[float, int]]:
    """Metric → (its last value, the step of it)."""
    path = directory / METRICS
    last: dict[str, tuple[float, int]] = {}
    for line in read_metrics(path) if path.exists() else ():
        for name, value in line.items():
            if name not in ('step', 'time') and isinstance(value, (int, float)):
                last[name] = (value, line['step'])
    return last


def _metrics(runs: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, Metric]:
    names = sorted({name for last in runs for name in last})
    metrics = {}
    for name in names:
        values = [last[name][0] if name in last else None for last in runs]
        first = values[0]
        metrics[name] = Metric(
            values=tuple(values),
            steps=tuple(last[name][1] if name in last else None for last in runs),
            differences=tuple(None if value is None or first is None else value - first for value in values),
        )
    return metrics


def _metric_cells(metric: Metric) -> tuple[str, ...]:
    """'0.8659', '0.9021 (+0.0362)'; with the step where it is not the same in all runs."""
    same_step = len({step for step in metric.steps if step is not None}) <= 1
    cells = []
    for number, (value, step, difference) in enumerate(
        zip(metric.values, metric.steps, metric.differences, strict=True)
    ):
        cell = ABSENT if value is None else _number(value)
        if number and difference is not None:
            cell += f' ({_number(difference, "+")})'
        if value is not None and not same_step:
            cell += f' at {step}'
        cells.append(cell)
    return tuple(cells)


def _number(value: float, sign: str = '') -> str:
    return f'{value:{sign},.0f}' if 1000 <= abs(value) < 1e15 else f'{value:{sign}.4g}'


def written(rows: Mapping[str, Values]) -> dict[str, tuple[str, ...]]:
    """The values as text."""
    return {path: tuple(str(v) for v in values) for path, values in rows.items()}


def table(title: str, heads: Sequence[str], rows: Mapping[str, Sequence[str]], empty: str) -> str:
    """Rows of text below `title` and `heads`, in aligned columns; without any row `empty` behind the title."""
    if not rows:
        return f'{title}: {empty}'
    lines = [(title, *heads), *((name, *cells) for name, cells in rows.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ('  '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return '\n'.join(line.rstrip() for line in padded)


def jsonable(value: Any) -> Any:
    """`value` with lists for tuples, and text for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [jsonable(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
