"""What quality costs: the grid's metric against parameters and against FLOPs, where the cells differ in them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from jaxformer.ablate import collect, drawing, metrics
from jaxformer.ablate.drawing import Figure
from jaxformer.ablate.shown import operations, row_name

_AXES = {'parameters': 'parameters', 'flops': 'training FLOPs'}


@dataclasses.dataclass(frozen=True)
class Point:
    """A cell: its index, what it costs, its metric's mean as printed, and the half width of the interval over seeds."""

    index: int
    cost: int
    mean: float
    half_width: float | None


def figures(results: collect.Results) -> list[Figure]:
    """One figure per kind of cost in which at least two cells with a number differ by more than a hundredth."""
    drawn = []
    for quantity, title in _AXES.items():
        found = points(results, quantity)
        costs = [point.cost for point in found]
        if costs and max(costs) > 1.01 * min(costs):
            caption = f'{_capital(metrics.title(results.ledger.metric))} against {title}'
            svg = drawing.draw(functools.partial(_plot, results, found, quantity), f'cost-{quantity}', caption)
            drawn.append(Figure(caption, svg))
    return drawn


def points(results: collect.Results, quantity: str) -> list[Point]:
    """The cells that have both numbers."""
    scale = metrics.lookup(results.ledger.metric).scale
    found = []
    for index, cell in enumerate(results.cells):
        summary, cost = cell.summaries.get(results.ledger.metric), getattr(cell.cost, quantity)
        if summary is not None and summary.mean is not None and cost:
            width = None if summary.half_width is None else scale * summary.half_width
            found.append(Point(index, cost, scale * summary.mean, width))
    return found


def _plot(results: collect.Results, found: Sequence[Point], quantity: str, axes: Any) -> str:
    known = metrics.lookup(results.ledger.metric)
    for point in found:
        axes.errorbar(
            point.cost,
            point.mean,
            yerr=point.half_width,
            color=drawing.series(point.index),
            fmt='o' if point.index < drawing.NUM_COLOURS else 's',
            ms=5,
            elinewidth=1,
            capsize=2.5,
        )
    means = [point.mean for point in found]
    span = max(means) - min(means) or abs(means[0]) or 1.0
    widths = [point.half_width or 0.0 for point in found]
    # An interval of two seeds can be as wide as ten times all differences: it may leave the picture.
    low = max(min(m - w for m, w in zip(means, widths, strict=True)), min(means) - span)
    high = min(max(m + w for m, w in zip(means, widths, strict=True)), max(means) + span)
    margin = 0.06 * (high - low or span)
    axes.set_ylim(low - margin, high + margin)
    _scale(axes, [point.cost for point in found])
    _label(axes, found)
    title = metrics.title(results.ledger.metric)
    axes.set_xlabel(_AXES[quantity])
    axes.set_ylabel(_capital(title) + (' (%)' if known.percent else ''))
    return '. '.join(
        f'{row_name(point.index, results.cells[point.index].entry.label, short=True)}: '
        f'{point.cost:,} {_AXES[quantity]}, {title} {point.mean:.{known.decimals}f}' + (' %' if known.percent else '')
        for point in sorted(found, key=lambda point: point.cost)
    )


def _scale(axes: Any, costs: Sequence[int]) -> None:
    """By the logarithm where the costs differ by more than three times."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = min(costs), max(costs)
    if high > 3 * low:
        stretch = (high / low) ** 0.08
        axes.set_xscale('log')
        axes.set_xlim(low / stretch, high * stretch**2)
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        margin = 0.08 * (high - low)
        axes.set_xlim(low - margin, high + 2 * margin)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _label(axes: Any, found: Sequence[Point]) -> None:
    """Writes each cell's number beside its point; cells that cost nearly the same are moved apart."""
    low, high = axes.get_ylim()
    groups: list[list[Point]] = []
    for point in sorted(found, key=lambda point: point.cost):
        if groups and point.cost < 1.03 * groups[-1][0].cost:
            groups[-1].append(point)
        else:
            groups.append([point])
    for group in groups:
        heights = drawing.spread([point.mean for point in group], (high - low) * drawing.LINE, low, high)
        for point, height in zip(group, heights, strict=True):
            drawing.write(axes, row_name(point.index), point.cost, height, 'data', point.index)


def _tick(value: float) -> str:
    number, _, prefix = operations(value).partition(' ')
    return f'{float(number):g}{prefix}'


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
