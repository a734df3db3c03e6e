"""train.nan_policy=restore: back to the newest checkpoint and past the batches behind it; train.spike_factor."""

import shutil
import signal

import jax.numpy as jnp
import numpy as np
import pytest
import small

from jaxformer import checkpoint, config, files, sharding
from jaxformer.errors import RunError, UserError
from jaxformer.train import loop, member, writer
from jaxformer.train import step as steps

RESTORE = {'train.nan_policy': 'restore'}


@pytest.fixture
def poison(monkeypatch):
    """`poison(first, last, factor)`: what the loss is multiplied by on these batches, counted from 1 on."""
    make, loss_fn = member.pipeline.train_iterator, steps.loss_fn
    bad = {}

    class Poisoned:
        def __init__(self, *args):
            self._iterator = make(*args)

        def __next__(self):
            batch = next(self._iterator)
            factor = bad.get(self._iterator.get_state()['next_index'], 1.0)
            return {**batch, 'factor': np.full(len(batch['example_id']), factor, np.float32)}

        def __getattr__(self, name):
            return getattr(self._iterator, name)

    def poisoned_loss(params, batch, *args):
        loss, tokens = loss_fn(params, batch, *args)
        return loss * jnp.max(batch['factor']), tokens

    monkeypatch.setitem(sharding.BATCH, 'factor', sharding.BATCH['example_id'])
    monkeypatch.setattr(member.pipeline, 'train_iterator', Poisoned)
    monkeypatch.setattr(steps, 'loss_fn', poisoned_loss)
    return lambda first, last, factor=np.inf: bad.update(dict.fromkeys(range(first, last + 1), factor))


@pytest.fixture
def expected(tmp_path, quick, poison):
    """What going back must amount to: a run whose checkpoint of step 10 says that 12 batches were taken."""
    workdir = tmp_path / 'expected'
    cfg = quick(RESTORE)
    loop.train(quick(RESTORE | {'train.num_steps': 10}), workdir)
    program = loop.Program(cfg)
    state, data = checkpoint.restore(workdir / files.CHECKPOINTS, 10, program.target)
    assert data == {'next_index': 10}
    shutil.rmtree(workdir / files.CHECKPOINTS / '10')
    checkpoint.save(workdir / files.CHECKPOINTS, 10, state, {'next_index': 12}, config.to_dict(cfg), 3)
    loop.train(cfg, workdir)
    return workdir


def numbers(workdir):
    return {name: values for name, values in small.series(workdir).items() if name != 'restored'}


def test_back_to_the_checkpoint_and_past_the_batch_whatever_stops_the_run_then(
    tmp_path, quick, quick_straight, poison, expected, at_step, caplog
):
    poison(12, 12)
    for name, stop in (('straight', None), ('stopped', 17), ('killed', 14)):
        workdir = tmp_path / name
        if stop == 17:
            at_step(stop, lambda: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(loop.Preempted, match='step 15 is saved'):
                loop.train(quick(RESTORE), workdir)
            assert small.state(workdir)['data/next_index'] == 17
        if stop == 14:  # nothing is saved since it went back; it meets the same numbers again
            at_step(stop, lambda: [][0])
            with pytest.raises(IndexError):
                loop.train(quick(RESTORE), workdir)
            assert small.checkpoints(workdir) == [5, 10]
        loop.train(quick(RESTORE), workdir)
        small.assert_bit_equal(small.state(workdir), small.state(expected))
        assert numbers(workdir) == numbers(expected)
        assert small.lines(workdir, 'restored') == {11: [{'step': 12, 'back_to': 10, 'loss': 'inf'}]}
    assert small.state(expected)['data/next_index'] == 22 and small.state(expected)['skipped'] == 0
    before, after = small.lines(quick_straight, 'example_ids'), small.lines(expected, 'example_ids')
    assert [after[step] for step in range(11, 19)] == [before[step + 2] for step in range(11, 19)]
    assert 'step 12: loss inf' in caplog.text and 'back to step 10, and past 2 batches' in caplog.text


def test_before_the_first_checkpoint_it_goes_back_to_the_start(tmp_path, quick, quick_straight, poison):
    poison(2, 3)
    cfg = quick(RESTORE | {'train.num_steps': 3, 'train.log_every': 100})
    loop.train(cfg, tmp_path / 'run')
    ids = small.lines(quick_straight, 'example_ids')
    assert small.lines(tmp_path / 'run', 'example_ids') == {1: ids[4], 3: ids[6]}
    found = small.lines(tmp_path / 'run', 'restored')[1]
    assert [back['step'] for back in found] == [2, 1] and {back['back_to'] for back in found} == {0}


def test_it_does_not_go_back_for_ever(tmp_path, quick, poison):
    poison(12, 99)
    for _ in range(2):  # and not once more when it is started again
        with pytest.raises(RunError, match='step 11: .*3 failures in a row without a new checkpoint .*nan_limit'):
            loop.train(quick(RESTORE | {'train.nan_limit': 3}), tmp_path / 'run')
        assert small.checkpoints(tmp_path / 'run') == [5, 10]
        assert small.status(tmp_path / 'run')['status'] == 'failed'


def test_failures_with_checkpoints_between_them_do_not_add_up(tmp_path, quick, poison):
    for batch in (2, 9, 16):
        poison(batch, batch)
    loop.train(quick(RESTORE | {'train.nan_limit': 2}), tmp_path / 'run')
    assert list(small.lines(tmp_path / 'run', 'restored')) == [1, 6, 11]


def test_a_loss_far_above_its_median_is_on_record(tmp_path, quick, poison, at_step, caplog):
    poison(14, 14, 50.0)
    poison(5, 5, 50.0)  # too early to judge
    spiky = {'train.spike_factor': 10.0, 'train.log_every': 100}
    loop.train(quick(spiky), tmp_path / 'run')
    spikes = small.lines(tmp_path / 'run', 'train/spike')
    assert list(spikes) == [14] and 30 < spikes[14] < 70
    assert list(small.lines(tmp_path / 'run', 'train/loss')) == [14, 20] and 'step 14: loss' in caplog.text
    at_step(12, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(loop.Preempted):
        loop.train(quick(spiky), tmp_path / 'stopped')
    loop.train(quick(spiky), tmp_path / 'stopped')
    assert small.series(tmp_path / 'stopped') == small.series(tmp_path / 'run')
    loop.train(quick({'train.log_every': 100}), tmp_path / 'off')
    assert not any('train/spike' in line for line in writer.read_metrics(tmp_path / 'off' / writer.METRICS))
    small.assert_bit_equal(small.state(tmp_path / 'off'), small.state(tmp_path / 'run'))


def test_a_factor_that_most_losses_exceed_is_refused(quick):
    with pytest.raises(UserError, match='train.spike_factor'):
        quick({'train.spike_factor': 0.5})
