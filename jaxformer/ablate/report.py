"""The report of a grid: report.md, report.csv and report.html (one file that needs nothing else) from its directory."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath
from markupsafe import Markup

from jaxformer import files
from jaxformer.ablate import collect, curves, drawing, examples, ledger, lint, metrics, scatter, separation, stats
from jaxformer.ablate import table as tables
from jaxformer.ablate.shown import row_name, show

_DIFFERENCE = ('difference', 'difference half_width', 'p corrected', 'verdict')
"""Columns of the CSV: the paired difference from the base in the grid's metric, as `separation` judges it."""

_EXAMPLES = ('examples low', 'examples high', 'difference examples low', 'difference examples high')
"""Columns of the CSV: the ends of the intervals over examples, of the grid's metric and of that difference."""


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """Runs of a cell that are in no mean, all for the same reason."""

    row: str
    label: str
    seeds: tuple[int, ...]
    state: str
    step: int
    reason: str


def write(workdir: epath.PathLike) -> dict[str, epath.Path]:
    """Writes the three reports into `workdir` and returns where they are, by format.

    Raises:
      UserError: `workdir` holds no grid.
    """
    workdir = epath.Path(workdir)
    results = collect.collect(workdir)
    measured = examples.measure(results)
    written = {}
    for name, render in (('md', as_markdown), ('csv', as_csv), ('html', as_html)):
        written[name] = workdir / f'report.{name}'
        files.write_atomic(written[name], render(results, measured))
    return written


def unfinished(results: collect.Results) -> list[Unfinished]:
    """The runs that are in no mean, in the order of the table; and done ones of which a metric is not finite."""
    seeds: dict[tuple[int, str, int, str], list[int]] = {}
    for index, cell in enumerate(results.cells):
        for result in cell.runs:
            run = result.run
            broken = [metrics.title(key) for key in results.metrics if result.final.get(key, (0, 0.0))[1] is None]
            if run.state == 'done' and not broken:
                continue
            reason = f'{", ".join(broken)} not finite' if run.state == 'done' else run.reason or ''
            seeds.setdefault((index, run.state, run.step, reason), []).append(run.seed)
    return [
        Unfinished(row_name(index), results.cells[index].entry.label, tuple(found), state, step, reason)
        for (index, state, step, reason), found in seeds.items()
    ]


