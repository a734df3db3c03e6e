"""A checkpoint of any mesh opens and goes on on any other: the same examples, the same numbers but for rounding.

The way over several processes and back is that of test_processes.py.
"""

import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import small

from jaxformer.data import corpus as corpora
from jaxformer.decode.open import on_every_device, open_run
from jaxformer.inspection import parameters
from jaxformer.train import loop, program
from jaxformer.train.evaluate import Evaluator
from jaxformer.train.program import Program

SAVED = ('dp', 'fsdp', 'tp')
CHANGES = {
    **{'model.d_model': 16, 'model.num_heads': 8, 'model.d_k': 3, 'model.d_v': 5, 'model.d_ff': 24},
    **{'model.vocab_size': 24, 'data.buckets': ((9, 9),), 'train.batch_size': 8, 'eval.batch_size': 8},
    **{'optim.schedule': 'constant', 'optim.learning_rate': 0.01, 'optim.warmup_steps': 0},
    **{'optim.weight_decay': 0.1, 'optim.clip_norm': 0.5, 'optim.epsilon': 1e-4, 'train.num_steps': 9},
}


class NoDecoder(small.NoEvaluator):
    """Takes the place of the decoder: says nothing."""

    def examples(self, params, split):
        return {}

    def totals(self, examples):
        return {}


def dev_loss(workdir):
    """As any command that opens the run finds it, with all devices there are."""
    run = open_run(workdir)
    mesh, params = on_every_device(run)
    split = corpora.load(run.cfg.data).split('dev')
    return Evaluator(run.cfg, run.model, mesh).split_losses(params, split)['loss']


def train(workdir, devices, strategy, steps):
    cfg = small.make(CHANGES | {'mesh.strategy': strategy, 'train.num_steps': steps})
    return loop.train(cfg, workdir, Program(cfg, jax.devices()[:devices]))


def go_on(root, source, devices, strategy):
    """A copy of a run goes on to step 14; its name."""
    name = f'{source}-on-{devices}-{strategy or "one"}'
    shutil.copytree(root / source, root / name)
    train(root / name, devices, strategy, 14)
    return name


def main(root, devices):
    """Run with eight devices: saves. Run with two: opens what was saved there, and goes on."""
    root = Path(root)
    program.Decoder = NoDecoder
    if devices == '8':
        train(root / 'straight', 1, '', 14)
        for strategy in SAVED:
            train(root / strategy, 8, strategy, 9)
    else:
        go_on(root, 'tp', 2, 'fsdp')
        print(json.dumps({name: dev_loss(root / name) for name in SAVED}))


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """(the directory of all runs, the scores of the saved ones on two devices)."""
    root = tmp_path_factory.mktemp('anywhere')
    for devices in (8, 2):
        result = small.run_process(__file__, str(root), str(devices), devices=devices)
        assert result.returncode == 0, result.stderr[-3000:]
    return root, json.loads(result.stdout.splitlines()[-1])


def loss(workdir, step):
    return small.lines(workdir, 'dev/loss')[step]


@pytest.mark.parametrize('strategy', SAVED)
def test_a_checkpoint_of_eight_devices_is_read_on_one_and_on_two(saved, strategy):
    root, on_two = saved
    cfg = small.make(CHANGES)
    expected = [(row.path, row.shape) for row in parameters.from_config(cfg, 24)]
    assert [(row.path, row.shape) for row in parameters.from_checkpoint(root / strategy)] == expected
    assert dev_loss(root / strategy) == pytest.approx(loss(root / strategy, 9), rel=1e-6)
    assert on_two[strategy] == pytest.approx(loss(root / strategy, 9), rel=1e-6)


def assert_as_if_never_stopped(root, name):
    straight = root / 'straight'
    assert small.status(root / name)['step'] == 14
    assert small.lines(root / name, 'example_ids') == small.lines(straight, 'example_ids')
    found, expected = small.lines(root / name, 'train/loss'), small.lines(straight, 'train/loss')
    assert sorted(found) == sorted(expected) == list(range(1, 15))
    np.testing.assert_allclose([found[step] for step in found], [expected[step] for step in found], rtol=1e-5)
    assert loss(root / name, 14) == pytest.approx(loss(straight, 14), rel=1e-5)
    assert loss(root / name, 9) != pytest.approx(loss(straight, 14), rel=1e-3)


def test_it_goes_on_on_one_device_and_on_two(saved, monkeypatch):
    monkeypatch.setattr(program, 'Decoder', NoDecoder)
    root, _ = saved
    for name in (go_on(root, 'fsdp', 1, ''), 'tp-on-2-fsdp'):
        assert_as_if_never_stopped(root, name)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
