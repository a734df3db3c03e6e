"""Figures as inline SVG, drawn by matplotlib and coloured by the page's CSS, so that they follow its theme."""

import dataclasses
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup, escape

NUM_COLOURS = 8
"""`--series-0` (the baseline) … `--series-7` in report.css; later cells take the same colours again, dashed."""

LINE = 0.075
"""Height of a line of text as a share of the axes."""

_INK = '#0abc00'  # stands for the page's text colour until the SVG is written; so does series(i) for a CSS variable
_WIDTH, _HEIGHT = 4.6, 2.9  # inches; at this width the labels are legible on a phone and in half a page alike
_SETTINGS: dict[str, Any] = {
    'svg.fonttype': 'none',
    'text.parse_math': False,  # a $ in a label is a $
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


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the report: what stands under it, and the `<svg>` element."""

    caption: str
    svg: Markup


def draw(plot: Callable[[Any], str], name: str, title: str) -> Markup:
    """The `<svg>` element of what `plot` draws on the axes that it gets.

    Args:
      plot: returns what a reader who does not see the figure is told.
      name: prefix of the ids in it. title: its accessible name.
    """
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    settings: Any = {**_SETTINGS, 'svg.hashsalt': name}
    with matplotlib.rc_context(settings):
        figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT), layout='constrained')
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        description = plot(axes)
        text = io.StringIO()
        figure.savefig(text, format='svg', metadata={'Creator': None, 'Date': None, 'Format': None, 'Type': None})
        plt.close(figure)
    return _inline(text.getvalue(), name, title, description)


def colour(index: int) -> str:
    """CSS colour of the cell with this index."""
    return f'var(--series-{index % NUM_COLOURS})'


def series(index: int) -> str:
    """The same for matplotlib."""
    return f'#0abc1{index % NUM_COLOURS}'


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


def write(axes: Any, text: str, x: float, y: float, x_unit: str, index: int) -> None:
    """Writes `text` a little to the right of (x, y) in the cell's colour."""
    axes.annotate(
        text,
        (x, y),
        xycoords=(x_unit, 'data'),
        xytext=(6, 0),
        textcoords='offset points',
        va='center',
        color=series(index),
    )


def _inline(svg: str, name: str, title: str, description: str) -> Markup:
    """The `<svg>` element for a page: own ids, colours from CSS, and an accessible name and description."""
    body = svg[svg.index('<svg') :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'url\(#([^)]+)\)', rf'url(#{name}-\1)', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = body.replace(_INK, 'currentColor')
    for index in range(NUM_COLOURS):
        body = body.replace(series(index), colour(index))
    head, rest = body.split('>', 1)
    head = re.sub(r' (width|height)="[^"]*"', '', head)
    about = (
        f' role="img" aria-labelledby="{name}-title {name}-description">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>'
    )
    return Markup(head + about + rest)  # matplotlib escapes the text that it is given
