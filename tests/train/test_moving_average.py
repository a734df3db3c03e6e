"""A moving average of the parameters, by which a run is judged."""

import jax
import numpy as np
import optax
import pytest
import small

from jaxformer import checkpoint, optim
from jaxformer.train import loop, score

CHANGES = {**small.QUICK, 'train.ema_decay': 0.6, 'train.num_steps': 8, 'train.checkpoint_every': 1}


@pytest.fixture(scope='module')
def averaged(tmp_path_factory):
    workdir = tmp_path_factory.mktemp('average') / 'run'
    metrics = loop.train(small.make({**CHANGES, 'train.keep_checkpoints': 9}), workdir)
    return workdir, metrics


def of(state, part):
    return {name.removeprefix(part): array for name, array in state.items() if name.startswith(part)}


def test_it_is_the_recurrence_over_the_parameters_of_the_checkpoints(averaged):
    workdir, _ = averaged
    states = [small.state(workdir, step) for step in range(1, 9)]
    place = next(name for name in states[0] if '/average/' in name).split('average/')[0] + 'average/'
    expected = of(states[0], place)
    for count, state in enumerate(states[1:], start=2):
        d = min(0.6, count / (9 + count))
        params = of(state, 'params/')
        expected = {name: d * mean + (1 - d) * params[name] for name, mean in expected.items()}
    found = of(states[-1], place)
    assert found.keys() == of(states[-1], 'params/').keys()
    for name, mean in expected.items():
        np.testing.assert_allclose(found[name], mean, rtol=1e-5, atol=1e-7)
    assert max(np.abs(found[name] - of(states[-1], 'params/')[name]).max() for name in found) > 1e-3


def test_its_first_value_is_that_of_the_formula():
    transform = optim.moving_average(0.999)
    params, updates = {'w': np.array([2.0, 4.0], np.float32)}, {'w': np.array([1.0, -1.0], np.float32)}
    kept, state = transform.update(updates, transform.init(params), params)
    assert kept is updates
    np.testing.assert_allclose(state.average['w'], 0.1 * params['w'] + 0.9 * (params['w'] + updates['w']), rtol=1e-6)
    small_params = jax.tree.map(lambda leaf: leaf.astype('bfloat16'), params)
    assert transform.init(small_params).average['w'].dtype == np.float32
    judged = optim.judged(small_params, (optax.EmptyState(), transform.init(small_params)))
    assert judged['w'].dtype == 'bfloat16'


def test_the_run_is_judged_by_it_in_training_and_afterwards(averaged, tmp_path):
    workdir, metrics = averaged
    assert score.score(workdir)['dev/loss'] == pytest.approx(metrics['dev/loss'], rel=1e-6)
    plain = loop.train(small.make({**CHANGES, 'train.ema_decay': 0.0}), tmp_path / 'plain')
    assert small.lines(tmp_path / 'plain', 'train/loss') == small.lines(workdir, 'train/loss')  # no update changes
    assert plain['dev/loss'] != pytest.approx(metrics['dev/loss'], rel=1e-4)


def test_who_begins_with_it_begins_with_the_average(averaged, tmp_path):
    workdir, metrics = averaged
    begins = small.make(
        {**CHANGES, 'train.start_from': str(workdir), 'train.num_steps': 1, 'optim.learning_rate': 1e-9}
    )
    found = loop.train(begins, tmp_path / 'next')
    assert found['dev/loss'] == pytest.approx(metrics['dev/loss'], rel=1e-4)
    assert checkpoint.newest_whole(tmp_path / 'next' / 'checkpoints') == 1
