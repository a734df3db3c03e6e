"""Reads a grid file: a Python file (`experiments/heads.py`) that says what is to be compared.

It has a docstring, `get_config()` (the base) and `grid()` (the cells, baseline first), and if it likes

    AXIS         the field or fields that the experiment means to vary; without it, all that any cell sets. It may also
                 name parameters, flops, tokens or batch, where cells are meant to differ in what they take
    METRIC       what it is judged by, such as 'loss' (on eval.split) or 'test/loss'; without it the family's own
    reference()  figures of others to stand beside ours: one mapping {title: number or text} per cell of `grid()`, in
                 its order, {} where there are none
    REFERENCE    where those figures come from
    notes()      paragraphs for the report

`grid`, `reference` and `notes` may take the base: `grid(base)` gets a ConfigDict as the command line leaves it, so that
cells may depend on it. No change by the command line gets lost: cells of a `grid()`, which does not know it, must not
set the same field (`EQUAL_PARAMETERS` and `EQUAL_FLOPS` are no such settings), nor must the baseline of a `grid(base)`,
but to that value.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxformer import config as config_lib
from jaxformer import pyfile
from jaxformer.ablate import match
from jaxformer.ablate.grid import Overrides
from jaxformer.errors import UserError

Figures = Mapping[str, float | str]
"""Figures of others about one cell: `{'paper PPL': 4.92}`."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """A grid file, read. `get_config` gives a fresh base at each call; `cells[0]` is the baseline."""

    name: str
    path: str
    docstring: str
    get_config: Callable[[], ConfigDict]
    cells: tuple[Overrides, ...]
    axis: tuple[str, ...]
    metric: str | None
    reference: tuple[Figures, ...]  # as many as cells
    reference_source: str
    notes: tuple[str, ...]


def read(path: str | Path, changes: Mapping[str, Any] | None = None) -> Grid:
    """Reads a grid file; `changes` are overrides of its base, by dotted field, which every cell then starts from.

    Raises:
      UserError: there is no such file, it fails, what it defines is not a grid, or it loses one of `changes` (see
        above); names the file and the remedy.
    """
    base_changes = dict(changes or {})
    names = pyfile.run(path, needs=('get_config', 'grid'))

    def base() -> ConfigDict:
        config = config_lib.given(path, names['get_config'])
        config_lib.override(config, base_changes)
        return config

    cells = _given(path, names, 'grid', base)
    if not cells:
        raise UserError(f'{path}: grid() gives no cell; the first one is the baseline ({{}} is the base as it stands)')
    for index, cell in enumerate(cells):
        if not isinstance(cell, Mapping) or not all(isinstance(field, str) for field in cell):
            raise UserError(f"{path}: cell {index} is {cell!r}; a cell is a dict such as {{'model.num_heads': 4}}")
        if 'seed' in cell:
            raise UserError(f'{path}: cell {index} sets seed; seeds belong to every cell, choose them with --seeds')
    _refuse_lost(path, cells, base_changes, base if _takes_base(names['grid']) else None)
    axis = names.get('AXIS', ())
    return Grid(
        name=Path(path).stem,
        path=str(path),
        docstring=inspect.cleandoc(names['__doc__'] or ''),
        get_config=base,
        cells=tuple(dict(cell) for cell in cells),
        axis=(axis,) if isinstance(axis, str) else tuple(axis),
        metric=names.get('METRIC'),
        reference=_reference(path, names, len(cells), base),
        reference_source=str(names.get('REFERENCE', '')),
        notes=tuple(str(note) for note in _given(path, names, 'notes', base)) if 'notes' in names else (),
    )


def _takes_base(function: Callable[..., Any]) -> bool:
    return any(one.default is one.empty for one in inspect.signature(function).parameters.values())


def _given(
    path: str | Path, names: Mapping[str, Any], function: str, base: Callable[[], ConfigDict]
) -> tuple[Any, ...]:
    """What a generator of the file yields; of a text alone, the text."""
    arguments = (base(),) if _takes_base(names[function]) else ()
    try:
        result = names[function](*arguments)
        return (result,) if isinstance(result, str) else tuple(result)
    except UserError as error:
        raise UserError(f'{path}: {error}') from None
    except Exception as error:  # whatever a person's generator may raise
        raise UserError(f'{path}: {function}() fails with {type(error).__name__}: {error}; mend the file') from error


def _refuse_lost(
    path: str | Path,
    cells: Sequence[Overrides],
    changes: Mapping[str, Any],
    base: Callable[[], ConfigDict] | None,
) -> None:
    """Refuses a change that a cell undoes without knowing of it; `base` where the cells are functions of it."""
    known = config_lib.flatten(config_lib.resolve(base())) if base and cells[0].keys() & changes.keys() else {}
    for index, cell in enumerate(cells if base is None else cells[:1]):
        again = [field for field in match.set_by_hand(cell) if field in changes]
        for field in again:
            if base is None:
                raise UserError(
                    f'config.{field}: cell {index} of {path} sets it; change the grid file instead, or write '
                    'grid(base), whose cells may depend on what the command line makes of the base'
                )
            if cell[field] != known[field]:
                raise UserError(
                    f'config.{field}: cell {index} of {path} sets it, the baseline of all others; change the grid file '
                    'instead'
                )


def _reference(
    path: str | Path, names: Mapping[str, Any], cells: int, base: Callable[[], ConfigDict]
) -> tuple[Figures, ...]:
    if 'reference' not in names:
        return ({},) * cells
    figures = _given(path, names, 'reference', base)
    if len(figures) != cells:
        raise UserError(
            f'{path}: reference() gives {len(figures)} for {cells} cells; one each, {{}} where there is none'
        )
    for index, row in enumerate(figures):
        if not isinstance(row, Mapping) or not all(
            isinstance(title, str) and isinstance(value, (int, float, str)) for title, value in row.items()
        ):
            raise UserError(
                f"{path}: reference() gives {row!r} for cell {index}; figures are a dict such as {{'paper PPL': 4.92}}"
            )
    return tuple(dict(row) for row in figures)
