"""The table of a report, in the manner of AIAYN Table 3: the base's row is full, the others hold what differs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxformer.ablate import collect, curves, metrics, plan, stats

LEVEL = 95  # per cent, of the intervals
NONE = '–'
"""Stands where there is no number; only a field is left blank, where it is as in the base."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table: a field of the configuration, a measured quantity, or a figure of others."""

    key: str
    title: str
    kind: str  # field | derived | metric | count | reference

    @property
    def is_numeric(self) -> bool:
        return self.kind in ('metric', 'count', 'reference')


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
    """Fields that any cell sets, those that follow from them, metrics, what a cell took, figures of others."""
    fields = tuple(dict.fromkeys(field for cell in results.cells for field in cell.entry.overrides))
    derived = tuple(
        dict.fromkeys(field for cell in results.cells for field in cell.entry.derived if field not in fields)
    )
    names = plan.short_names((*fields, *derived))
    columns = [Column(field, names[field], 'field') for field in fields]
    columns += [Column(field, names[field], 'derived') for field in derived]
    columns += [Column(key, _metric_title(key), 'metric') for key in results.metrics]
    columns += [Column('n', 'n', 'count'), Column('parameters', 'parameters', 'count'), Column('time', 'time', 'count')]
    titles = dict.fromkeys(title for cell in results.cells for title in cell.entry.reference)
    columns += [Column(title, title, 'reference') for title in titles]
    entries = [
        _figures(results, column.key)
        if column.kind == 'reference'
        else [_entry(results, cell, column, index == 0) for index, cell in enumerate(results.cells)]
        for column in columns
    ]
    rows = tuple(zip(*entries, strict=True))
    return Table(tuple(columns), tuple(curves.row_name(index) for index in range(len(rows))), rows)


def legend(results: collect.Results, table: Table) -> str:
    """The sentence under the table."""
    text = (
        f'Blank: as in the base; {NONE}: no such number. Mean ± half width of the {LEVEL} % interval over n seeds, '
        'after the last step; time is the mean of a run.'
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
    if column.key == 'parameters':
        count = cell.entry.parameters
        return Entry(NONE if count is None else f'{count:,}', count)
    return Entry(NONE if cell.seconds is None else _duration(cell.seconds), cell.seconds)


def _field(baseline: Mapping[str, Any], cell: collect.CellResult, column: Column, is_base: bool) -> Entry:
    base: Any = baseline
    for part in column.key.split('.'):
        base = base[part]
    changed = {**cell.entry.derived, **cell.entry.further}
    value = cell.entry.overrides.get(column.key, changed[column.key][1] if column.key in changed else base)
    shown = plan.show(value) if is_base or value != base else ''
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Entry(shown, value if is_number else plan.show(value))


def _figures(results: collect.Results, title: str) -> list[Entry]:
    """A column of figures of others."""
    values = [cell.entry.reference.get(title) for cell in results.cells]
    return [Entry(text or NONE, value) for text, value in zip(plan.printed(values), values, strict=True)]


def _measured(key: str, summary: stats.Summary | None) -> Entry:
    if summary is None or summary.mean is None:
        return Entry(NONE, None)
    known = metrics.lookup(key)
    interval = '' if summary.half_width is None else f' ± {known.number(summary.half_width)}'
    return Entry(known.number(summary.mean) + interval, summary.mean)


def _share(done: int, planned: int) -> str:
    return str(done) if done == planned else f'{done} of {planned}'


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.1f} min' if seconds < 6000 else f'{seconds / 3600:.1f} h'
