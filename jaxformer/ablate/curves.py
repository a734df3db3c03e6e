"""Learning curves: the mean over a cell's finished seeds, with a band from the lowest to the highest of them."""

import functools
import statistics
from collections.abc import Sequence
from typing import Any

from jaxformer.ablate import collect, drawing, metrics
from jaxformer.ablate.drawing import Figure
from jaxformer.ablate.shown import row_name

Curve = Sequence[tuple[int, float]]


def figures(results: collect.Results) -> list[Figure]:
    """One figure per metric: training loss last, metrics that no run recorded twice left out."""
    drawn: list[Figure] = []
    for key in (*results.metrics, 'train/loss'):
        if any(len(result.series.get(key, ())) > 1 for cell in results.cells for result in cell.runs):
            name = f'curve-{len(drawn)}'
            svg = drawing.draw(functools.partial(_plot, results, key), name, f'{_caption(key)} by step')
            drawn.append(Figure(_caption(key), svg))
    return drawn


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """Mean over the curves at each step that all of them have; steps of which one is missing have no mean."""
    return [(step, statistics.fmean(values)) for step, values in _shared(curves)]


def band(curves: Sequence[Curve]) -> list[tuple[int, float, float]]:
    """(step, lowest, highest) of the curves at each step that all of them have."""
    return [(step, min(values), max(values)) for step, values in _shared(curves)]


def _shared(curves: Sequence[Curve]) -> list[tuple[int, list[float]]]:
    tables = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return [(step, [table[step] for table in tables]) for step in steps]


def _caption(key: str) -> str:
    name = 'training loss' if key == 'train/loss' else metrics.title(key)
    return f'{name[0].upper()}{name[1:]}'


def _plot(results: collect.Results, key: str, axes: Any) -> str:
    """Draws the curves; returns what they say."""
    known = metrics.METRICS[key.rpartition('/')[2]]
    ends: list[tuple[int, str, float]] = []
    broken: list[tuple[int, int, float]] = []
    for index, cell in enumerate(results.cells):
        colour, style = drawing.series(index), '-' if index < drawing.NUM_COLOURS else '--'
        finished = [
            [(step, known.scale * value) for step, value in result.series[key]]
            for result in cell.done
            if key in result.series
        ]
        for result in cell.runs:
            if result.run.state == 'done' or not result.series.get(key):
                continue
            steps, values = zip(*((step, known.scale * value) for step, value in result.series[key]), strict=True)
            axes.plot(steps, values, color=colour, lw=0.8, ls=':')
            axes.plot(steps[-1], values[-1], marker='x', color=colour, ms=5, mew=1.2)
        if len(finished) > 1 and (shared := band(finished)):
            axes.fill_between(*zip(*shared, strict=True), color=colour, alpha=0.16, lw=0)
        if mean := mean_curve(finished):
            axes.plot(*zip(*mean, strict=True), color=colour, lw=1.8, ls=style, zorder=3 if index else 4)
            ends.append((index, row_name(index, cell.entry.label, short=True), mean[-1][1]))
        elif partial := [result.series[key][-1] for result in cell.runs if result.series.get(key)]:
            step, value = max(partial)
            broken.append((index, step, known.scale * value))
    low, high = axes.get_ylim()
    heights = drawing.spread([value for *_, value in broken], (high - low) * drawing.LINE, low, high)
    for (index, step, _), height in zip(broken, heights, strict=True):
        drawing.write(axes, row_name(index), step, height, 'data', index)
    heights = drawing.spread([value for *_, value in ends], (high - low) * drawing.LINE, low, high)
    for (index, name, _), height in zip(ends, heights, strict=True):
        drawing.write(axes, name, 1.0, height, 'axes fraction', index)
    axes.set_ylim(low, high)
    axes.set_xlabel('step')
    axes.set_ylabel(_caption(key) + (' (%)' if known.percent else ''))
    return _description(results, key, ends)


def _description(results: collect.Results, key: str, ends: Sequence[tuple[int, str, float]]) -> str:
    """What a reader who does not see the figure is told."""
    known = metrics.METRICS[key.rpartition('/')[2]]
    unit = ' %' if known.percent else ''
    parts = [f'{name} {value:.{known.decimals}f}{unit}' for _, name, value in ends]
    unfinished = sum(result.run.state != 'done' for cell in results.cells for result in cell.runs)
    text = f'Mean over seeds at the last step: {", ".join(parts)}.' if parts else 'No cell has a finished run.'
    return text + (f' {unfinished} unfinished runs are dotted and end in a cross.' if unfinished else '')
