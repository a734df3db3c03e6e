"""Matrices of weights side by side as one figure, every row and column named."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

CELL = 0.3  # inches, as long as the panel fits MAX_PANEL
MAX_PANEL = 6.2  # inches, the side of a panel
MAX_WIDTH = 20.0  # inches, the panels of a row together
MAX_ACROSS = 4  # panels in a row
FONT = 9  # points; a label takes about FONT / 60 inches


def heat_maps(
    weights_HTS: np.ndarray,
    *,
    heads: Sequence[int],
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
    title: str,
) -> Any:
    """A matplotlib figure with a panel per head, by the numbers `heads`, on one colour scale from 0 to 1.

    `rows` and `columns` name T and S. Where they are too many to be written, every second (third …) is.
    """
    # Figure and not pyplot: no window, no backend that is set for a notebook around it.
    from matplotlib.figure import Figure

    H, T, S = weights_HTS.shape
    if (len(rows), len(columns)) != (T, S):
        raise ValueError(f'weights of {T} x {S} with {len(rows)} row and {len(columns)} column names')
    cell = max(min(CELL, MAX_PANEL / max(T, S)), min(1.6 / max(T, S), 0.5))
    fitting = min(max(int(MAX_WIDTH / (cell * S + 0.25)), 1), MAX_ACROSS, H)
    down = math.ceil(H / fitting)
    across = math.ceil(H / down)  # as many in the last line as in the others, or nearly so
    label_width, label_height = (FONT / 100 * max(map(len, names)) for names in (rows, columns))
    width = across * (cell * S + 0.25) + label_width + 1.8
    height = down * (cell * T + 0.4) + label_height + 1.1
    longest = FONT / 95 * max(map(len, (*title.split('\n'), column_title)))
    size = max(width, longest), max(height, FONT / 95 * len(row_title))
    figure = Figure(figsize=size, layout='constrained')
    figure.suptitle(title, fontsize=FONT + 2)
    figure.supxlabel(column_title, fontsize=FONT + 1)
    figure.supylabel(row_title, fontsize=FONT + 1)
    panels = figure.subplots(down, across, squeeze=False)
    for number, panel in enumerate(panels.flat):
        if number >= H:
            panel.set_axis_off()
            continue
        panel.imshow(weights_HTS[number], vmin=0, vmax=1, cmap='Blues', interpolation='nearest')
        panel.set_title(f'head {heads[number]}', fontsize=FONT + 1)
        _name(panel.yaxis, rows if number % across == 0 else (), T, cell, upright=True)
        _name(panel.xaxis, columns if number + across >= H else (), S, cell, upright=False)
    image = panels[0, 0].images[0]
    bar = figure.colorbar(image, ax=panels, fraction=0.05, shrink=min(0.95, 4 / size[1]), aspect=20, pad=0.02)
    bar.set_label('weight', fontsize=FONT + 1)
    bar.ax.tick_params(labelsize=FONT)
    return figure


def _name(axis: Any, names: Sequence[str], length: int, cell: float, upright: bool) -> None:
    """Ticks at every cell, with the names that have room; unless `upright`, words are turned if two would touch."""
    every = math.ceil(FONT / 60 / cell)
    shown = range(0, length, every)
    axis.set_ticks(list(shown), [names[i] for i in shown] if names else [], fontsize=FONT)
    axis.set_tick_params(length=2)
    labels = axis.get_ticklabels()
    room = [FONT / 110 * len(label.get_text()) + 0.04 for label in labels]
    if not upright and any((a + b) / 2 > cell * every for a, b in itertools.pairwise(room)):
        for label in labels:
            label.set_rotation(90 if len(label.get_text()) > 1 else 0)
