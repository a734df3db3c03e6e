"""What sets grids apart: their baselines, what they ran on, and the cells that they have in common, paired by seed.

Cells are the same where their ids are: the same configuration, run twice (by another version of the package, on another
machine, or in a grid of another question).
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer import files
from jaxformer.ablate import collect, ledger, metrics, separation, stats
from jaxformer.errors import UserError
from jaxformer.inspection import compare as runs
from jaxformer.inspection.compare import Values


@dataclasses.dataclass(frozen=True)
class Shared:
    """A cell of two or more grids; one entry per grid, None where it has no such cell.

    summaries: over the finished seeds of each grid, by metric. differences: from the first grid that has the cell, by
    seed, in the metric that grids are compared by; None for that grid, too. p: of these, corrected as all of them.
    """

    id: str
    label: str
    summaries: tuple[Mapping[str, stats.Summary] | None, ...]
    differences: tuple[stats.Difference | None, ...]
    p: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two or more grids side by side; each tuple of values has one entry per grid.

    metric: what they are compared by: that of the first grid. config: dotted field → values, where baselines differ.
    environment: the same of all that a grid's runs ran on, several values in one text. alone: label of each cell by id
    that no other grid has.
    """

    grids: tuple[str, ...]
    metric: str
    state: Mapping[str, Values]
    config: Mapping[str, Values]
    environment: Mapping[str, Values]
    shared: tuple[Shared, ...]
    alone: tuple[Mapping[str, str], ...]


def are_grids(workdirs: Sequence[epath.PathLike]) -> bool:
    """Whether all directories are those of grids, False where none is.

    Raises:
      UserError: some are, and others are not.
    """
    found = [(epath.Path(workdir) / files.GRID).exists() for workdir in workdirs]
    if any(found) and not all(found):
        grid, other = workdirs[found.index(True)], workdirs[found.index(False)]
        raise UserError(
            f'compare: {grid} is a grid and {other} is none; give grids alone, or runs alone '
            f'(those of a grid are {grid}/cells/…/seed-…)'
        )
    return all(found)


