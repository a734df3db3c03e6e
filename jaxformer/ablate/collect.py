"""Reads a grid's directory into what a report shows. Nothing is dropped: a run that did not finish is in it as such."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from etils import epath

from jaxformer import files
from jaxformer.ablate import ledger, metrics, stats
from jaxformer.errors import UserError

Series = Mapping[str, tuple[tuple[int, float], ...]]
"""Metric → its (step, value) pairs, ascending; values that are not finite are left out."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A run with its curves; `final` holds (step, value) of the last record of each metric, if the run is done.

    `value` is None where the last record is not a finite number. `seconds` is the time that the records span.
    """

    run: ledger.Run
    series: Series
    final: Mapping[str, tuple[int, float | None]]
    seconds: float | None
    version: str | None


@dataclasses.dataclass(frozen=True)
class CellResult:
    """A cell with its runs; `summaries` are over the done ones, by metric."""

    entry: ledger.Entry
    runs: tuple[RunResult, ...]
    summaries: Mapping[str, stats.Summary]
    seconds: float | None

    @property
    def done(self) -> tuple[RunResult, ...]:
        """The runs that the summaries are over."""
        return tuple(result for result in self.runs if result.run.state == 'done')


@dataclasses.dataclass(frozen=True)
class Results:
    """A grid's cells, baseline first, and the metrics that any run recorded, the one it is judged by first."""

    ledger: ledger.Ledger
    cells: tuple[CellResult, ...]
    metrics: tuple[str, ...]


def collect(workdir: epath.PathLike) -> Results:
    """Reads the grid in `workdir`.

    Raises:
      UserError: there is no grid, or its grid.json is damaged.
    """
    book = ledger.read(workdir)
    cells = tuple(_cell(workdir, entry, book.seeds) for entry in book.cells)
    split = book.metric.rpartition('/')[0]
    recorded = {key for cell in cells for result in cell.runs for key in (*result.series, *result.final)}
    known = [f'{split}/{name}' for name in metrics.METRICS if f'{split}/{name}' in recorded]
    return Results(book, cells, tuple(sorted(known, key=lambda key: key != book.metric)))


def _cell(workdir: epath.PathLike, entry: ledger.Entry, seeds: tuple[int, ...]) -> CellResult:
    results = tuple(_run(run) for run in ledger.runs_of(workdir, entry.id, seeds))
    values: dict[str, list[float]] = {}
    for result in results:
        for key, (_, value) in result.final.items():
            values.setdefault(key, [])
            if value is not None:
                values[key].append(value)
    seconds = [result.seconds for result in results if result.run.state == 'done' and result.seconds is not None]
    return CellResult(
        entry=entry,
        runs=results,
        summaries={key: stats.summarise(found) for key, found in values.items()},
        seconds=sum(seconds) / len(seconds) if seconds else None,
    )


def _run(run: ledger.Run) -> RunResult:
    records = _records(run.path / 'metrics.jsonl')
    series: dict[str, tuple[tuple[int, float], ...]] = {}
    final: dict[str, tuple[int, float | None]] = {}
    for key in dict.fromkeys(key for record in records for key in record if '/' in key):
        pairs = [(record['step'], _finite(record[key])) for record in records if key in record]
        series[key] = tuple((step, value) for step, value in pairs if value is not None)
        if run.state == 'done':
            final[key] = pairs[-1]
    if records:  # a process that fell over could not write its last step into status.json
        run = dataclasses.replace(run, step=max(run.step, records[-1]['step']))
    return RunResult(run, series, final, _seconds(run), _version(run.path))


def _records(path: epath.Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl by step. A line that a kill cut short is no record; of two of a step the later counts."""
    if not path.exists():
        return []
    merged: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
            step = int(record['step'])
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
        merged[step] = {**merged.setdefault(step, {}), **record}
    return [merged[step] for step in sorted(merged)]


def _finite(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _seconds(run: ledger.Run) -> float | None:
    started, updated = (_finite(run.status.get(key)) for key in ('started', 'updated'))
    return None if started is None or updated is None else updated - started


def _version(path: epath.Path) -> str | None:
    """Version of the package that wrote the run, from environment.json."""
    try:
        environment = files.read_json(path / 'environment.json')
        return str(environment['versions']['jaxformer'])
    except (OSError, UserError, KeyError, TypeError):
        return None
