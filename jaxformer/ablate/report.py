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

import jaxformer
from jaxformer import files
from jaxformer.ablate import collect, curves, ledger, match, metrics, plan, separation, stats
from jaxformer.ablate import table as tables

_DIFFERENCE = ('difference', 'difference half_width', 'p corrected', 'verdict')
"""Columns of the CSV: the paired difference from the base in the grid's metric, as `separation` judges it."""


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
    written = {}
    for name, render in (('md', as_markdown), ('csv', as_csv), ('html', as_html)):
        written[name] = workdir / f'report.{name}'
        files.write_atomic(written[name], render(results))
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
        Unfinished(curves.row_name(index), results.cells[index].entry.label, tuple(found), state, step, reason)
        for (index, state, step, reason), found in seeds.items()
    ]


def lint(results: collect.Results) -> list[tuple[str, str]]:
    """The conditions of the measurement, as (name, value): what one has to know to believe or to doubt the table."""
    book, baseline = results.ledger, results.ledger.baseline
    evaluation = baseline['eval']
    counts = sorted({len(cell.done) for cell in results.cells})
    seeds = ', '.join(str(seed) for seed in book.seeds)
    versions = sorted({version for cell in results.cells for result in cell.runs for version in result.versions})
    lines = [
        ('seeds', f'{seeds}; finished runs per cell: {" to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))}'),
        ('intervals', f'{tables.LEVEL} % t interval of the mean over seeds; none where one seed is finished'),
        ('steps', _steps(results)),
        ('parameters', _sizes(results)),
        ('evaluation', f'{baseline["data"]["name"]}, split {evaluation["split"]}, {_coverage(results)}'),
        ('value reported', _final_steps(results)),
        ('package', f'jaxformer {jaxformer.__version__}; runs written by {", ".join(versions) or "(not recorded)"}'),
    ]
    if len(versions) > 1:
        lines.append(('warning', 'the runs come from different versions of the package'))
    if counts[0] != counts[-1]:
        lines.append(('warning', 'cells differ in their number of finished runs'))
    lines += [
        (
            'warning',
            f'{curves.row_name(index)} differs from the base in more than {", ".join(book.axis)}: {_pairs(more)}',
        )
        for index, cell in enumerate(results.cells)
        if (more := cell.entry.further)
    ]
    lines += [('warning', text) for text in book.warnings]
    lines += [('former cell', f'{cell.label} ({cell.id}): on disk, no longer in the grid') for cell in book.former]
    return lines