def compare(workdirs: Sequence[epath.PathLike]) -> Comparison:
    """Compares grids, whatever state they are in; the first is the one others differ from.

    Raises:
      UserError: fewer than two directories, one that is no grid, or one that is damaged.
    """
    if len(workdirs) < 2:
        raise UserError(f'compare: {len(workdirs)} grid given; it takes at least two')
    grids = [collect.collect(workdir) for workdir in workdirs]
    books = [grid.ledger for grid in grids]
    metric = books[0].metric
    named = [{cell.entry.id: cell for cell in grid.cells} for grid in grids]
    ids = dict.fromkeys(cell_id for cells in named for cell_id in cells)
    shared = [cell_id for cell_id in ids if sum(cell_id in cells for cells in named) > 1]
    return Comparison(
        grids=tuple(map(str, workdirs)),
        metric=metric,
        state={
            'grid': tuple(book.name for book in books),
            'metric': tuple(book.metric for book in books),
            'cells': tuple(len(book.cells) for book in books),
            'seeds': tuple(', '.join(map(str, book.seeds)) for book in books),
            'runs': tuple(_states(grid) for grid in grids),
        },
        config=runs.differing(
            [
                runs.flat(book.baseline, epath.Path(workdir) / files.GRID)
                for book, workdir in zip(books, workdirs, strict=True)
            ]
        ),
        environment=runs.differing([_environment(grid) for grid in grids]),
        shared=_corrected([_shared(cell_id, [cells.get(cell_id) for cells in named], metric) for cell_id in shared]),
        alone=tuple(
            {cell_id: cell.entry.label for cell_id, cell in cells.items() if cell_id not in shared} for cells in named
        ),
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return runs.jsonable(dataclasses.asdict(comparison))


def as_text(comparison: Comparison) -> str:
    """The comparison as aligned tables, the grids as columns."""
    letters = [f'[{number}]' for number in range(1, len(comparison.grids) + 1)]
    known = metrics.lookup(comparison.metric)
    title = metrics.title(comparison.metric) + (' %' if known.percent else '')
    cells = {
        cell.label
        if [other.label for other in comparison.shared].count(cell.label) == 1
        else f'{cell.label} {cell.id}': [
            _shown(known, (summary or {}).get(comparison.metric), difference, p)
            for summary, difference, p in zip(cell.summaries, cell.differences, cell.p, strict=True)
        ]
        for cell in comparison.shared
    }
    parts = [
        '\n'.join(f'{letter} {grid}' for letter, grid in zip(letters, comparison.grids, strict=True)),
        runs.table('grid', letters, runs.written(comparison.state), ''),
        runs.table('config of the base', letters, runs.written(comparison.config), 'no field differs'),
        runs.table('environment', letters, runs.written(comparison.environment), 'nothing differs'),
        runs.table(title, letters, cells, 'no cell in common'),
    ]
    if comparison.shared:
        parts.append(
            'Mean ± half width of the 95 % interval over seeds; in brackets the difference from the first column with '
            "the cell, paired by seed, with its own interval and the p of the paired t test after Holm's correction."
        )
    for letter, alone in zip(letters, comparison.alone, strict=True):
        if alone:
            listed = '\n'.join(f'  {cell_id}  {label}' for cell_id, label in alone.items())
            parts.append(f'only in {letter}:\n{listed}')
    return '\n\n'.join(parts)


def _states(grid: collect.Results) -> str:
    states = [result.run.state for cell in grid.cells for result in cell.runs]
    return ', '.join(f'{states.count(state)} {state}' for state in ledger.STATES if state in states)


def _environment(grid: collect.Results) -> dict[str, str] | None:
    """Field → the values that it has in the newest starts of the grid's runs; None where none is recorded."""
    values: dict[str, list[str]] = {}
    for cell in grid.cells:
        for result in cell.runs:
            for field, value in (runs.environment(result.run.path) or {}).items():
                text = value if isinstance(value, str) else json.dumps(value)
                if text not in values.setdefault(field, []):
                    values[field].append(text)
    return {field: ' / '.join(sorted(found)) for field, found in values.items()} or None


def _shared(cell_id: str, cells: Sequence[collect.CellResult | None], metric: str) -> Shared:
    there = [cell for cell in cells if cell is not None]
    first = separation.by_seed(there[0], metric)
    differences = [
        None if cell is None or cell is there[0] else stats.difference(separation.by_seed(cell, metric), first)
        for cell in cells
    ]
    return Shared(
        cell_id,
        there[0].entry.label,
        tuple(None if cell is None else cell.summaries for cell in cells),
        tuple(differences),
        tuple(None if one is None else one.p for one in differences),
    )


def _corrected(shared: Sequence[Shared]) -> tuple[Shared, ...]:
    """With Holm's correction of all p together."""
    places = [(row, column) for row, cell in enumerate(shared) for column, p in enumerate(cell.p) if p is not None]
    adjusted = dict(zip(places, stats.holm([shared[row].p[column] or 0.0 for row, column in places]), strict=True))
    return tuple(
        dataclasses.replace(cell, p=tuple(adjusted.get((row, column)) for column in range(len(cell.p))))
        for row, cell in enumerate(shared)
    )


def _shown(
    known: metrics.Metric, summary: stats.Summary | None, difference: stats.Difference | None, p: float | None
) -> str:
    """'25.10 ± 0.31 (-0.42 ± 0.20, n = 3, p = 0.031)'."""
    if summary is None or summary.mean is None:
        return runs.ABSENT
    width = lambda half: '' if half is None else f' ± {known.number(half)}'  # noqa: E731
    text = known.number(summary.mean) + width(summary.half_width)
    if difference is None or difference.mean is None:
        return text
    text += f' ({known.scale * difference.mean:+.{known.decimals}f}{width(difference.half_width)}, n = {difference.n}'
    return text + (f', p {"" if p < 0.001 else "= "}{separation.probability(p)})' if p is not None else ')')
