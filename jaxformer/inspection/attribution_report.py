"""What `jaxformer inspect attribution` shows: for each text what its outputs depend on, and how far measures agree."""

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from jaxformer.data.corpus import Split
from jaxformer.data.splits import LabelledSplit, PairSplit
from jaxformer.decode.open import OpenRun, open_run
from jaxformer.decode.stream import Progress
from jaxformer.errors import UserError
from jaxformer.inspection import agreement, attribution
from jaxformer.inspection.agreement import Agreement
from jaxformer.inspection.attribution import Attribution
from jaxformer.inspection.compare import jsonable, table

EXAMPLES = 200
"""Of a split, spread over all of it."""

DRAWN = 20
"""Texts that are drawn: of a long file, the first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """step: of the checkpoint. texts: none of a split, of which the statistics count alone."""

    step: int
    texts: tuple[Attribution, ...]
    agreement: Agreement


def of_lines(workdir: epath.PathLike, lines: Sequence[str], step: int | None = None) -> Report:
    """Of a text per line; blank lines are left out.

    Raises:
      UserError: no line holds a text, and as `open_run` and `attribution.of_run`.
    """
    if not (texts := [line for line in lines if line.strip()]):
        raise UserError('--input: no line of it holds a text')
    run = open_run(workdir, step)
    found = tuple(_each(run, texts))
    return Report(run.step, found, agreement.of_texts([each.by for each in found]))


def of_split(run: OpenRun, split: Split, most: int = EXAMPLES) -> Report:
    """The agreement over examples of a split, at most so many, evenly spread.

    Raises:
      UserError: a stream of text, which has no examples of its own, or no example with a text; and as
        `attribution.of_run`.
    """
    if not isinstance(split, PairSplit | LabelledSplit):
        raise UserError(f'--split={split.name}: documents of any length; give texts, --input=FILE')
    numbers = [] if not len(split) else np.unique(np.linspace(0, len(split) - 1, most).astype(int)).tolist()
    texts = [
        split.source_text(number)
        if isinstance(split, PairSplit)
        else run.vocab.join(run.vocab.decode(split.tokens[number][1:].tolist()))
        for number in numbers
    ]
    if not (texts := [text for text in texts if text.strip()]):
        raise UserError(f'--split={split.name}: none of its {len(split)} examples has a text')
    return Report(run.step, (), agreement.of_texts([each.by for each in _each(run, texts)]))


def _each(run: OpenRun, texts: Sequence[str]) -> Iterator[Attribution]:
    """The attributions of texts; a terminal shows how far they are."""
    progress = Progress(sys.stderr, len(texts), 'texts')
    for number, text in enumerate(texts, 1):
        yield attribution.of_run(run, text)
        progress.show(number, number)
    progress.end()


def as_json(report: Report) -> dict[str, Any]:
    """{"step", "texts": [an object per text, arrays as lists of rows], "agreement"}; what is no number as "nan"."""
    return {
        'step': report.step,
        'texts': [_listed(text) for text in report.texts],
        'agreement': _listed(report.agreement),
    }


def _listed(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _listed(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _listed(entry) for name, entry in value.items()}
    return jsonable(value.tolist() if isinstance(value, np.ndarray) else value)


def as_text(report: Report) -> str:
    """For each text a table of its outputs, with the input that each measure finds to matter most, counted from 1; then
    the correlations between measures."""
    tables = [_most(text) for text in report.texts]
    found, names = report.agreement, report.agreement.names
    cells = {
        name: [
            '' if other >= own else _correlation(found.mean_KK[own, other], found.error_KK[own, other])
            for other in range(len(names) - 1)
        ]
        for own, name in enumerate(names)
        if own
    }
    noun = 'text' if found.texts == 1 else 'texts'
    title = f'rank correlation of magnitudes, mean of {found.texts} {noun}'
    return '\n\n'.join((*tables, table(title, names[:-1], cells, 'only one measure')))


def _correlation(mean: float, error: float) -> str:
    if not np.isfinite(mean):
        return '-'
    return f'{mean:.2f}' if not np.isfinite(error) else f'{mean:.2f} ± {error:.2f}'


def _most(text: Attribution) -> str:
    rows = {}
    for place, output in enumerate(text.outputs):
        cells = [f'{text.scores_R[place]:.3f}']
        for array in text.by.values():
            magnitude_C = np.nan_to_num(np.abs(array[place]), nan=-1)
            most = int(magnitude_C.argmax())
            cells.append(f'{text.inputs[most]} ({most + 1})' if magnitude_C[most] > 0 else '-')
        rows[f'{place + 1} {output}'] = cells
    return f'{text.text.strip()}\n' + table('output', ('log p', *text.by), rows, 'none')


def figure(text: Attribution) -> Any:
    """A matplotlib figure with a panel per measure: outputs down, inputs across. Each has a scale of its own:
    measures with a sign are red below 0 and blue above, weights are blue."""
    from matplotlib.figure import Figure

    R, C = len(text.outputs), len(text.inputs)
    across = min(len(text.by), 3)
    down = -(-len(text.by) // across)
    cell = max(min(0.3, 5 / max(R, C)), 0.08)
    made = Figure(figsize=(across * (cell * C + 1.4) + 0.6, down * (cell * R + 1.1) + 0.7), layout='constrained')
    made.suptitle(f'What the outputs for “{text.text.strip()[:40]}” depend on', fontsize=11)
    panels = made.subplots(down, across, squeeze=False).flat
    for panel, (name, array) in zip(panels, text.by.items(), strict=False):
        signed = name not in attribution.ATTENTION
        limit = float(np.nanmax(np.abs(array), initial=0)) or 1.0
        scale = (
            {'cmap': 'RdBu', 'vmin': -limit, 'vmax': limit} if signed else {'cmap': 'Blues', 'vmin': 0, 'vmax': limit}
        )
        image = panel.imshow(array, interpolation='nearest', aspect='auto', **scale)
        every = max(round(0.15 / cell), 1)
        panel.set_title(name.replace('_', ' '), fontsize=10)
        panel.set_xticks(range(0, C, every), text.inputs[::every], fontsize=8)
        panel.set_yticks(range(0, R, every), text.outputs[::every], fontsize=8)
        panel.tick_params(length=2)
        made.colorbar(image, ax=panel, fraction=0.06, pad=0.03).ax.tick_params(labelsize=7)
    for panel in panels:
        panel.set_axis_off()
    made.supxlabel('input', fontsize=9)
    made.supylabel('output', fontsize=9)
    return made


def draw(report: Report, directory: epath.PathLike) -> list[epath.Path]:
    """Draws the first DRAWN texts as `directory/<number>-<text>-step<n>.png`.

    Raises:
      UserError: the directory cannot be written.
    """
    directory, paths = epath.Path(directory), []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(report.texts[:DRAWN], 1):
            name = re.sub(r'\W+', '-', text.text.strip())[:40].strip('-') or 'text'
            paths.append(directory / f'{number}-{name}-step{report.step}.png')
            with paths[-1].open('wb') as file:
                figure(text).savefig(file, format='png', dpi=150)
    except OSError as error:
        raise UserError(f'{directory}: {error.strerror or error}; choose a directory that can be written') from error
    return paths
