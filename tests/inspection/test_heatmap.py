"""Figures stay readable whatever the number of heads and symbols."""

import numpy as np
import pytest

from jaxformer.inspection.heatmap import heat_maps


def make(H, T, S, names='s'):
    weights = np.full((H, T, S), 1 / S, np.float32)
    rows, columns = [f'r{i}' for i in range(T)], [f'{names}{i}' for i in range(S)]
    return heat_maps(
        weights, heads=range(1, H + 1), rows=rows, columns=columns, row_title='row', column_title='column', title='a\nb'
    )


def overlapping(panel, figure):
    """Pairs of neighbouring column names that touch."""
    renderer = figure.canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in panel.get_xticklabels()]
    return sum(left.overlaps(right) for left, right in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize(('H', 'T', 'S'), [(1, 1, 2), (3, 5, 7), (8, 38, 41), (2, 90, 130)])
@pytest.mark.parametrize('names', ['', 'symbol'])
def test_size_is_bounded_and_names_do_not_touch(H, T, S, names):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = make(H, T, S, names)
    FigureCanvasAgg(figure).draw()
    width, height = figure.get_size_inches()
    assert width < 26 and height < 40
    drawn = [panel for panel in figure.axes if panel.images]
    assert len(drawn) == H
    assert not overlapping(drawn[-1], figure)


def test_names_must_fit_the_weights():
    with pytest.raises(ValueError, match='weights of 5 x 7 with 7 row and 5 column names'):
        heat_maps(
            np.zeros((1, 5, 7)),
            heads=[1],
            rows=list('abcdefg'),
            columns=list('abcde'),
            row_title='',
            column_title='',
            title='',
        )