def as_csv(results: collect.Results, measured: examples.Measured) -> str:
    """One row per cell, numbers unrounded and error rates as fractions; a field is blank where it is as in the base."""
    table = tables.build(results)
    fields = [column for column in table.columns if column.kind in ('field', 'derived')]
    titles = [column.title for column in table.columns if column.kind == 'reference']
    judged = {verdict.index: verdict for verdict in separation.judge(results)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    statistics = [f'{key} {name}' for key in results.metrics for name in ('mean', 'sd', 'half_width', 'n')]
    writer.writerow(
        ['row', 'id', 'label', *(c.key for c in fields), *statistics, *_DIFFERENCE, *_EXAMPLES]
        + ['parameters', 'flops', 'tokens', 'batch', 'seconds', *titles, *ledger.STATES]
    )
    for index, (name, row, cell) in enumerate(zip(table.names, table.rows, results.cells, strict=True)):
        values: list[Any] = [row[table.columns.index(column)].text for column in fields]
        for key in results.metrics:
            summary = cell.summaries.get(key, stats.summarise(()))
            values += [summary.mean, summary.sd, summary.half_width, summary.n]
        found = [result.run.state for result in cell.runs]
        if verdict := judged.get(index):
            values += [verdict.difference.mean, verdict.difference.half_width, verdict.p, verdict.state]
        else:
            values += [''] * len(_DIFFERENCE)
        for interval in (measured.cells[index].value, measured.cells[index].difference):
            values += [interval.low, interval.high] if interval else ['', '']
        costs = (cell.cost.parameters, cell.cost.flops, cell.cost.tokens, cell.cost.batch or None, cell.seconds)
        values += [*costs, *(cell.entry.reference.get(title) for title in titles)]
        values += [found.count(state) for state in ledger.STATES]
        writer.writerow([name, cell.entry.id, cell.entry.label, *values])
    return text.getvalue()


def as_markdown(results: collect.Results, measured: examples.Measured) -> str:
    """Table, what its numbers separate, the grid's notes, what did not finish, and the conditions.

    Markup in what others wrote (notes, reasons, labels) stands there as it is in Markdown, and as text in HTML.
    """
    table = tables.build(results)
    rows = [['', *(column.title for column in table.columns)]]
    rows += [['---', *('---:' if column.is_numeric else '---' for column in table.columns)]]
    rows += [[name, *(entry.text for entry in row)] for name, row in zip(table.names, table.rows, strict=True)]
    lines = [f'# {results.ledger.name}', '', results.ledger.docstring, '', summary_line(results), '']
    lines += _markdown_rows(rows)
    lines += ['', f'{tables.legend(results, table)}', '']
    if separated := separation.sentences(results):
        lines += ['## What separates', '', *(f'- {text}' for text in separated), '']
    if resampled := examples.rows(results, measured):
        lines += ['## What the examples leave open', '']
        lines += [f'{text}\n' for text in examples.sentences(results, measured)]
        lines += [*_markdown_rows([resampled[0], ('---',) * 4, *resampled[1:]]), '']
    if results.ledger.notes:
        lines += ['## Notes', '', *(line for note in results.ledger.notes for line in (note, ''))]
    if left_out := unfinished(results):
        lines += ['## Runs that are in no mean', '']
        lines += [f'- {describe(item)}' for item in left_out]
        lines += ['']
    if changed := differences(results):
        lines += ['## Cells', '']
        for name, fields in changed:
            texts = (f'{field} {base} → {value} ({how})' for field, base, value, how in fields)
            lines.append(f'- {name}: {"; ".join(texts)}')
        lines.append('')
    lines += ['## Conditions', '', *(f'- {name}: {value}' for name, value in lint.conditions(results)), '']
    return '\n'.join(map(literal, lines))


def literal(text: str) -> str:
    """Markdown whose tags are text: each `<` that could begin one is escaped, but in code, where all is text."""
    parts = re.split(r'(?s)((`+)(?!`).*?(?<!`)\2(?!`))', text)  # text, code, its fence, text …
    return ''.join(
        part if index % 3 == 1 else re.sub(r'<(?=[A-Za-z/!?])', r'\<', part)
        for index, part in enumerate(parts)
        if index % 3 < 2
    )


def as_html(results: collect.Results, measured: examples.Measured) -> str:
    """The page: everything of the Markdown report, learning curves, and the baseline's configuration."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    table = tables.build(results)
    return environment.get_template('report.html').render(
        style=Markup(''.join((here / name).read_text() for name in ('report.css', 'tables.css'))),
        script=Markup((here / 'report.js').read_text()),
        name=results.ledger.name,
        docstring=results.ledger.docstring,
        summary=summary_line(results),
        table=table,
        ids=[cell.entry.id for cell in results.cells],
        labels=[cell.entry.label for cell in results.cells],
        colours=[drawing.colour(index) for index in range(len(results.cells))],
        legend=tables.legend(results, table),
        separation=separation.sentences(results),
        resampled=examples.rows(results, measured),
        resampling=examples.sentences(results, measured),
        notes=results.ledger.notes,
        curves=curves.figures(results),
        costs=scatter.figures(results),
        level=tables.LEVEL,
        unfinished=[describe(item) for item in unfinished(results)],
        differences=differences(results),
        lint=lint.conditions(results),
        baseline=json.dumps(results.ledger.baseline, indent=2),
    )


def summary_line(results: collect.Results) -> str:
    """'4 cells × 3 seeds: 11 runs done, 1 failed'."""
    states = [result.run.state for cell in results.cells for result in cell.runs]
    counts = ', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(sorted(states)))
    cells, seeds = len(results.cells), len(results.ledger.seeds)
    sizes = f'{cells} cell{"s" * (cells > 1)} × {seeds} seed{"s" * (seeds > 1)}'
    return f'{sizes}, {len(states)} run{"s" * (len(states) > 1)}: {counts}.'


def describe(item: Unfinished) -> str:
    """What happened to runs that are in no mean: '(1) num_heads=1, seed 2: failed at step 40: …'."""
    which = f'{item.row} {item.label}, seed{"s" if len(item.seeds) > 1 else ""} {", ".join(map(str, item.seeds))}'
    if item.state == 'missing':
        return f'{which}: not started'
    at = f'{which}: {item.state} at step {item.step:,}'
    return f'{at}: {item.reason}' if item.reason else at


def differences(results: collect.Results) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """(row and label, its fields that differ from the base: name, value there, value here, how) of each other cell."""
    cells = []
    for index, cell in enumerate(results.cells[1:], 1):
        entry, rows = cell.entry, []
        for field, value in collect.changes_of(entry).items():
            base = _at(results.ledger.baseline, field)
            if value == base or (isinstance(value, (list, tuple)) and list(value) == list(base or ())):
                continue
            how = 'beside the axis' if field in entry.further else 'follows' if field in entry.derived else 'set'
            rows.append((field, show(base), show(value), how))
        cells.append((row_name(index, entry.label), rows))
    return cells


def _at(values: Mapping[str, Any], field: str) -> Any:
    for part in field.split('.'):
        values = values[part]
    return values


def _markdown_rows(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f'| {" | ".join(text.replace("|", chr(92) + "|") for text in row)} |' for row in rows]
