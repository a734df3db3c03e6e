"""Every grid file resolves, says what it asks, covers what it claims to, and is as equal in size as it says."""

import re
from pathlib import Path

import pytest

from jaxformer import config
from jaxformer.ablate import count, plan
from jaxformer.choices import CHOICES

EXPERIMENTS = Path(__file__).parents[2] / 'experiments'
GRIDS = sorted(path.stem for path in EXPERIMENTS.glob('*.py') if re.search(r'^(def )?grid\b', path.read_text(), re.M))
EQUAL = ('feedforward', 'heads', 'mixers', 'norms', 'patterns')
SYMBOLS = 71  # instead of those of the data, which need not be prepared


def resolved(name):
    changes = {} if name == 'table3' else {'model.vocab_size': SYMBOLS}
    return plan.resolve(plan.read(EXPERIMENTS / f'{name}.py', changes))


def values(grid, field):
    return [getattr(cell.config.model, field) for cell in grid.cells]


@pytest.mark.parametrize('name', GRIDS)
def test_a_grid_resolves_and_says_what_it_asks(name):
    grid = resolved(name)
    assert len(grid.cells) == len(grid.grid.cells) > 2
    assert not grid.warnings
    assert not any(cell.further for cell in grid.cells)
    assert all(word in grid.grid.docstring for word in ('Question:', 'Command:', 'Result:'))
    assert f'--grid=experiments/{name}.py --workdir=runs/{name} --seeds=3' in grid.grid.docstring


@pytest.mark.parametrize('name', EQUAL)
def test_cells_are_as_large_as_the_baseline(name):
    sizes = [cell.parameters for cell in resolved(name).cells]
    assert max(abs(size / sizes[0] - 1) for size in sizes) < 0.01


def test_all_mixers_are_compared_linformer_in_the_encoder_only():
    grid = resolved('mixers')
    pairs = [(cell.config.model.encoder_mixer, cell.config.model.decoder_mixer) for cell in grid.cells]
    assert pairs[0] == ('attention', 'attention')
    assert ('linformer', 'attention') in pairs
    assert sorted(encoder for encoder, _ in pairs) == sorted(CHOICES['model.mixer'])
    assert all(encoder == decoder for encoder, decoder in pairs if encoder != 'linformer')
    widths = {
        cell.config.model.encoder_mixer: {field for field in cell.derived if not field.endswith('coder_mixer')}
        for cell in grid.cells
    }
    assert widths['lstm'] == {'model.recurrent.width'}
    assert widths['static'] == {'model.d_ff'}
    # Without the width worked out, an LSTM would be half as large again.
    loose = plan.parameter_count(
        plan.resolve(plan.read(EXPERIMENTS / 'residual.py', {'model.vocab_size': SYMBOLS, 'model.mixer': 'lstm'}))
        .cells[0]
        .config
    )
    assert loose > 1.2 * grid.cells[0].parameters


def test_all_patterns_and_all_feed_forwards_are_compared():
    patterns = resolved('patterns')
    attention = [cell.config.model.attention for cell in patterns.cells]
    assert [(one.pattern, one.window) for one in attention[:4]] == [('full', 4), *(('local', k) for k in (1, 2, 4))]
    assert sorted({one.pattern for one in attention}) == sorted(CHOICES['model.attention.pattern'])
    feed_forwards = resolved('feedforward')
    assert values(feed_forwards, 'feed_forward') == list(CHOICES['model.feed_forward'])
    assert values(feed_forwards, 'd_ff')[3:5] == [256, 256]  # three matrices instead of two: 2/3 of 384


def test_norms_and_orders_are_crossed():
    grid = resolved('norms')
    pairs = list(zip(values(grid, 'norm'), values(grid, 'residual'), strict=True))
    assert pairs[0] == ('layernorm', 'pre')
    crossed = {(norm, order) for norm in ('layernorm', 'rmsnorm') for order in CHOICES['model.residual']}
    assert set(pairs) == {pair for pair in crossed if pair[1] != 'none'} | {('none', 'pre')}


def test_the_list_of_experiments_is_whole():
    text = (EXPERIMENTS / 'README.md').read_text()
    helpers = {'__init__', 'hlo', 'torch_transformer'}
    scripts = {path.stem for path in EXPERIMENTS.glob('*.py')} - helpers
    assert {name for name in scripts if f'| `{name}.py` |' in text} == scripts
    for name in GRIDS:
        cells = len(plan.read(EXPERIMENTS / f'{name}.py').cells)
        row = next(line for line in text.splitlines() if line.startswith(f'| `{name}.py` |'))
        assert row.split('|')[3].strip() == str(cells)


def test_a_student_has_at_most_half_of_its_teacher_and_learns_from_one_thing_alone():
    """The labels, the distributions, or the outputs, which lie in the directory of whichever teacher is named."""
    changes = {'model.vocab_size': SYMBOLS, 'train.teacher': 'runs/other@7'}
    grid = plan.resolve(plan.read(EXPERIMENTS / 'distillation.py', changes))
    teacher = config.load(EXPERIMENTS.parent / 'configs' / 'g2p.py')
    config.override(teacher, {'model.vocab_size': SYMBOLS})
    whole = count.parameter_count(config.resolve(teacher))
    assert all(0.45 < cell.parameters / whole <= 0.5 for cell in grid.cells)
    learnt = [(cell.config.train.taught, cell.config.data.targets) for cell in grid.cells]
    assert learnt == [(False, ''), (True, ''), (False, 'runs/other/train.txt')]
