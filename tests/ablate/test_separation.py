"""Which differences the report calls separated, from numbers made by hand."""

import json

import pytest
import standin
from markupsafe import escape

from jaxformer.ablate import collect, examples, launch, report, separation

CELLS = "product({'model.num_heads': (8, 1, 4, 16)})"
SEEDS = 5
BASE = (0.20, 0.25, 0.22, 0.30, 0.27)
CLEARLY_WORSE = tuple(value + step for value, step in zip(BASE, (0.030, 0.032, 0.029, 0.031, 0.030), strict=True))
NO_DIFFERENT = tuple(value + step for value, step in zip(BASE, (0.010, -0.012, 0.004, -0.009, 0.006), strict=True))
CLEARLY_BETTER = tuple(value - step for value, step in zip(BASE, (0.010, 0.012, 0.011, 0.009, 0.010), strict=True))


def finished(tmp_path, *values, seeds=SEEDS, cells=CELLS, extra=''):
    """A grid whose finished runs have these values of dev/per, by cell and seed."""
    tmp_path.mkdir(exist_ok=True)
    grid, workdir = standin.make_plan(tmp_path, cells, extra), tmp_path / 'grid'
    launch.run(grid, workdir, seeds, standin.Standin(), say=lambda line: None)
    for cell, row in zip(grid.cells, values, strict=True):
        for seed, value in enumerate(row):
            path = workdir / 'cells' / cell.id / f'seed-{seed}' / 'metrics.jsonl'
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            lines[-1]['dev/per'] = value
            path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return workdir


def test_the_text_says_what_separates_and_what_does_not(tmp_path):
    workdir = finished(tmp_path, BASE, CLEARLY_WORSE, NO_DIFFERENT, CLEARLY_BETTER)
    results = collect.collect(workdir)
    found = separation.judge(results)
    assert [(one.index, one.state) for one in found] == [(1, 'separated'), (2, 'not separated'), (3, 'separated')]
    text = separation.sentences(results)
    worse, better, same = (next(line for line in text if f'({row})' in line) for row in (1, 3, 2))
    # In points: sd 0.114, 0.114 and 0.971; times 2.776 (t at 4 degrees of freedom) / √5: 0.14, 0.14 and 1.21.
    assert worse.startswith('Separated: (1) num_heads=1 is worse by 3.04 ± 0.14 (n = 5, p ')
    assert better.startswith('Separated: (3) num_heads=16 is better by 1.04 ± 0.14')
    assert same.startswith('Not separated: (2) num_heads=4 differs by -0.02 ± 1.21 (n = 5, p ')
    markdown = report.as_markdown(results, examples.measure(results))
    html = report.as_html(results, examples.measure(results))
    assert all(line in markdown and escape(line) in html for line in text)


def test_p_values_are_corrected_for_the_number_of_cells(tmp_path):
    """The same numbers, alone and as one of three: only alone is their p below 0.05."""
    near = tuple(value + step for value, step in zip(BASE, (0.010, 0.030, 0.002, 0.020, 0.012), strict=True))
    alone = finished(tmp_path / 'a', BASE, near, cells="product({'model.num_heads': (8, 1)})")
    (one,) = separation.judge(collect.collect(alone))
    assert one.state == 'separated'
    assert one.p == one.difference.p
    among = finished(tmp_path / 'b', BASE, near, NO_DIFFERENT, NO_DIFFERENT)
    judged = separation.judge(collect.collect(among))
    assert judged[0].p == pytest.approx(3 * one.p)
    assert judged[0].state == 'not separated'
    assert 'its interval alone leaves 0 out' in separation.sentences(collect.collect(among))[1]


def test_one_seed_says_nothing(tmp_path):
    workdir = finished(tmp_path, BASE[:1], CLEARLY_WORSE[:1], NO_DIFFERENT[:1], CLEARLY_BETTER[:1], seeds=1)
    results = collect.collect(workdir)
    assert [one.state for one in separation.judge(results)] == ['nothing to say'] * 3
    assert len(separation.sentences(results)) == 1
    assert 'Nothing can be said' in separation.sentences(results)[0]
    assert 'separated' not in report.as_markdown(results, examples.measure(results)).lower()


def test_two_seeds_are_said_to_give_an_interval_and_do(tmp_path):
    one = finished(tmp_path / 'a', BASE[:1], CLEARLY_WORSE[:1], NO_DIFFERENT[:1], CLEARLY_BETTER[:1], seeds=1)
    (text,) = separation.sentences(collect.collect(one))
    assert 'no cell shares two finished seeds with the base' in text
    assert 'Two seeds (--seeds=2) give an interval, three one of about a quarter of its width.' in text
    two = finished(tmp_path / 'b', BASE[:2], CLEARLY_WORSE[:2], NO_DIFFERENT[:2], CLEARLY_BETTER[:2], seeds=2)
    assert all(found.difference.half_width is not None for found in separation.judge(collect.collect(two)))
    # With the same spread: t at 1 and 2 degrees of freedom, over the roots of 2 and 3.
    assert pytest.approx(0.25, abs=0.03) == (4.303 / 3**0.5) / (12.706 / 2**0.5)


def test_a_cell_with_one_finished_seed_is_named_apart(tmp_path):
    workdir = finished(tmp_path, BASE, CLEARLY_WORSE, NO_DIFFERENT, CLEARLY_BETTER)
    book = collect.collect(workdir)
    for seed in range(1, SEEDS):
        path = workdir / 'cells' / book.cells[3].entry.id / f'seed-{seed}' / 'status.json'
        path.write_text(path.read_text().replace('"done"', '"failed"'))
    found = separation.judge(collect.collect(workdir))
    assert [one.state for one in found] == ['separated', 'not separated', 'nothing to say']
    assert found[0].p == pytest.approx(2 * found[0].difference.p)  # two are compared, not three
    text = separation.sentences(collect.collect(workdir))
    assert 'Nothing can be said: (3) num_heads=16: one seed in common with the base.' in text


def test_the_same_difference_in_every_seed_is_said_and_not_judged(tmp_path):
    shifted = tuple(value + 0.5 for value in BASE)
    workdir = finished(tmp_path, BASE, BASE, shifted, NO_DIFFERENT)
    text = separation.sentences(collect.collect(workdir))
    assert 'Nothing can be said: (1) num_heads=1: the same numbers as the base in every seed.' in text
    assert 'Nothing can be said: (2) num_heads=4: the same difference in every seed, 50.00: no spread.' in text


def test_higher_is_better_where_the_metric_says_so(tmp_path):
    workdir = finished(tmp_path, BASE, BASE, BASE, BASE, extra="METRIC = 'accuracy'")
    better = separation.sentences(collect.collect(workdir))  # the stand-in's accuracy falls with its d_k
    worse = [line for line in better if '(3)' in line]
    assert 'dev accuracy' in better[0]
    assert worse  # compared at all


def test_a_grid_of_one_cell_or_without_the_metric_has_no_text(tmp_path):
    one = finished(tmp_path / 'a', BASE, cells='[{}]')
    assert separation.sentences(collect.collect(one)) == []
    other = finished(tmp_path / 'b', BASE, BASE, BASE, BASE, extra="METRIC = 'test/loss'")
    assert separation.sentences(collect.collect(other)) == ['Nothing can be said: no finished run has test loss.']
