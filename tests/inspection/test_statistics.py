"""Every number equals numpy's on the arrays as training restores them; a lost array hides no other."""

import json
import math
import pathlib
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util

from jaxformer import checkpoint
from jaxformer.decode.open import open_run
from jaxformer.inspection import statistics
from jaxformer.inspection.parameters import Row
from jaxformer.main import main


def restored(run, step):
    tree = checkpoint.restore_params(run / 'checkpoints', step)
    return {path: np.asarray(leaf, np.float64) for path, leaf in traverse_util.flatten_dict(tree, sep='/').items()}


def row(letters, shape, path='embedding'):
    return Row(path, letters, shape, 'float32', '', math.prod(shape), 0, True)


def test_numbers_of_a_run_are_those_of_numpy(trained):
    found = {row.path: entry for row, entry in statistics.of_checkpoint(trained, 60, since=30)}
    now, before = restored(trained, 60), restored(trained, 30)
    assert found.keys() == now.keys()
    for path, array in now.items():
        entry = found[path]
        assert entry.norm == pytest.approx(np.linalg.norm(array)), path
        assert (entry.least, entry.greatest, entry.non_finite) == (array.min(), array.max(), 0)
        assert entry.zeros == np.mean(array == 0)
        if np.any(before[path]):
            moved = np.linalg.norm(array - before[path]) / np.linalg.norm(before[path])
            assert entry.update == pytest.approx(moved) and moved > 0
    query, out = (f'encoder/layers/self_attention/{name}' for name in ('query', 'out'))
    layers = [np.linalg.svd(layer.reshape(48, -1), compute_uv=False)[0] for layer in now[query]]
    assert layers[0] != pytest.approx(layers[1]) and found[query].spectral == pytest.approx(max(layers))
    assert found[out].spectral == pytest.approx(max(np.linalg.norm(m.reshape(-1, 48), 2) for m in now[out]))
    assert found['embedding'].spectral == pytest.approx(np.linalg.norm(now['embedding'], 2))
    norm = 'encoder/layers/feed_forward_norm/scale'
    assert found[norm].spectral == pytest.approx(np.linalg.norm(now[norm], axis=1).max())


def test_norms_of_parts_are_those_of_their_arrays(trained):
    found = statistics.of_checkpoint(trained, 60)
    norms = statistics.as_json(found)['group_norms']
    params = open_run(trained, 60).params
    cross = jax.tree.leaves(params['decoder']['layers']['cross_attention'])
    assert norms['decoder/cross_attention'] == pytest.approx(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in cross)))
    assert norms['embedding'] == pytest.approx(np.linalg.norm(params['embedding']))
    whole = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(params)))
    assert np.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(whole)
    parts = statistics.as_text(found).split('\n\n')[1].splitlines()
    assert len(parts) == 1 + len(norms) and parts[-1].endswith(f'{list(norms.values())[-1]:.4g}')


def test_blocks_change_nothing(monkeypatch):
    array = np.random.default_rng(0).normal(size=(3, 5, 7, 11)).astype(np.float32)
    layers = row('NDHK', array.shape, 'decoder/layers/self_attention/query')
    whole = statistics.of_array(array, layers, array + 1)
    monkeypatch.setattr(statistics, 'BLOCK', 13)
    parts = statistics.of_array(array, layers, array + 1)
    assert all(getattr(parts, name) == pytest.approx(getattr(whole, name)) for name in vars(whole))


def test_scores_between_positions_are_a_matrix_per_head():
    array = np.random.default_rng(1).normal(size=(2, 3, 5, 5)).astype(np.float32)
    entry = statistics.of_array(array, row('NHMM', array.shape, 'encoder/layers/self_static/mixing'))
    assert entry.spectral == pytest.approx(max(np.linalg.norm(m, 2) for m in array.reshape(6, 5, 5)))


@pytest.mark.parametrize('shape', [(70, 30), (30, 70)])
def test_large_matrices_have_the_same_spectral_norm(shape, monkeypatch):
    matrix = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    expected = np.linalg.norm(matrix.astype(np.float64), 2)
    assert statistics.spectral_norm(matrix) == pytest.approx(expected)
    monkeypatch.setattr(statistics, 'EXACT', 0)
    assert statistics.spectral_norm(matrix) == pytest.approx(expected, rel=1e-5)
    assert statistics.spectral_norm(matrix.astype(ml_dtypes.bfloat16)) == pytest.approx(expected, rel=1e-2)
    assert statistics.spectral_norm(np.zeros(shape)) == 0


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    array = np.array([[0, -3, np.nan], [np.inf, 4, 0]], ml_dtypes.bfloat16)
    entry = statistics.of_array(array, row('VD', array.shape))
    assert (entry.norm, entry.least, entry.greatest, entry.zeros, entry.non_finite) == (5, -3, 4, 0.5, 2)
    assert math.isnan(entry.spectral)
    nothing = statistics.of_array(np.full((2, 2), np.nan), row('VD', (2, 2)))
    assert nothing.non_finite == 4 and math.isnan(nothing.norm)
    text = json.dumps(statistics.as_json([(row('VD', (2, 2)), nothing)]), allow_nan=False)
    assert json.loads(text)['parameters'][0]['statistics']['norm'] == 'nan'


def test_table_names_what_cannot_be_read(trained, tmp_path, caplog):
    run = pathlib.Path(shutil.copytree(trained, tmp_path / 'run'))
    rows = statistics.of_checkpoint(run, 60)
    table = statistics.as_text(rows).split('\n\n')[0]
    assert 'update' not in table and len(table.splitlines()) == 1 + len(rows)
    largest = max(run.glob('checkpoints/60/state/**/d/*'), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(bytes(content))
    statistics.of_checkpoint(run, 60)
    assert 'its content has changed (SHA-256 differs); numbers of it may be wrong' in caplog.text
    largest.unlink()
    left = statistics.of_checkpoint(run, 60)
    lost = [row.path for row, entry in left if entry is None]
    assert lost and [row.path for row, _ in left] == [row.path for row, _ in rows]
    assert f'{lost[0]} cannot be read' in caplog.text and statistics.as_json(left)['parameters'][0]['path']


def test_the_command(trained, capsys):
    assert main(['inspect', f'--workdir={trained}', '--step=60', '--since=30', '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(entry['statistics']['norm'] > 0 for entry in shown['parameters']) and shown['groups']
    assert main(['inspect', 'params', f'--workdir={trained}', '--stats']) == 0
    assert capsys.readouterr().out.startswith('parameter ')
    assert main(['inspect', f'--workdir={trained}', '--since=31']) == 2
    assert 'no checkpoint of step 31; the steps there are: 30, 60' in capsys.readouterr().err
