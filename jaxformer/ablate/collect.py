"""Reads a grid's directory into what a report shows. Nothing is dropped: a run that did not finish is in it as such."""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer import config as config_lib
from jaxformer import files
from jaxformer.ablate import count, guards, ledger, metrics, stats
from jaxformer.ablate.count import Cost
from jaxformer.errors import UserError
from jaxformer.schema import Config
from jaxformer.train.writer import METRICS, read_metrics

Series = Mapping[str, tuple[tuple[int, float], ...]]
"""Metric → its (step, value) pairs, ascending; values that are not finite are left out."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A run with its curves; `final` holds (step, value) of the last record of each metric, if the run is done.

    `value` is None where the last record is not a finite number. `seconds` is what the run took (see `Work`);
    `versions` are those of the package that worked on it.
    """

    run: ledger.Run
    series: Series
    final: Mapping[str, tuple[int, float | None]]
    seconds: float | None
    versions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CellResult:
    """A cell with its runs; `summaries` are over the done ones, by metric.

    `config`: None where grid.json holds one of another version of the package. `cost`: of a run, as far as it could be
    counted. `unlike`: what of it is unlike the base's (see `guards.unlike`).
    """

    entry: ledger.Entry
    config: Config | None
    cost: Cost
    unlike: Mapping[str, float]
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
    configs = [_config(book, entry) for entry in book.cells]
    costs = [_cost(entry, cfg) for entry, cfg in zip(book.cells, configs, strict=True)]
    cells = tuple(
        _cell(workdir, book, entry, cfg, cost, guards.unlike(costs[0], cost, book.axis, changes_of(entry)))
        for entry, cfg, cost in zip(book.cells, configs, costs, strict=True)
    )
    split = book.metric.rpartition('/')[0]
    recorded = {key for cell in cells for result in cell.runs for key in (*result.series, *result.final)}
    known = [f'{split}/{name}' for name in metrics.METRICS if f'{split}/{name}' in recorded]
    return Results(book, cells, tuple(sorted(known, key=lambda key: key != book.metric)))


def changes_of(entry: ledger.Entry) -> dict[str, Any]:
    """Field → value of a cell, of all that it sets and all that follows."""
    followed = {field: pair[1] for changes in (entry.derived, entry.further) for field, pair in changes.items()}
    return {**entry.overrides, **followed}


def _config(book: ledger.Ledger, entry: ledger.Entry) -> Config | None:
    values: dict[str, Any] = copy.deepcopy(dict(book.baseline))
    try:
        for field, value in changes_of(entry).items():
            *groups, name = field.split('.')
            node = values
            for group in groups:
                node = node[group]
            node[name] = value
        return config_lib.from_record(values)
    except (KeyError, TypeError, UserError):
        return None


def _cost(entry: ledger.Entry, cfg: Config | None) -> Cost:
    """What a run of the cell takes, so far as it can be said without preparing data."""
    flops = tokens = None
    if cfg is not None:
        with contextlib.suppress(UserError):
            if count.at_hand(cfg):
                flops, tokens = count.train_flops(cfg), count.train_tokens(cfg)
    return Cost(entry.parameters, flops, tokens, cfg.train.batch_size if cfg else 0)


def _cell(
    workdir: epath.PathLike,
    book: ledger.Ledger,
    entry: ledger.Entry,
    cfg: Config | None,
    cost: Cost,
    unlike: Mapping[str, float],
) -> CellResult:
    results = tuple(_run(run) for run in ledger.runs_of(workdir, entry.id, book.seeds))
    values: dict[str, list[float]] = {}
    for result in results:
        for key, (_, value) in result.final.items():
            values.setdefault(key, [])
            if value is not None:
                values[key].append(value)
    seconds = [result.seconds for result in results if result.run.state == 'done' and result.seconds is not None]
    return CellResult(
        entry=entry,
        config=cfg,
        cost=cost,
        unlike=unlike,
        runs=results,
        summaries={key: stats.summarise(found) for key, found in values.items()},
        seconds=sum(seconds) / len(seconds) if seconds else None,
    )


def _run(run: ledger.Run) -> RunResult:
    records: list[dict[str, Any]] = []
    if (run.path / METRICS).exists():
        try:
            records = read_metrics(run.path / METRICS)
        except UserError as error:
            run = dataclasses.replace(run, state='failed', reason=str(error))
    series: dict[str, tuple[tuple[int, float], ...]] = {}
    final: dict[str, tuple[int, float | None]] = {}
    for key in dict.fromkeys(key for record in records for key in record if '/' in key):
        pairs = [(record['step'], _finite(record[key])) for record in records if key in record]
        series[key] = tuple((step, value) for step, value in pairs if value is not None)
        if run.state == 'done':
            final[key] = pairs[-1]
    if records:  # a process that fell over could not write its last step into status.json
        run = dataclasses.replace(run, step=max(run.step, records[-1]['step']))
    starts = _starts(run.path)
    worked = _work(starts, [record['time'] for record in records], run.status)
    return RunResult(
        run=run,
        series=series,
        final=final,
        seconds=worked.seconds if worked else None,
        versions=tuple(dict.fromkeys(start['versions']['jaxformer'] for start in starts)),
    )


def _finite(value: float | str) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _starts(path: epath.Path) -> list[dict[str, Any]]:
    """What environment.json says of each process that worked on the run, in order."""
    try:
        starts = files.read_json(path / 'environment.json')
    except (FileNotFoundError, UserError):  # only the seconds and the version are lost
        return []
    known = isinstance(starts, list) and all(
        isinstance(start, dict) and {'time', 'versions'} <= start.keys() for start in starts
    )
    return starts if known else []


@dataclasses.dataclass(frozen=True)
class Work:
    """What processes did about a run: from when to when each of them worked on it, without the pauses between.

    seconds: the time that they took, of a process that trained several runs together the share of one.
    """

    spans: tuple[tuple[float, float], ...]
    seconds: float


def work(run: ledger.Run) -> Work | None:
    """None where the run's directory does not say."""
    times: list[float] = []
    if (run.path / METRICS).exists():
        with contextlib.suppress(UserError):
            times = [record['time'] for record in read_metrics(run.path / METRICS)]
    return _work(_starts(run.path), times, run.status)


def _work(starts: Sequence[Mapping[str, Any]], times: Sequence[float], status: Mapping[str, Any]) -> Work | None:
    """A process worked from its start to the last sign of it before the next one's."""
    if not starts or not status:
        return None
    spans, seconds = [], 0.0
    begun = [start['time'] for start in starts]
    for start, following in zip(starts, [*begun[1:], math.inf], strict=True):
        signs = [time for time in (*times, status['updated']) if start['time'] <= time < following]
        spans.append((start['time'], max(signs, default=start['time'])))
        seconds += (spans[-1][1] - spans[-1][0]) / max(start.get('runs_together', 1), 1)
    return Work(tuple(spans), seconds)
