"""Two grids side by side: what they have in common, paired by seed, and what only one of them has."""

import json

import pytest
import scipy.stats
import standin

from jaxformer import files
from jaxformer.ablate import compare as comparing
from jaxformer.ablate import launch
from jaxformer.ablate.compare import compare
from jaxformer.errors import UserError
from jaxformer.main import main

FIRST, SECOND = (0.20, 0.25, 0.22), (0.23, 0.27, 0.26)


def rerun(directory, cells, seeds, values=(), changes=''):
    """A finished grid whose base's runs have these values of dev/per; the runs say which version wrote them."""
    directory.mkdir()
    grid, workdir = standin.make_plan(directory, cells, changes), directory / 'grid'
    launch.run(grid, workdir, seeds, standin.Standin(), say=lambda line: None)
    for seed, value in enumerate(values):
        path = workdir / 'cells' / grid.cells[0].id / f'seed-{seed}' / 'metrics.jsonl'
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[-1]['dev/per'] = value
        path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return workdir


@pytest.fixture
def grids(tmp_path):
    """Both have the base and d_k=16; each has a cell of its own; the second has a seed more and another version."""
    first = rerun(tmp_path / 'a', "[{}, {'model.d_k': 16}, {'model.d_k': 24}]", 3, FIRST)
    second = rerun(tmp_path / 'b', "[{}, {'model.d_k': 32}, {'model.d_k': 16}]", 4, (*SECOND, 0.99))
    for path in second.glob('cells/*/*/environment.json'):
        start = files.read_json(path)[-1]
        files.write_json(path, [{**start, 'versions': {'jaxformer': '0.2.0'}}])
    return first, second


def test_cells_in_common_are_paired_by_seed(grids):
    found = compare(grids)
    base, other = found.shared
    assert (base.label, other.label) == ('base', 'd_k=16')
    expected = scipy.stats.ttest_rel(SECOND, FIRST)
    low, high = expected.confidence_interval(0.95)
    difference = base.differences[1]
    assert base.differences[0] is None and difference.n == 3
    assert (difference.mean - difference.half_width, difference.mean + difference.half_width) == pytest.approx(
        (low, high)
    )
    assert base.p == (None, pytest.approx(expected.pvalue))  # the other cell is the same to the last digit: no test
    assert other.p == (None, None) and other.differences[1].mean == 0
    assert [summary['dev/per'].n for summary in base.summaries] == [3, 4]
    assert base.summaries[0]['dev/per'].mean == pytest.approx(sum(FIRST) / 3)
    assert [list(alone.values()) for alone in found.alone] == [['d_k=24'], ['d_k=32']]


def test_p_are_corrected_for_all_cells_together(tmp_path):
    """Two cells that differ: the smaller p counts twice."""
    cells = "[{}, {'model.d_k': 16}]"
    first, second = rerun(tmp_path / 'a', cells, 3, FIRST), rerun(tmp_path / 'b', cells, 3, SECOND)
    (alone,) = [one.p[1] for one in compare([first, second]).shared if one.p[1] is not None]
    book = compare([first, second])
    for seed, shift in enumerate((0.1, 0.11, 0.103)):
        path = second / 'cells' / book.shared[1].id / f'seed-{seed}' / 'metrics.jsonl'
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[-1]['dev/per'] += shift
        path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    base, other = compare([first, second]).shared
    assert other.differences[1].p < alone == pytest.approx(base.differences[1].p)
    assert other.p[1] == pytest.approx(2 * other.differences[1].p)
    assert base.p[1] == pytest.approx(max(alone, other.p[1]))


def test_the_words_and_the_plain_values(grids, capsys):
    assert main(['compare', *map(str, grids)]) == 0
    text = capsys.readouterr().out
    assert f'[1] {grids[0]}\n[2] {grids[1]}' in text
    assert 'config of the base: no field differs' in text
    assert 'versions.jaxformer  0.1.0  0.2.0' in text
    line = next(line for line in text.splitlines() if line.startswith('base '))
    expected = scipy.stats.ttest_rel(SECOND, FIRST)
    width = expected.confidence_interval().high - 0.03
    assert f'(+3.00 ± {100 * width:.2f}, n = 3, p = {expected.pvalue:.3f})' in line
    assert 'only in [1]:\n' in text and 'd_k=24' in text.partition('only in [1]:')[2].partition('only in [2]:')[0]
    assert main(['compare', *map(str, grids), '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    assert content['metric'] == 'dev/per' and content['state']['seeds'] == ['0, 1, 2', '0, 1, 2, 3']
    assert content['shared'][0]['differences'][1]['n'] == 3
    assert content['shared'][0]['summaries'][0]['dev/loss']['n'] == 3


def test_baselines_that_differ_share_what_they_share(tmp_path):
    first = rerun(tmp_path / 'a', "[{}, {'model.d_k': 16}]", 1)
    second = rerun(tmp_path / 'b', "[{'model.d_k': 16}, {'model.d_k': 24}]", 1)
    found = compare([first, second])
    assert found.config == {'model.d_k': (64, 16)}
    (shared,) = found.shared
    assert shared.label == 'd_k=16' and shared.differences[1].n == 1 and shared.p == (None, None)
    third = rerun(tmp_path / 'c', "[{'model.d_k': 99}]", 1)
    assert 'no cell in common' in comparing.as_text(compare([first, third]))
    assert [len(alone) for alone in compare([first, second, third]).alone] == [1, 1, 1]
    assert compare([first, second, third]).shared[0].summaries[2] is None


def test_a_grid_and_a_run_do_not_compare(grids, capsys):
    run = next(grids[0].glob('cells/*/seed-0'))
    assert main(['compare', str(run), str(grids[0])]) == 2
    said = capsys.readouterr().err
    assert said.count('\n') == 1 and f'{grids[0]} is a grid and {run} is none' in said
    assert main(['compare', str(run), str(next(grids[1].glob('cells/*/seed-0')))]) == 0
    with pytest.raises(UserError, match='1 grid given'):
        compare(grids[:1])
