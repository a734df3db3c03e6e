"""What the examples of the evaluation leave open, where `separation` says what the seeds do.

Another test set of the same kind would have given other numbers, even with the same trained models. The examples that
each run was evaluated on are resampled (`resample.intervals`), the same ones for all cells and seeds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.ablate import collect, metrics, resample
from jaxformer.ablate.shown import row_name
from jaxformer.errors import UserError
from jaxformer.train import per_example

Array = np.ndarray

LEVEL = 95  # per cent

RATIOS = {
    'loss': ('nll', 'tokens'),
    'perplexity': ('nll', 'tokens'),
    'bits_per_byte': ('nll', 'tokens'),
    'accuracy': ('correct', 'tokens'),
    'per': ('errors', 'symbols'),
    'symbol_errors': ('errors', 'symbols'),
    'wer': ('wrong', ''),
    'line_errors': ('wrong', ''),
}
"""Metric → what is summed per example above and below the line; '' for the number of examples."""

_EXACT = 1e-3  # relative; what the examples add up to may be off from the recorded value by rounding, not by more


@dataclasses.dataclass(frozen=True)
class Interval:
    """A value with the two ends of its interval, in the unit of the metric's records."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Resampled:
    """A cell: its metric, mean over its finished seeds, and the difference from the base over the seeds they share.

    `value` is None for the `reason` given; so is `difference`, which the base has none of.
    """

    index: int
    value: Interval | None = None
    difference: Interval | None = None
    reason: str = ''


@dataclasses.dataclass(frozen=True)
class Measured:
    """What resampling found about each cell, in the order of the table; over how many examples."""

    cells: tuple[Resampled, ...]
    examples: int


@dataclasses.dataclass(frozen=True)
class _Run:
    """[N] each: the examples of a run by number, and what they add above and below the line."""

    ids: Array
    above: Array
    below: Array
    scale: float  # of bits per byte: what makes bits per byte of nats per token


def measure(results: collect.Results, *, resamples: int = resample.RESAMPLES) -> Measured:
    """Resamples the examples of the grid's metric. The cells that cannot be, have a reason."""
    key = results.ledger.metric
    runs: list[dict[int, _Run]] = []
    reasons: list[str] = []
    ids: Array | None = None
    for cell in results.cells:
        found, reason = _of_cell(cell, key)
        if found and ids is None:
            ids = next(iter(found.values())).ids
        if any(ids is None or not np.array_equal(ids, run.ids) for run in found.values()):
            found, reason = {}, 'evaluated on other examples than the first cell'
        if ids is not None and len(ids) < 2:
            found, reason = {}, 'one example'
        runs.append(found)
        reasons.append(reason)
    if not any(runs):
        return Measured(tuple(Resampled(index, reason=reason) for index, reason in enumerate(reasons)), 0)
    combined, places = _combinations(runs)
    every = [run for found in runs for run in found.values()]
    scale_R = np.array([run.scale for run in every])

    def curve(ratio_BR: Array) -> Array:
        return np.exp(np.minimum(ratio_BR, 700.0)) if key.endswith('/perplexity') else ratio_BR * scale_R

    intervals = resample.intervals(
        np.stack([run.above for run in every]),
        np.stack([run.below for run in every]),
        combined,
        curve,
        level=LEVEL / 100,
        resamples=resamples,
    )
    columns = [Interval(*map(float, column)) for column in zip(*intervals, strict=True)]
    cells = tuple(
        Resampled(index, _at(columns, places, (index, 'value')), _at(columns, places, (index, 'difference')), reason)
        for index, reason in enumerate(reasons)
    )
    return Measured(cells, len(every[0].ids))


def sentences(results: collect.Results, measured: Measured) -> list[str]:
    """What the report says: how it was done, and of which cells nothing can be said. Empty where of none."""
    if not measured.examples:
        return []
    title = metrics.title(results.ledger.metric)
    missing = {
        row_name(cell.index, results.cells[cell.index].entry.label): cell.reason
        for cell in measured.cells
        if cell.value is None
    }
    return [
        f'Another question than that of the seeds: how far {title} could be off because it was measured on these '
        f'{measured.examples:,} examples and not on others of their kind. {LEVEL} % percentile interval over '
        f'{resample.RESAMPLES:,} resamples of the examples (scipy.stats.bootstrap), the same for all runs, of the mean '
        'over the finished seeds, which stay as they are; differences from the base are paired by example and by seed, '
        'and not corrected for their number.',
        *(f'Nothing can be said: {name}: {reason}.' for name, reason in missing.items()),
    ]


