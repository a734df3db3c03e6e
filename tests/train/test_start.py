"""A run that begins with the parameters of another: which it takes, which stay fresh, and what it refuses."""

import shutil

import jax
import numpy as np
import pytest
import small

from jaxformer import checkpoint, files
from jaxformer.errors import UserError
from jaxformer.train import loop


def params_of(workdir, step):
    return jax.tree.map(np.asarray, checkpoint.restore_params(workdir / 'checkpoints', step))


@pytest.fixture(scope='module')
def first(tmp_path_factory):
    workdir = tmp_path_factory.mktemp('first') / 'run'
    loop.train(small.make({'train.num_steps': 3}), workdir)
    return workdir


def test_the_first_update_is_made_on_what_was_there(first, tmp_path):
    cfg = small.make({'train.num_steps': 1, 'train.start_from': str(first), 'optim.learning_rate': 0.0, 'seed': 5})
    loop.train(cfg, tmp_path / 'run')
    jax.tree.map(np.testing.assert_array_equal, params_of(tmp_path / 'run', 1), params_of(first, 3))


def test_what_the_other_run_lacks_stays_fresh_and_is_named(first, tmp_path, caplog):
    cfg = small.make(
        {
            'train.num_steps': 1,
            'train.start_from': str(first),
            'optim.learning_rate': 0.0,
            'model.embedding.softmax': 'untied',
        }
    )
    loop.train(cfg, tmp_path / 'run')
    assert 'has no softmax: fresh values' in caplog.text
    ours = params_of(tmp_path / 'run', 1)
    softmax = ours.pop('softmax')
    assert np.std(softmax) > 0
    jax.tree.map(np.testing.assert_array_equal, ours, params_of(first, 3))


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'train.start_from': '/nowhere'}, r'start_from=/nowhere: /nowhere: no such directory'),
        ({'model.d_ff': 13}, r'parameter decoder/layers/feed_forward/inner is .* there and .* here; use the model'),
        ({'data.num_symbols': 12}, r'its symbols \(vocab.json\) are not those of data.name'),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(first, tmp_path, changes, message):
    cfg = small.make({'train.num_steps': 1, 'train.start_from': str(first)} | changes)
    with pytest.raises(UserError, match=message):
        loop.train(cfg, tmp_path / 'run')
    assert not (tmp_path / 'run' / files.CONFIG).exists()


def test_a_directory_that_cannot_be_made_leaves_none_above_it(tmp_path):
    with pytest.raises(UserError, match='--workdir=.*File name too long; choose a directory'):
        loop.train(small.make({'train.num_steps': 1}), tmp_path / 'new' / ('n' * 300))
    assert not list(tmp_path.iterdir())


def test_a_run_killed_before_it_saved_begins_again_with_the_same_step(first, tmp_path):
    cfg = small.make({'train.num_steps': 1, 'train.start_from': str(first), 'optim.learning_rate': 0.0})
    (tmp_path / 'run').mkdir()
    loop.train(cfg, tmp_path / 'once')
    written = files.read_json(tmp_path / 'once' / 'start_from.json')
    assert written == {'run': str(first), 'step': 3}
    files.write_json(tmp_path / 'run' / 'start_from.json', written | {'step': 2})
    with pytest.raises(UserError, match='no checkpoint of step 2; the steps there are: 3'):
        loop.train(cfg, tmp_path / 'run')


def test_fields_that_change_what_a_parameter_means_are_named(first, tmp_path, caplog):
    cfg = small.make({'train.num_steps': 1, 'train.start_from': str(first), 'model.embedding.scale': 'none'})
    loop.train(cfg, tmp_path / 'run')
    assert 'trained with another model.embedding.scale' in caplog.text


def test_a_run_without_its_symbols_is_one_line(first, tmp_path):
    shutil.copytree(first, tmp_path / 'other')
    (tmp_path / 'other' / 'vocab.json').unlink()
    with pytest.raises(UserError, match=r'start_from=.*vocab.json'):
        loop.train(small.make({'train.start_from': str(tmp_path / 'other')}), tmp_path / 'run')