def as_csv(results: collect.Results) -> str:
    """One row per cell, numbers unrounded and error rates as fractions; a field is blank where it is as in the base."""
    table = tables.build(results)
    fields = [column for column in table.columns if column.kind in ('field', 'derived')]
    titles = [column.title for column in table.columns if column.kind == 'reference']
    judged = {verdict.index: verdict for verdict in separation.judge(results)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    statistics = [f'{key} {name}' for key in results.metrics for name in ('mean', 'sd', 'half_width', 'n')]
    writer.writerow(
        ['row', 'id', 'label', *(c.key for c in fields), *statistics, *_DIFFERENCE, 'parameters', 'seconds', *titles]
        + list(ledger.STATES)
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
        values += [cell.entry.parameters, cell.seconds, *(cell.entry.reference.get(title) for title in titles)]
        values += [found.count(state) for state in ledger.STATES]
        writer.writerow([name, cell.entry.id, cell.entry.label, *values])
    return text.getvalue()


def as_markdown(results: collect.Results) -> str:
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
    if differences := separation.sentences(results):
        lines += ['## What separates', '', *(f'- {text}' for text in differences), '']
    if results.ledger.notes:
        lines += ['## Notes', '', *(line for note in results.ledger.notes for line in (note, ''))]
    if left_out := unfinished(results):
        lines += ['## Runs that are in no mean', '']
        lines += [f'- {describe(item)}' for item in left_out]
        lines += ['']
    lines += ['## Conditions', '', *(f'- {name}: {value}' for name, value in lint(results)), '']
    return '\n'.join(map(literal, lines))


def literal(text: str) -> str:
    """Markdown whose tags are text: each `<` that could begin one is escaped, but in code, where all is text."""
    parts = re.split(r'(?s)((`+)(?!`).*?(?<!`)\2(?!`))', text)  # text, code, its fence, text …
    return ''.join(
        part if index % 3 == 1 else re.sub(r'<(?=[A-Za-z/!?])', r'\<', part)
        for index, part in enumerate(parts)
        if index % 3 < 2
    )


def as_html(results: collect.Results) -> str:
    """The page: everything of the Markdown report, learning curves, and the baseline's configuration."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    table = tables.build(results)
    return environment.get_template('report.html').render(
        style=Markup((here / 'report.css').read_text()),
        script=Markup((here / 'report.js').read_text()),
        name=results.ledger.name,
        docstring=results.ledger.docstring,
        summary=summary_line(results),
        table=table,
        ids=[cell.entry.id for cell in results.cells],
        labels=[cell.entry.label for cell in results.cells],
        colours=[curves.colour(index) for index in range(len(results.cells))],
        legend=tables.legend(results, table),
        separation=separation.sentences(results),
        notes=results.ledger.notes,
        figures=curves.figures(results),
        unfinished=[describe(item) for item in unfinished(results)],
        lint=lint(results),
        baseline=json.dumps(results.ledger.baseline, indent=2),
    )


def summary_line(results: collect.Results) -> str:
    """'4 cells × 3 seeds: 11 runs done, 1 failed'."""
    states = [result.run.state for cell in results.cells for result in cell.runs]
    counts = ', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(sorted(states)))
    return f'{len(results.cells)} cells × {len(results.ledger.seeds)} seeds, {len(states)} runs: {counts}.'


def describe(item: Unfinished) -> str:
    """What happened to runs that are in no mean: '(1) num_heads=1, seed 2: failed at step 40: …'."""
    which = f'{item.row} {item.label}, seed{"s" if len(item.seeds) > 1 else ""} {", ".join(map(str, item.seeds))}'
    if item.state == 'missing':
        return f'{which}: not started'
    at = f'{which}: {item.state} at step {item.step:,}'
    return f'{at}: {item.reason}' if item.reason else at


def _coverage(results: collect.Results) -> str:
    """How many examples the evaluation was over, as the runs recorded it."""
    key = f'{results.ledger.metric.rpartition("/")[0]}/examples'
    finals = [result.final[key][1] for cell in results.cells for result in cell.runs if key in result.final]
    counts = sorted({count for count in finals if count is not None})
    return (
        f'{" or ".join(f"{count:,.0f}" for count in counts)} examples' if counts else 'number of examples not recorded'
    )


def _sizes(results: collect.Results) -> str:
    """How far the cells' sizes are from the base's, so that 'equal' is a measured claim."""
    base, *others = (cell.entry.parameters for cell in results.cells)
    if not base or not others or any(count is None for count in others):
        return 'not counted'
    shares = [(count or 0) / base - 1 for count in others]
    largest = max(shares, key=abs)
    if not largest:
        return f'{base:,} in every cell'
    text = f'base {base:,}; largest deviation {largest:+.2%}, {curves.row_name(shares.index(largest) + 1)}'
    beyond = [curves.row_name(index + 1) for index, share in enumerate(shares) if abs(share) > match.TOLERANCE]
    return text + (
        f'; beyond {match.TOLERANCE:.0%}: {", ".join(beyond)}' if beyond else f'; none beyond {match.TOLERANCE:.0%}'
    )


def _steps(results: collect.Results) -> str:
    """How many steps of how many sequences each cell had: those of the base, and of the cells that differ."""
    rows: dict[tuple[int, int], list[str]] = {}
    for index, cell in enumerate(results.cells):
        size = (_of_cell(results, cell, 'num_steps'), _of_cell(results, cell, 'batch_size'))
        rows.setdefault(size, []).append(curves.row_name(index))
    texts = [f'{steps:,}, each of {rows_:,} sequences: {steps * rows_:,} sequences seen' for steps, rows_ in rows]
    if len(texts) == 1:
        return texts[0]
    return '; '.join(f'{", ".join(names)}: {text}' for names, text in zip(rows.values(), texts, strict=True))


def _of_cell(results: collect.Results, cell: collect.CellResult, name: str) -> Any:
    """The value of a field of train in a cell."""
    field, entry = f'train.{name}', cell.entry
    for changes in (entry.derived, entry.further):
        if field in changes:
            return changes[field][1]
    return entry.overrides[field] if field in entry.overrides else results.ledger.baseline['train'][name]


def _final_steps(results: collect.Results) -> str:
    """At which step the reported values were taken, and which metrics were last taken before the last step."""
    earlier = {}
    for key in results.metrics:
        steps = {
            result.final[key][0]
            for cell in results.cells
            for result in cell.runs
            if key in result.final and result.final[key][0] != _of_cell(results, cell, 'num_steps')
        }
        if steps:
            earlier[metrics.title(key)] = steps
    if not earlier:
        return 'the last one of each run, not the best'
    listed = '; '.join(f'{name} at step {", ".join(map(str, sorted(steps)))}' for name, steps in earlier.items())
    return f'the last one of each run, not the best ({listed})'


def _pairs(pairs: Mapping[str, Sequence[Any]]) -> str:
    return ', '.join(f'{field} {plan.show(old)} → {plan.show(new)}' for field, (old, new) in pairs.items())


def _markdown_rows(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f'| {" | ".join(text.replace("|", chr(92) + "|") for text in row)} |' for row in rows]