def rows(results: collect.Results, measured: Measured) -> list[tuple[str, str, str, str]]:
    """(row, interval, difference, its sign in words) of each cell that has an interval, below a heading; else empty."""
    known = metrics.lookup(results.ledger.metric)
    unit = ' %' if known.percent else ''
    found = [
        (
            row_name(cell.index),
            f'{known.number(cell.value.value)} [{known.number(cell.value.low)}, {known.number(cell.value.high)}]',
            _shown(known, cell.difference),
            _verdict(known, cell.difference),
        )
        for cell in measured.cells
        if cell.value
    ]
    title = metrics.title(results.ledger.metric)
    return [('row', f'{title}{unit}', f'difference{unit}', 'on these examples'), *found] if found else []


def _shown(known: metrics.Metric, difference: Interval | None) -> str:
    if difference is None:
        return ''
    numbers = [f'{known.scale * number:+.{known.decimals}f}' for number in dataclasses.astuple(difference)]
    return f'{numbers[0]} [{numbers[1]}, {numbers[2]}]'


def _verdict(known: metrics.Metric, difference: Interval | None) -> str:
    if difference is None:
        return ''
    if difference.low <= 0 <= difference.high:
        return 'better or worse'
    return 'better' if (difference.high < 0) == (known.better == 'lower') else 'worse'


def _of_cell(cell: collect.CellResult, key: str) -> tuple[dict[int, _Run], str]:
    """({seed: run} of all finished runs whose metric is finite, '') or ({}, why not)."""
    found = {}
    for result in cell.done:
        recorded = result.final.get(key, (0, None))[1]
        if recorded is None:
            continue
        try:
            arrays = per_example.read(result.run.path, key.rpartition('/')[0])
        except UserError as error:
            return {}, str(error)
        if arrays is None:
            return {}, f'seed {result.run.seed} has written no results per example'
        run = _as_run(arrays, key.rpartition('/')[2], result, recorded)
        if run is None:
            return {}, f'the results per example of seed {result.run.seed} do not come to its {metrics.title(key)}'
        found[result.run.seed] = run
    return found, '' if found else 'no finished run has it'


def _as_run(arrays: Mapping[str, Array], name: str, result: collect.RunResult, recorded: float) -> _Run | None:
    """None where the arrays lack what the metric needs, or do not give the recorded value."""
    over, under = RATIOS[name]
    if not {over, under or over} <= arrays.keys():
        return None
    above = arrays[over].astype(np.float64)
    below = arrays[under].astype(np.float64) if under else np.ones_like(above)
    ratio = float(above.sum() / max(below.sum(), np.finfo(np.float64).tiny))
    if name == 'bits_per_byte':  # the bytes of an example are not known; they count as in proportion to its tokens
        return _Run(arrays['example_id'], above, below, recorded / ratio) if ratio else None
    value = math.exp(min(ratio, 700.0)) if name == 'perplexity' else ratio
    if not math.isclose(value, recorded, rel_tol=_EXACT, abs_tol=1e-9):
        return None
    return _Run(arrays['example_id'], above, below, 1.0)


def _combinations(runs: Sequence[Mapping[int, _Run]]) -> tuple[Array, dict[tuple[int, str], int]]:
    """(the weights of all runs in each quantity, (cell index, 'value' or 'difference') → its row)."""
    starts = np.cumsum([0, *map(len, runs)])
    places: dict[tuple[int, str], int] = {}
    rows: list[Array] = []

    def add(name: tuple[int, str], *parts: tuple[int, Sequence[int], float]) -> None:
        row = np.zeros(starts[-1])
        for index, seeds, sign in parts:
            for seed in seeds:
                row[starts[index] + list(runs[index]).index(seed)] += sign / len(seeds)
        places[name] = len(rows)
        rows.append(row)

    for index, found in enumerate(runs):
        if found:
            add((index, 'value'), (index, list(found), 1.0))
        if index and (shared := [seed for seed in found if seed in runs[0]]):
            add((index, 'difference'), (index, shared, 1.0), (0, shared, -1.0))
    return np.stack(rows), places


def _at(columns: Sequence[Interval], places: Mapping[tuple[int, str], int], name: tuple[int, str]) -> Interval | None:
    return columns[places[name]] if name in places else None
