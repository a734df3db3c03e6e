"""What resampling the examples of the evaluation says about a grid, and of which cells it says nothing."""

import json

import numpy as np
import pytest
import scipy.stats
import standin

from jaxformer.ablate import collect, examples, launch
from jaxformer.train import per_example

CELLS = "product({'model.num_heads': (8, 1, 4)})"
EXAMPLES = 50


def arrays(cell, seed):
    """Errors of 50 examples: cell 1 has half as many, cell 2 others in other places; seeds differ a little."""
    rng = np.random.default_rng(7)
    symbols = rng.integers(2, 9, EXAMPLES)
    errors = rng.binomial(symbols, 0.4)
    errors = {0: errors, 1: errors // 2, 2: np.roll(errors, 1)}[cell]
    errors = np.maximum(errors - (np.arange(EXAMPLES) % 10 == seed), 0)
    return {'example_id': np.arange(3, EXAMPLES + 3), 'errors': errors, 'symbols': symbols, 'wrong': errors > 0}


def rate(found):
    return float(found['errors'].sum() / found['symbols'].sum())


def recorded(run, name, value):
    """Puts another value into the last line of a run's metrics."""
    path = run / 'metrics.jsonl'
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1][name] = value
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))


@pytest.fixture
def grid(tmp_path):
    """A finished grid with results per example; {(cell, seed): directory}."""
    made, workdir = standin.make_plan(tmp_path, CELLS), tmp_path / 'grid'
    launch.run(made, workdir, 2, standin.Standin(), say=lambda line: None)
    runs = {
        (i, seed): workdir / 'cells' / cell.id / f'seed-{seed}' for i, cell in enumerate(made.cells) for seed in (0, 1)
    }
    for place, run in runs.items():
        recorded(run, 'dev/per', rate(arrays(*place)))
        per_example.write(run, 'dev', arrays(*place))
    return workdir, runs


def by_hand(cells):
    """The ends of scipy's interval of the mean over two seeds, or of the difference of two cells."""
    given = [arrays(cell, seed)[column] for cell in cells for seed in (0, 1) for column in ('errors', 'symbols')]

    def statistic(*sums, axis):
        rates = [a.sum(axis) / b.sum(axis) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        mean = (rates[0] + rates[1]) / 2
        return mean if len(cells) == 1 else mean - (rates[2] + rates[3]) / 2

    found = scipy.stats.bootstrap(
        given,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=2000,
        method='percentile',
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return found.low, found.high


def test_intervals_agree_with_scipy_called_by_hand(grid):
    workdir, _ = grid
    measured = examples.measure(collect.collect(workdir))
    assert measured.examples == EXAMPLES and measured.cells[0].difference is None
    for cell in measured.cells:
        assert cell.value.value == pytest.approx(np.mean([rate(arrays(cell.index, seed)) for seed in (0, 1)]))
        assert (cell.value.low, cell.value.high) == pytest.approx(by_hand([cell.index]), rel=1e-9)
        if cell.index:
            assert cell.difference.value == pytest.approx(cell.value.value - measured.cells[0].value.value)
            assert (cell.difference.low, cell.difference.high) == pytest.approx(by_hand([cell.index, 0]), rel=1e-9)


def test_the_words(grid):
    workdir, _ = grid
    results = collect.collect(workdir)
    measured = examples.measure(results)
    head, base, half, other = examples.rows(results, measured)
    assert head == ('row', 'dev PER %', 'difference %', 'on these examples')
    value, found = measured.cells[1].value, measured.cells[1].difference
    assert half[1] == f'{100 * value.value:.2f} [{100 * value.low:.2f}, {100 * value.high:.2f}]'
    assert half[2] == f'{100 * found.value:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]'
    assert (base[0], base[2:]) == ('base', ('', ''))
    assert (half[3], other[3]) == ('better', 'better or worse')
    (text,) = examples.sentences(results, measured)
    assert '50 examples' in text and 'Another question than that of the seeds' in text


def test_cells_of_which_nothing_can_be_said_have_a_reason(grid):
    workdir, runs = grid
    (runs[1, 1] / 'examples' / 'dev.npz').unlink()
    recorded(runs[2, 0], 'dev/per', 1.01 * rate(arrays(2, 0)))
    results = collect.collect(workdir)
    measured = examples.measure(results)
    assert [cell.value is None for cell in measured.cells] == [False, True, True]
    assert measured.cells[1].reason == 'seed 1 has written no results per example'
    assert measured.cells[2].reason == 'the results per example of seed 0 do not come to its dev PER'
    assert 'Nothing can be said: (1) num_heads=1: seed 1 has written no' in examples.sentences(results, measured)[1]
    (runs[1, 1] / 'examples' / 'dev.npz').write_bytes(b'torn')
    per_example.write(runs[2, 0], 'dev', {**arrays(2, 0), 'example_id': np.arange(EXAMPLES)})
    recorded(runs[2, 0], 'dev/per', rate(arrays(2, 0)))
    reasons = [cell.reason for cell in examples.measure(collect.collect(workdir)).cells]
    assert 'dev.npz: not results per example' in reasons[1]
    assert reasons[2] == 'evaluated on other examples than the first cell'


def test_runs_without_results_per_example_leave_the_report_as_it_was(grid):
    workdir, runs = grid
    for run in runs.values():
        (run / 'examples' / 'dev.npz').unlink()
    results = collect.collect(workdir)
    measured = examples.measure(results)
    assert measured.examples == 0 and not examples.rows(results, measured) and not examples.sentences(results, measured)


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('loss', lambda found: found['nll'].sum() / found['tokens'].sum()),
        ('perplexity', lambda found: np.exp(found['nll'].sum() / found['tokens'].sum())),
        ('accuracy', lambda found: found['correct'].sum() / found['tokens'].sum()),
        ('wer', lambda found: np.mean(found['wrong'])),
        ('bits_per_byte', lambda found: found['nll'].sum() / np.log(2) / 777),
    ],
)
def test_every_metric_is_made_of_what_the_runs_write(tmp_path, name, value):
    made, workdir = standin.make_plan(tmp_path, CELLS, f'METRIC = {name!r}'), tmp_path / 'grid'
    launch.run(made, workdir, 1, standin.Standin(), say=lambda line: None)
    for index, cell in enumerate(made.cells):
        rng = np.random.default_rng(index)
        tokens = np.random.default_rng(9).integers(1, 9, EXAMPLES).astype(float)
        found = {'nll': rng.exponential(2.0, EXAMPLES) * tokens, 'correct': rng.binomial(tokens.astype(int), 0.7)}
        found |= {'example_id': np.arange(EXAMPLES), 'tokens': tokens, 'wrong': rng.random(EXAMPLES) < 0.3}
        run = workdir / 'cells' / cell.id / 'seed-0'
        per_example.write(run, 'dev', found)
        recorded(run, f'dev/{name}', float(value(found)))
        if not index:
            first = float(value(found))
    measured = examples.measure(collect.collect(workdir), resamples=100)
    assert all(cell.value is not None for cell in measured.cells), measured
    assert measured.cells[0].value.value == pytest.approx(first)
    assert measured.cells[0].value.low < first < measured.cells[0].value.high
