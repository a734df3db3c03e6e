"""The mean of the last checkpoints is a run, and is exact."""

import pathlib
import shutil
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxformer import checkpoint, files
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.inspection import average
from jaxformer.main import main

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'decode'))
from test_lines import LINES, run  # noqa: E402

STEPS = (1, 4, 9, 12)


@pytest.fixture
def checkpoints(tmp_path):
    """A run with four checkpoints whose parameters are those of the first, moved about."""
    workdir = run('seq2seq', tmp_path / 'run')
    params = checkpoint.restore_params(workdir / 'checkpoints', 1)
    for step in STEPS[1:]:
        moved = jax.tree.map(lambda leaf, step=step: leaf * np.float32(1 + step / 7) + np.float32(step / 50), params)
        saved = files.read_json(workdir / 'config.json')
        checkpoint.save(workdir / 'checkpoints', step, {'params': moved}, {}, saved, 9)
    return workdir


def leaves(workdir, step):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(checkpoint.restore_params(workdir / 'checkpoints', step))]


def test_the_mean_is_that_of_float64_to_the_last_bit(checkpoints, tmp_path):
    assert main(['average', f'--workdir={checkpoints}', '--last=3', f'--output={tmp_path}/mean']) == 0
    assert checkpoint.steps(tmp_path / 'mean' / 'checkpoints') == [12]
    found = leaves(tmp_path / 'mean', 12)
    parts = zip(*(leaves(checkpoints, step) for step in STEPS[1:]), strict=True)
    for leaf, part in zip(found, parts, strict=True):
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf, np.mean(np.array(part, np.float64), axis=0).astype(np.float32))
    assert files.read_json(tmp_path / 'mean' / 'average.json') == {'run': str(checkpoints), 'steps': [4, 9, 12]}


def test_one_is_itself_and_a_half_type_is_rounded_once(checkpoints, tmp_path, monkeypatch):
    average.run(checkpoints, 1, tmp_path / 'one')
    for a, b in zip(leaves(tmp_path / 'one', 12), leaves(checkpoints, 12), strict=True):
        np.testing.assert_array_equal(a, b)
    values = {1: [1.0, 3.0], 2: [1.0078125, 5.0], 3: [1.0078125, 5.0]}  # 1.0052: sums in bfloat16 end elsewhere
    as_half = lambda _, step: {'w': np.array(values[step], ml_dtypes.bfloat16)}  # noqa: E731
    monkeypatch.setattr(checkpoint, 'restore_params', as_half)
    found = average.mean('any', [1, 2, 3])['w']
    expected = np.mean(list(values.values()), axis=0).astype(ml_dtypes.bfloat16)
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == expected.tolist()


def test_it_is_a_run_like_others(checkpoints, tmp_path, capsys):
    average.run(checkpoints, 4, tmp_path / 'mean')
    assert open_run(tmp_path / 'mean').step == 12
    outputs = decode_lines(tmp_path / 'mean', None, LINES)
    assert len(outputs) == 4 and outputs[1] == '' and outputs != decode_lines(checkpoints, None, LINES)
    assert main(['inspect', f'--workdir={tmp_path}/mean']) == 0
    assert 'total' in capsys.readouterr().out


def test_a_damaged_one_is_passed_over_and_too_few_are_refused(checkpoints, tmp_path, caplog):
    shutil.rmtree(checkpoints / 'checkpoints' / '9' / 'state')
    assert average.run(checkpoints, 3, tmp_path / 'mean') == [1, 4, 12] and '/9: damaged' in caplog.text
    with pytest.raises(UserError, match='--last=4: .* has 3 whole checkpoints; .*keep_checkpoints=4'):
        average.run(checkpoints, 4, tmp_path / 'other')
    with pytest.raises(UserError, match='--output=.*mean: holds a run'):
        average.run(checkpoints, 2, tmp_path / 'mean')
    with pytest.raises(UserError, match='--last=0: at least 1'):
        average.run(checkpoints, 0, tmp_path / 'other')
    assert not (tmp_path / 'other').exists()


def test_no_training_goes_on_in_it(checkpoints, tmp_path, capsys):
    mean = tmp_path / 'mean'
    average.run(checkpoints, 2, mean)
    before = sorted(mean.glob('[!.]*'))
    for changes in ([], ['--config.train.num_steps=3'], ['--config.seed=7']):
        assert main(['train', f'--config={mean}/config.json', f'--workdir={mean}', *changes]) == 2
        said = capsys.readouterr().err
        assert f'{mean}: the mean of steps 9, 12 of {checkpoints} (average.json), in which no training goes on' in said
        assert f'--workdir={checkpoints}, or --config.train.start_from={mean} in a new directory' in said
    assert sorted(mean.glob('[!.]*')) == before


def test_parameters_alone_are_named_where_no_note_is(checkpoints):
    params = checkpoint.restore_params(checkpoints / 'checkpoints', 12)
    with pytest.raises(UserError, match='/12: parameters alone, .*config.train.start_from'):
        checkpoint.restore(checkpoints / 'checkpoints', 12, {'params': params, 'step': np.int32(12)})
    with pytest.raises(UserError, match='the config that it was saved with'):
        checkpoint.restore(checkpoints / 'checkpoints', 12, {'params': {'other': np.ones(3)}})
