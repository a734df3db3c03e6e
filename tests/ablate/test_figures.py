"""The figures of a report: what is drawn, and where labels go."""

import re

import pytest
import standin

from jaxformer.ablate import collect, count, curves, drawing, launch, scatter


def test_the_mean_curve_has_only_steps_that_all_runs_have():
    assert curves.mean_curve([[(1, 2.0), (2, 4.0), (3, 9.0)], [(1, 4.0), (3, 1.0)]]) == [(1, 3.0), (3, 5.0)]
    assert curves.mean_curve([]) == []


@pytest.mark.parametrize('positions', [[5.0, 5.0, 5.1, 0.0], [9.9, 10.0, 9.8], list(range(30))])
def test_labels_are_moved_apart_in_their_order(positions):
    moved = drawing.spread(positions, 1.0, 0.0, 10.0)
    gap = min(1.0, 10.0 / (len(positions) - 1))
    ordered = [moved[index] for index in sorted(range(len(positions)), key=lambda index: positions[index])]
    assert all(high - low >= gap - 1e-9 for low, high in zip(ordered, ordered[1:], strict=False))
    assert min(moved) >= -1e-9
    assert max(moved) <= 10.0 + 1e-9


def test_quality_stands_against_what_differs_alone(tmp_path):
    same = standin.make_plan(tmp_path, "[{}, {'model.residual': 'pre'}]")
    launch.run(same, tmp_path / 'same', 1, standin.Standin(), say=lambda line: None)
    assert scatter.figures(collect.collect(tmp_path / 'same')) == []
    other = standin.make_plan(tmp_path, "[{}, {'model.d_ff': 9}, {'model.d_ff': 700}]")
    launch.run(other, tmp_path / 'other', 2, standin.Standin(), say=lambda line: None)
    results = collect.collect(tmp_path / 'other')
    (figure,) = scatter.figures(results)
    assert figure.caption == 'Dev PER against training FLOPs'
    found = scatter.points(results, 'flops')
    assert [point.cost for point in found] == [count.train_flops(cell.config) for cell in other.cells]
    summary = results.cells[1].summaries['dev/per']
    assert (found[1].mean, found[1].half_width) == (100 * summary.mean, 100 * summary.half_width)


def test_the_band_is_from_the_lowest_to_the_highest():
    curves_ = [[(1, 2.0), (2, 4.0), (3, 9.0)], [(1, 4.0), (3, 1.0)], [(1, 3.0), (3, 2.0)]]
    assert curves.band(curves_) == [(1, 2.0, 4.0), (3, 1.0, 9.0)]
    assert curves.band([]) == []


@pytest.mark.parametrize(('d_ff', 'ticks'), [(500, ('1.35T', '1.5T', '1.65T')), (80_000, ('2T', '5T', '10T'))])
def test_the_scale_of_the_cost_is_logarithmic_where_it_spans_much(tmp_path, d_ff, ticks):
    grid = standin.make_plan(tmp_path, f"[{{}}, {{'model.d_ff': {d_ff}}}]")
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    (figure,) = scatter.figures(collect.collect(tmp_path / 'grid'))
    assert all(f'>{tick}<' in figure.svg for tick in ticks), re.findall(r'>([\d.]+[kMGTP])<', figure.svg)
