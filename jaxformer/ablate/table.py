"""The table of a report, in the manner of AIAYN Table 3: the base's row is full, the others hold what differs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxformer.ablate import collect, metrics, separation, stats
from jaxformer.ablate.shown import duration, operations, printed, row_name, short_names, show

LEVEL = 95  # per cent, of the intervals
_COSTS = {'parameters': 'parameters', 'flops': 'FLOPs', 'time': 'time'}
NONE = '–'
"""Stands where there is no number; only a field is left blank, where it is as in the base."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table: a field of the configuration, a measured quantity, or a figure of others."""

    key: str
    title: str
    kind: str  # field | derived | metric | difference | count | reference

    @property
    def is_numeric(self) -> bool:
        return self.kind not in ('field', 'derived')


@dataclasses.dataclass(frozen=True)
class Entry:
    """What stands in one place of the table, and the value that it is sorted by (None sorts last)."""

    text: str
    order: str | float | None


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows by name ('base', '(1)', …), each with one entry per column."""

    columns: tuple[Column, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


def build(results: collect.Results) -> Table:
    """Fields that any cell sets, metrics, what a run takes, figures of others, fields that follow from those set.

    Behind the grid's own metric stand the differences from the base, where there are any.
    """
    fields = tuple(dict.fromkeys(field for cell in results.cells for field in cell.entry.overrides))
    derived = tuple(
        dict.fromkeys(field for cell in results.cells for field in cell.entry.derived if field not in fields)
    )
    names = short_names((*fields, *derived))
    columns = [Column(field, names[field], 'field') for field in fields]
    judged = {verdict.index: verdict for verdict in separation.judge(results)}
    for key in results.metrics:
        columns.append(Column(key, _metric_title(key), 'metric'))
        if key == results.ledger.metric and any(one.difference.half_width is not None for one in judged.values()):
            columns.append(Column('difference', f'Δ {metrics.title(key)}', 'difference'))
            columns.append(Column('p', 'p (Holm)', 'difference'))
    columns += [Column('n', 'n', 'count')]
    columns += [Column(name, title, 'count') for name, title in _COSTS.items()]
    titles = dict.fromkeys(title for cell in results.cells for title in cell.entry.reference)
    columns += [Column(title, title, 'reference') for title in titles]
    columns += [Column(field, names[field], 'derived') for field in derived]
    entries = [
        _figures(results, column.key)
        if column.kind == 'reference'
        else [_compared(results, judged.get(index), column.key) for index in range(len(results.cells))]
        if column.kind == 'difference'
        else [_entry(results, cell, column, index == 0) for index, cell in enumerate(results.cells)]
        for column in columns
    ]
    rows = tuple(zip(*entries, strict=True))
    return Table(tuple(columns), tuple(row_name(index) for index in range(len(rows))), rows)


def legend(results: collect.Results, table: Table) -> str:
    """The sentence under the table."""
    text = (
        f'Blank: as in the base; {NONE}: no such number. Mean ± half width of the {LEVEL} % interval over n seeds, '
        'after the last step; FLOPs and time are those of a run (of several trained together, its share of the time).'
    )
    if any(column.kind == 'difference' for column in table.columns):
        text += (
            ' Δ: difference from the base, paired by seed, ± half width of its own interval; p: of the paired t test '
            "after Holm's correction."
        )
    follow = [column.title for column in table.columns if column.kind == 'derived']
    figures = [column.title for column in table.columns if column.kind == 'reference']
    if figures and results.ledger.reference_source:
        text += f' {", ".join(figures)}: as printed in {results.ledger.reference_source}.'
    return text + (
        f' {", ".join(follow)} follow{"s" if len(follow) == 1 else ""} from the fields set.' if follow else ''
    )


def _metric_title(key: str) -> str:
    known = metrics.lookup(key)
    arrow = '↓' if known.better == 'lower' else '↑'
    return f'{metrics.title(key)}{" %" if known.percent else ""} {arrow}'


def _entry(results: collect.Results, cell: collect.CellResult, column: Column, is_base: bool) -> Entry:
    if column.kind in ('field', 'derived'):
        return _field(results.ledger.baseline, cell, column, is_base)
    if column.kind == 'metric':
        return _measured(column.key, cell.summaries.get(column.key))
    if column.key == 'n':
        return Entry(_share(len(cell.done), len(cell.runs)), float(len(cell.done)))
    if column.key == 'time':
        return Entry(NONE if cell.seconds is None else duration(cell.seconds), cell.seconds)
    if column.key == 'flops':
        return Entry(NONE if cell.cost.flops is None else operations(cell.cost.flops), cell.cost.flops)
    count = cell.cost.parameters
    return Entry(NONE if count is None else f'{count:,}', count)


def _compared(results: collect.Results, verdict: separation.Verdict | None, key: str) -> Entry:
    """The difference from the base or its p; blank in the base's own row."""
    if verdict is None:
        return Entry('', None)
    found, known = verdict.difference, metrics.lookup(results.ledger.metric)
    if key == 'p':
        return Entry(NONE if verdict.p is None else separation.probability(verdict.p), verdict.p)
    if found.mean is None or found.half_width is None:
        return Entry(NONE, None)
    mean = f'{known.scale * found.mean:+.{known.decimals}f}'
    return Entry(f'{mean} ± {known.number(found.half_width)}', found.mean)


def _field(baseline: Mapping[str, Any], cell: collect.CellResult, column: Column, is_base: bool) -> Entry:
    base: Any = baseline
    for part in column.key.split('.'):
        base = base[part]
    changed = {**cell.entry.derived, **cell.entry.further}
    value = cell.entry.overrides.get(column.key, changed[column.key][1] if column.key in changed else base)
    shown = show(value) if is_base or value != base else ''
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Entry(shown, value if is_number else show(value))


def _figures(results: collect.Results, title: str) -> list[Entry]:
    """A column of figures of others."""
    values = [cell.entry.reference.get(title) for cell in results.cells]
    return [Entry(text or NONE, value) for text, value in zip(printed(values), values, strict=True)]


def _measured(key: str, summary: stats.Summary | None) -> Entry:
    if summary is None or summary.mean is None:
        return Entry(NONE, None)
    known = metrics.lookup(key)
    interval = '' if summary.half_width is None else f' ± {known.number(summary.half_width)}'
    return Entry(known.number(summary.mean) + interval, summary.mean)


def _share(done: int, planned: int) -> str:
    return str(done) if done == planned else f'{done} of {planned}'
