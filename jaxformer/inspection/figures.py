"""Figures of what the other views print, for a notebook: of parameters, checkpoints, and the distance of two.

Each takes what the view's own function returns, and gives a matplotlib figure. As a data frame: the objects of its
`as_json` are rows, `pandas.DataFrame(parameters.as_json(rows)['parameters'])`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.inspection import parameters
from jaxformer.inspection.checkpoints import HALF, OTHER, WHOLE, Entry
from jaxformer.inspection.compare import Comparison
from jaxformer.inspection.difference import Difference
from jaxformer.inspection.parameters import Row


def of_parameters(rows: Sequence[Row]) -> Any:
    """A bar for each part of the model: how many parameters it has."""
    return _bars(parameters.groups(rows), 'parameters')


def of_difference(difference: Difference) -> Any:
    """A bar for each parameter that both have: its distance as a share of its size, the farthest on top."""
    known = {path: entry.relative for path, entry in difference.apart.items() if entry}
    farthest = dict(sorted(known.items(), key=lambda item: -item[1]))
    return _bars(farthest, f'distance from {difference.names[0]} to {difference.names[1]}, share of the norm')


def of_checkpoints(entries: Sequence[Entry]) -> Any:
    """The losses that were written at each step that has a checkpoint; crosses are steps that are not whole."""
    figure, axes = _axes(6, 4)
    steps = [entry for entry in entries if entry.step is not None]
    for name in sorted({name for entry in steps for name in entry.metrics if name.endswith('/loss')}):
        there = [entry for entry in steps if name in entry.metrics]
        axes.plot([entry.step for entry in there], [entry.metrics[name] for entry in there], marker='o', label=name)
    if broken := [entry.step for entry in steps if entry.state not in (WHOLE, OTHER, HALF)]:
        axes.plot(broken, [axes.get_ylim()[0]] * len(broken), 'x', color='C3', label='not whole', clip_on=False)
    axes.set_xlabel('step')
    axes.set_ylabel('loss')
    axes.legend(frameon=False)
    return figure


def of_comparison(comparison: Comparison) -> Any:
    """A panel for each metric that every run has: its last value in each run."""
    known = {
        name: metric.values
        for name, metric in comparison.metrics.items()
        if all(value is not None and math.isfinite(value) for value in metric.values)
    }
    across = min(max(len(known), 1), 3)
    down = -(-max(len(known), 1) // across)
    figure, _ = _axes(3.2 * across, 0.8 + down * (0.6 + 0.3 * len(comparison.runs)), panels=False)
    panels = figure.subplots(down, across, squeeze=False, sharey=True).flat
    for panel, (name, values) in zip(panels, known.items(), strict=False):
        panel.barh(range(len(values)), values, color='C0')
        panel.set_yticks(range(len(values)), comparison.runs)
        panel.invert_yaxis()
        panel.set_title(name, fontsize=9)
        panel.spines[['top', 'right']].set_visible(False)
    for panel in list(panels):
        panel.set_axis_off()
    return figure


def _bars(values: Mapping[str, float], title: str) -> Any:
    figure, axes = _axes(7, 1 + 0.25 * len(values))
    axes.barh(range(len(values)), list(values.values()), color='C0')
    axes.set_yticks(range(len(values)), list(values), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(title)
    return figure


def _axes(width: float, height: float, panels: bool = True) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout='constrained')
    if not panels:
        return figure, None
    axes = figure.subplots()
    axes.spines[['top', 'right']].set_visible(False)
    return figure, axes
