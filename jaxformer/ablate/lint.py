"""The conditions of a grid's measurement: what one has to know to believe or to doubt its table."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jaxformer
from jaxformer.ablate import collect, count, guards, match, metrics
from jaxformer.ablate import table as tables
from jaxformer.ablate.shown import operations, row_name, show
from jaxformer.data import splits
from jaxformer.errors import UserError


def conditions(results: collect.Results) -> list[tuple[str, str]]:
    """(name, value) of each condition; 'warning' is the name of what makes the table doubtful."""
    book, baseline = results.ledger, results.ledger.baseline
    counts = sorted({len(cell.done) for cell in results.cells})
    seeds = ', '.join(str(seed) for seed in book.seeds)
    versions = sorted({version for cell in results.cells for result in cell.runs for version in result.versions})
    lines = [
        ('seeds', f'{seeds}; finished runs per cell: {" to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))}'),
        ('intervals', f'{tables.LEVEL} % t interval of the mean over seeds; none where one seed is finished'),
        ('steps', _steps(results)),
        (
            'effective batch',
            _same(results, [cell.cost.batch or None for cell in results.cells], 'sequences per update'),
        ),
        ('tokens seen', _same(results, [cell.cost.tokens for cell in results.cells], 'labels per run')),
        ('parameters', _sizes([cell.cost.parameters for cell in results.cells], lambda value: f'{value:,}')),
        ('training FLOPs', _sizes([cell.cost.flops for cell in results.cells], operations) + _flops_of(results)),
        ('evaluation', f'{baseline["data"]["name"]}, split {baseline["eval"]["split"]}, {_coverage(results)}'),
        ('value reported', _final_steps(results)),
        ('package', f'jaxformer {jaxformer.__version__}; runs written by {", ".join(versions) or "(not recorded)"}'),
    ]
    return [*lines, *_warnings(results, counts, versions), *_former(results)]


def _warnings(results: collect.Results, counts: Sequence[int], versions: Sequence[str]) -> list[tuple[str, str]]:
    book = results.ledger
    found = []
    if counts[-1] < 2:
        found.append('no cell has two finished runs: no interval, and nothing separates')
    if len(versions) > 1:
        found.append('the runs come from different versions of the package')
    if counts[0] != counts[-1]:
        found.append('cells differ in their number of finished runs')
    axis = ', '.join(guards.fields(book.axis))
    for index, cell in enumerate(results.cells):
        if more := cell.entry.further:
            found.append(f'{row_name(index)} differs from the base in more than {axis}: {pairs(more)}')
        if cell.unlike:
            found.append(f'{row_name(index)} is not held equal to the base: {guards.described(cell.unlike)}')
    return [('warning', text) for text in (*found, *book.warnings)]


def _former(results: collect.Results) -> list[tuple[str, str]]:
    return [
        ('former cell', f'{cell.label} ({cell.id}): on disk, no longer in the grid') for cell in results.ledger.former
    ]


def pairs(changes: Mapping[str, Sequence[Any]]) -> str:
    """'model.d_k 64 → 16, …'."""
    return ', '.join(f'{field} {show(old)} → {show(new)}' for field, (old, new) in changes.items())


def _same(results: collect.Results, values: Sequence[int | None], unit: str) -> str:
    """A number that all cells have, or who has which."""
    names: dict[int | None, list[str]] = {}
    for index, value in enumerate(values):
        names.setdefault(value, []).append(row_name(index))
    texts = {value: 'not counted' if value is None else f'{value:,} {unit}' for value in names}
    if len(names) == 1:
        return next(iter(texts.values()))
    return '; '.join(f'{", ".join(rows)}: {texts[value]}' for value, rows in names.items())


def _sizes(values: Sequence[int | None], number: Any) -> str:
    """How far the cells' costs are from the base's, so that 'equal' is a measured claim."""
    base, *others = values
    if not base or any(value is None for value in others):
        return 'not counted'
    if not others:
        return number(base)
    shares = [(value or 0) / base - 1 for value in others]
    largest = max(shares, key=abs)
    if not largest:
        return f'{number(base)} in every cell'
    text = f'base {number(base)}; largest deviation {largest:+.2%}, {row_name(shares.index(largest) + 1)}'
    beyond = [row_name(index + 1) for index, share in enumerate(shares) if abs(share) > match.TOLERANCE]
    return text + (
        f'; beyond {match.TOLERANCE:.0%}: {", ".join(beyond)}' if beyond else f'; none beyond {match.TOLERANCE:.0%}'
    )


def _flops_of(results: collect.Results) -> str:
    """Of what the operations are counted, where they are."""
    cfg = results.cells[0].config
    if cfg is None or results.cells[0].cost.flops is None:
        return ''
    mixture = 'the mixture of shapes of an epoch' if count.asks_data(cfg) else 'sequences as long as the largest bucket'
    return f'; matrix products of {mixture}, backward twice the forward pass'


def _steps(results: collect.Results) -> str:
    """How many steps of how many sequences each cell had: those of the base, and of the cells that differ."""
    rows: dict[tuple[int, int], list[str]] = {}
    for index, cell in enumerate(results.cells):
        size = (of_cell(results, cell, 'num_steps'), of_cell(results, cell, 'batch_size'))
        rows.setdefault(size, []).append(row_name(index))
    texts = [f'{steps:,}, each of {rows_:,} sequences: {steps * rows_:,} sequences seen' for steps, rows_ in rows]
    if len(texts) == 1:
        return texts[0]
    return '; '.join(f'{", ".join(names)}: {text}' for names, text in zip(rows.values(), texts, strict=True))


def of_cell(results: collect.Results, cell: collect.CellResult, name: str) -> Any:
    """The value of a field of train in a cell."""
    return collect.changes_of(cell.entry).get(f'train.{name}', results.ledger.baseline['train'][name])


def _coverage(results: collect.Results) -> str:
    """How many examples the evaluation was over, as the runs recorded it, and of how many."""
    key = f'{results.ledger.metric.rpartition("/")[0]}/examples'
    finals = [result.final[key][1] for cell in results.cells for result in cell.runs if key in result.final]
    counts = sorted({int(value) for value in finals if value is not None})
    if not counts:
        return 'number of examples not recorded'
    text = f'{" or ".join(f"{value:,}" for value in counts)} examples'
    total = _split_size(results)
    if not total:
        return text
    if counts == [total]:
        return f'{text}, all of them'
    return f'{text} of {total:,} ({counts[0] / total:.1%}); the others fit no bucket'


def _split_size(results: collect.Results) -> int | None:
    """Examples of the split that the grid's metric is on, where the base's data are at hand."""
    from jaxformer.data import corpus

    cfg = results.cells[0].config
    if cfg is None:
        return None
    with contextlib.suppress(UserError):
        if corpus.prepared_directory(cfg.data).exists():
            split = corpus.load(cfg.data).split(results.ledger.metric.rpartition('/')[0])
            if isinstance(split, (splits.PairSplit, splits.LabelledSplit)):
                return len(split)
    return None


def _final_steps(results: collect.Results) -> str:
    """At which step the reported values were taken, and which metrics were last taken before the last step."""
    earlier = {}
    for key in results.metrics:
        steps = {
            result.final[key][0]
            for cell in results.cells
            for result in cell.runs
            if key in result.final and result.final[key][0] != of_cell(results, cell, 'num_steps')
        }
        if steps:
            earlier[metrics.title(key)] = steps
    if not earlier:
        return 'the last one of each run, not the best'
    listed = '; '.join(f'{name} at step {", ".join(map(str, sorted(steps)))}' for name, steps in earlier.items())
    return f'the last one of each run, not the best ({listed})'
