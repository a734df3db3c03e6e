"""Learning curves as inline SVG, drawn by matplotlib and coloured by the page's CSS, so that they follow its theme."""

import dataclasses
import io
import re
import statistics
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from jaxformer.ablate import collect, metrics

NUM_COLOURS = 8
"""`--series-0` (the baseline) … `--series-7` in report.css; later cells take the same colours again, dashed."""

_INK = '#0abc00'  # stands for the page's text colour until the SVG is written; so does _series(i) for a CSS variable
_WIDTH, _HEIGHT = 4.6, 2.9  # inches; at this width the labels are legible on a phone and in half a page alike
_LINE = 0.075  # height of a line of text as a share of the axes
_LONGEST_LABEL = 22  # characters; longer ones shrink the curves too far, their number in the table does


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the report: what stands under it, and the `<svg>` element."""

    caption: str
    svg: Markup


def figures(results: collect.Results) -> list[Figure]:
    """One figure per metric: training loss last, metrics that no run recorded twice left out."""
    keys = [*results.metrics, 'train/loss']
    drawn: list[Figure] = []
    for key in keys:
        if any(len(result.series.get(key, ())) > 1 for cell in results.cells for result in cell.runs):
            drawn.append(Figure(_caption(key), _draw(results, key, f'figure-{len(drawn)}')))
    return drawn


def colour(index: int) -> str:
    """CSS colour of the cell with this index."""
    return f'var(--series-{index % NUM_COLOURS})'


def mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Mean over the curves at each step that all of them have; steps of which one is missing have no mean."""
    if not curves:
        return []
    tables = [dict(curve) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return [(step, statistics.fmean(table[step] for table in tables)) for step in shared]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves `positions` as little as a sweep does, so that they lie `gap` apart within [low, high], in their order.

    Where there is no room for that gap, the gap shrinks.
    """
    if len(positions) > 1:
        gap = min(gap, (high - low) / (len(positions) - 1))
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    moved = list(positions)
    floor = low
    for index in order:
        moved[index] = floor = max(moved[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        moved[index] = ceiling = min(moved[index], ceiling)
        ceiling -= gap
    return moved


def _caption(key: str) -> str:
    name = 'training loss' if key == 'train/loss' else metrics.title(key)
    return f'{name[0].upper()}{name[1:]}'


def _draw(results: collect.Results, key: str, name: str) -> Markup:
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    settings: Any = {
        'svg.fonttype': 'none',
        'svg.hashsalt': name,
        'font.size': 10,
        'text.color': _INK,
        'axes.edgecolor': _INK,
        'axes.labelcolor': _INK,
        'xtick.color': _INK,
        'ytick.color': _INK,
        'axes.spines.top': False,
        'axes.spines.right': False,
        'axes.linewidth': 0.6,
        'xtick.major.width': 0.6,
        'ytick.major.width': 0.6,
    }
    with matplotlib.rc_context(settings):
        figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT), layout='constrained')
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        ends = _plot(results, key, axes)
        axes.set_xlabel('step')
        known = metrics.METRICS[key.rpartition('/')[2]]
        axes.set_ylabel(_caption(key) + (' (%)' if known.percent else ''))
        _label(axes, ends)
        text = io.StringIO()
        blank = {'Creator': None, 'Date': None, 'Format': None, 'Type': None}
        figure.savefig(text, format='svg', metadata=blank)
        plt.close(figure)
    return _inline(text.getvalue(), name, f'{_caption(key)} by step', _description(results, key, ends))


def _plot(results: collect.Results, key: str, axes: Any) -> list[tuple[int, str, float]]:
    """Draws the curves; returns (cell index, name, last value) of each cell's mean."""
    scale = metrics.METRICS[key.rpartition('/')[2]].scale
    ends: list[tuple[int, str, float]] = []
    broken: list[tuple[int, int, float]] = []
    for index, cell in enumerate(results.cells):
        style = '-' if index < NUM_COLOURS else '--'
        for result in cell.runs:
            curve = [(step, scale * value) for step, value in result.series.get(key, ())]
            if not curve:
                continue
            unfinished = result.run.state != 'done'
            axes.plot(
                *zip(*curve, strict=True), color=_series(index), lw=0.7, alpha=0.5, ls=':' if unfinished else style
            )
            if unfinished:
                axes.plot(*curve[-1], marker='x', color=_series(index), ms=5, mew=1.2)
        mean = mean_curve([result.series[key] for result in cell.done if key in result.series])
        if mean:
            steps, values = zip(*((step, scale * value) for step, value in mean), strict=True)
            axes.plot(steps, values, color=_series(index), lw=1.8, ls=style, zorder=3 if index else 4)
            ends.append((index, row_name(index, cell.entry.label), values[-1]))
        elif partial := [result.series[key][-1] for result in cell.runs if result.series.get(key)]:
            step, value = max(partial)
            broken.append((index, step, scale * value))
    low, high = axes.get_ylim()
    heights = spread([value for *_, value in broken], (high - low) * _LINE, low, high)
    for (index, step, _), height in zip(broken, heights, strict=True):
        _write(axes, row_name(index), step, height, 'data', index)
    return ends


def row_name(index: int, label: str = '') -> str:
    """How a cell is called in table and figures: 'base', '(1)', or with a label that is not too long '(1) d_k=16'."""
    short = 'base' if index == 0 else f'({index})'
    return f'{short} {label}' if index and 0 < len(label) <= _LONGEST_LABEL else short


def _label(axes: Any, ends: Sequence[tuple[int, str, float]]) -> None:
    """Writes each cell's name at the end of its mean curve, moved apart where ends lie close."""
    low, high = axes.get_ylim()
    heights = spread([value for *_, value in ends], (high - low) * _LINE, low, high)
    for (index, name, _), height in zip(ends, heights, strict=True):
        _write(axes, name, 1.0, height, 'axes fraction', index)
    axes.set_ylim(low, high)


def _write(axes: Any, text: str, x: float, y: float, x_unit: str, index: int) -> None:
    """Writes `text` a little to the right of (x, y) in the cell's colour."""
    axes.annotate(
        text,
        (x, y),
        xycoords=(x_unit, 'data'),
        xytext=(6, 0),
        textcoords='offset points',
        va='center',
        color=_series(index),
    )


def _description(results: collect.Results, key: str, ends: Sequence[tuple[int, str, float]]) -> str:
    """What a reader who does not see the figure is told."""
    known = metrics.METRICS[key.rpartition('/')[2]]
    unit = ' %' if known.percent else ''
    parts = [f'{name} {value:.{known.decimals}f}{unit}' for _, name, value in ends]
    unfinished = sum(result.run.state != 'done' for cell in results.cells for result in cell.runs)
    text = f'Mean over seeds at the last step: {", ".join(parts)}.' if parts else 'No cell has a finished run.'
    return text + (f' {unfinished} unfinished runs are dotted and end in a cross.' if unfinished else '')


def _series(index: int) -> str:
    return f'#0abc1{index % NUM_COLOURS}'


def _inline(svg: str, name: str, title: str, description: str) -> Markup:
    """The `<svg>` element for a page: own ids, colours from CSS, and an accessible name and description."""
    body = svg[svg.index('<svg') :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'url\(#([^)]+)\)', rf'url(#{name}-\1)', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = body.replace(_INK, 'currentColor')
    for index in range(NUM_COLOURS):
        body = body.replace(_series(index), colour(index))
    head, rest = body.split('>', 1)
    head = re.sub(r' (width|height)="[^"]*"', '', head)
    about = (
        f' role="img" aria-labelledby="{name}-title {name}-description">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>'
    )
    return Markup(head + about + rest)  # matplotlib escapes the text that it is given
