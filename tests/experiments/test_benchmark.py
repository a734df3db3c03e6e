"""The benchmark must count what it says it counts, and must not compare two different models."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import benchmark
from jaxformer.data.vocab import EOS, PAD
from jaxformer.errors import RunError

ROOT = Path(__file__).parents[2]

TOY = {
    'model.d_model': 15,
    'model.num_heads': 3,
    'model.d_k': 5,
    'model.d_v': 5,
    'model.d_ff': 11,
    'model.num_layers': 2,
    'train.batch_size': 4,
    'data.name': 'reverse',
    'data.num_examples': 40,
    'data.max_length': 6,
    'data.num_symbols': 7,
    'data.buckets': ((4, 4), (7, 7)),
    'runtime.compilation_cache': '',  # leaves the one that all tests share
}


@pytest.fixture
def torch():
    torch = pytest.importorskip('torch', reason='the comparison needs PyTorch: make benchmark installs it')
    torch.set_num_threads(1)  # its threads spin while they wait, which is slow beside other tests
    torch.manual_seed(0)
    return torch


def test_count_tokens_leaves_out_padding_on_both_sides():
    batch = {'source': np.array([[5, 2, PAD], [2, PAD, PAD]]), 'target': np.array([[6, 7, 8, 2], [PAD] * 4])}
    assert benchmark.count_tokens([batch, batch]) == 2 * (3 + 4)


def test_spread_is_median_and_extremes():
    assert benchmark.spread([5.0, 1.0, 2.0]) == {'median': 2.0, 'min': 1.0, 'max': 5.0}


def test_random_batches_have_no_padding_and_do_not_repeat():
    case = benchmark.case_of('random', {'model.vocab_size': 37, 'train.batch_size': 3, 'data.buckets': ((5, 7),)})
    stream, again = case.fresh(), case.fresh()
    first, second = next(stream), next(stream)
    assert first['source'].shape == (3, 5)
    assert first['target'].shape == (3, 7)
    assert benchmark.count_tokens([first]) == 3 * (5 + 7)
    assert first['target'].max() < 37
    assert np.all(first['source'][:, -1] == EOS)
    assert not np.array_equal(first['source'], second['source'])
    np.testing.assert_array_equal(next(again)['source'], first['source'])


def test_table_gives_median_and_extremes_and_says_what_is_missing():
    some = {'median': 1234.5, 'min': 1000.0, 'max': 2000.0}
    row = {
        'case': 'g2p',
        'parameters': 4321,
        'step_ms': some,
        'tokens_per_second': some,
        'outside': {'median': 0.031, 'min': -0.002, 'max': 0.05},
        'torch_tokens_per_second': None,
        'ratio': None,
    }
    heading, line = benchmark.table([row]).splitlines()
    assert '4,321' in line
    assert '1,234 (1,000 to 2,000)' in line
    assert '3.1% (-0.2% to 5.0%)' in line
    assert line.count('not measured') == 2
    assert line.index('not measured') == heading.index('PyTorch')


def test_no_ratio_of_models_that_differ():
    ours = {'loss': 2.0, 'grad_norm': 1.0}
    benchmark.require_same(ours, {'loss': 2.0 + 1e-6, 'grad_norm': 1.0}, 1e-5)
    with pytest.raises(RunError, match='loss'):
        benchmark.require_same(ours, {'loss': 2.001, 'grad_norm': 1.0}, 1e-5)
    with pytest.raises(RunError, match='grad_norm'):
        benchmark.require_same(ours, {'loss': 2.0, 'grad_norm': float('nan')}, 1e-5)


def test_script_without_torch_prints_the_rest_and_says_how_to_install_it(tmp_path):
    # A None in sys.modules makes the import fail, as if PyTorch were not installed.
    script = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    changes = TOY | {'data.dir': tmp_path, 'model.vocab_size': 19}
    command = [sys.executable, '-c', script, str(ROOT / 'experiments' / 'benchmark.py'), '--json']
    command += ['--rounds=2', '--steps=3', '--warm_up=1', *(f'--set={path}={value}' for path, value in changes.items())]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {'PYTHONPATH': str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "pip install -e '.[benchmark]'" in done.stderr
    result = json.loads(done.stdout)
    assert [case['case'] for case in result['cases']] == ['g2p', 'random']
    for case in result['cases']:
        assert case['ratio'] is None
        assert case['tokens_per_second']['min'] > 0
        assert case['outside']['max'] < 1
    bucketed, random = result['cases']
    assert bucketed['shapes'] == 2
    assert random['shapes'] == 1
    assert random['padding'] == 0 < bucketed['padding']


@pytest.mark.parametrize('residual', ['pre', 'post'])
def test_both_sides_are_the_same_model(torch, tmp_path, residual):
    case = benchmark.case_of('g2p', TOY | {'data.dir': str(tmp_path), 'model.residual': residual})
    batches = list(itertools.islice(case.fresh(), 2))
    assert any(np.any(batch['source'] == PAD) for batch in batches)
    benchmark.check_same_model(case, batches)


def test_a_single_changed_weight_is_noticed(torch, tmp_path):
    case = benchmark.case_of('g2p', TOY | {'data.dir': str(tmp_path)})
    batch = next(case.fresh())
    cfg = benchmark.without_dropout(case.cfg)
    ours = benchmark.JaxSide(cfg, case.vocab_size)
    params = ours.params()
    params['decoder']['layers']['cross_attention']['value'] *= 1.01
    loss, _ = benchmark.torch_trainer(cfg, params).step(benchmark.torch_batch(batch))
    with pytest.raises(RunError, match='loss'):
        benchmark.require_same(ours.step(ours.put(batch)), {'loss': loss}, 1e-5)


def test_dropout_falls_in_the_same_places(torch, tmp_path):
    """High rates, all different, raise loss and gradient norm alike on both sides, on average over draws."""
    rates = {
        'model.dropout.attention': 0.3,
        'model.dropout.residual': 0.4,
        'model.dropout.feed_forward': 0.5,
        'model.dropout.embedding': 0.35,
    }
    no_update = {'optim.learning_rate': 0.0, 'optim.schedule': 'constant'}
    case = benchmark.case_of('g2p', TOY | rates | no_update | {'data.dir': str(tmp_path)})
    batch = next(case.fresh())
    ours = benchmark.JaxSide(case.cfg, case.vocab_size)
    theirs = benchmark.torch_trainer(case.cfg, ours.params())
    here = [ours.step(ours.put(batch)) for _ in range(200)]
    there = [theirs.step(benchmark.torch_batch(batch)) for _ in range(200)]
    for name, values in zip(('loss', 'grad_norm'), np.transpose(there), strict=True):
        drawn = np.array([metrics[name] for metrics in here])
        error = np.hypot(drawn.std(), values.std()) / np.sqrt(200)
        assert abs(drawn.mean() - values.mean()) < 4 * error
