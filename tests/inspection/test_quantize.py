"""`export --quantize=int8`: a run with weights in a quarter of the bytes, which is decoded and judged as any other."""

import dataclasses
import json
import pathlib
import sys

import flax
import jax
import numpy as np
import pytest
from etils import epath

from jaxformer import checkpoint, files
from jaxformer.data import corpus
from jaxformer.decode import int8
from jaxformer.decode.lines import Writer, decode_lines
from jaxformer.decode.open import open_run
from jaxformer.errors import RunError
from jaxformer.inspection import parameters, statistics
from jaxformer.main import main

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'decode'))
from test_lines import LINES, RUNS, run  # noqa: E402


@pytest.fixture(params=RUNS)
def runs(request, tmp_path):
    workdir = run(request.param, tmp_path / 'run')
    assert main(['export', '--quantize=int8', f'--workdir={workdir}', f'--output={tmp_path}/int8']) == 0
    return workdir, tmp_path / 'int8'


def test_outputs_are_those_of_the_rounded_weights(runs, tmp_path):
    """To the symbol those of a run that holds them as float32; in memory they are int8."""
    workdir, rounded = runs
    cfg = files.read_json(workdir / 'config.json')
    numbers = open_run(rounded).params
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(numbers))
    checkpoint.save(workdir / 'checkpoints', 2, {'params': numbers}, {}, cfg, 2)
    for changes in ({}, {'eval.search': 'beam'}):
        assert decode_lines(rounded, None, LINES, changes) == decode_lines(workdir, 2, LINES, changes)
    assert len(set(decode_lines(rounded, None, LINES))) > 2
    held = jax.tree.leaves(Writer(rounded)._params)
    assert sum(leaf.nbytes for leaf in held if leaf.dtype == np.int8) > sum(leaf.size for leaf in held) / 2


def test_it_is_inspected_and_given_back_as_numbers(runs, tmp_path, capsys):
    workdir, rounded = runs
    assert main(['average', f'--workdir={rounded}', '--last=1', f'--output={tmp_path}/mean']) == 0
    before, after = (jax.tree.leaves(open_run(path).params) for path in (rounded, tmp_path / 'mean'))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    originals = checkpoint.restore_params(workdir / 'checkpoints', 1)
    assert any(np.any(a != b) for a, b in zip(before, jax.tree.leaves(originals), strict=True))


def test_the_table_has_the_rows_of_the_run_and_the_bytes_of_codes_and_scales(runs):
    workdir, rounded = runs
    before, rows = parameters.from_checkpoint(workdir), parameters.from_checkpoint(rounded)
    same = [dataclasses.replace(row, dtype='', bytes=0) for row in rows]
    assert same == [dataclasses.replace(row, dtype='', bytes=0) for row in before]
    there = checkpoint.metadata(rounded / 'checkpoints', 1)
    sizes = {name[len('params/') :]: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in there.items()}
    for row in rows:
        parts = [f'{row.path}/int8', f'{row.path}/scale'] if f'{row.path}/int8' in sizes else [row.path]
        assert (row.dtype, row.bytes) == (('float32', 'int8')[len(parts) - 1], sum(sizes[part] for part in parts))
    assert {row.dtype for row in rows} == {'float32', 'int8'} and sum(row.bytes for row in rows) == sum(sizes.values())


def test_statistics_and_distances_are_those_of_the_numbers(runs, capsys):
    workdir, rounded = runs
    first, numbers = (flax.traverse_util.flatten_dict(open_run(path).params, sep='/') for path in runs)
    for row, found in statistics.of_checkpoint(rounded):
        array = np.asarray(numbers[row.path], np.float64)
        assert found.norm == pytest.approx(np.linalg.norm(array)) and found.greatest == pytest.approx(array.max())
    capsys.readouterr()
    assert main(['compare', f'{workdir}@1', f'{rounded}@1', '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    assert not shown['added'] and not shown['gone'] and not shown['reshaped'] and shown['apart'].keys() == first.keys()
    for path, entry in shown['apart'].items():
        a, b = (np.asarray(tree[path], np.float64) for tree in (first, numbers))
        assert entry['distance'] == pytest.approx(np.linalg.norm(b - a)), path
    assert 0 < shown['whole']['relative'] < 0.02


def test_a_scale_that_cannot_be_read_is_named(tmp_path, caplog):
    path = tmp_path / 'run'
    whole = {'int8': np.ones((3, 5), np.int8), 'scale': np.ones((3, 1), np.float32)}
    checkpoint.save(path / 'checkpoints', 1, {'params': {'w': whole, 'scale': np.ones(3)}}, {}, {}, 1)
    found = parameters.of_checkpoint(epath.Path(path / 'checkpoints' / '1'))
    assert found.keys() == {'w', 'scale'}
    lost = dataclasses.replace(found['w'], scale=dataclasses.replace(found['w'].scale, dtype=None, spec=None))
    with pytest.raises(RunError, match='w/scale cannot be read'):
        parameters.read(path, 'w', lost)
    assert [row.bytes for row in parameters.rows({'w': lost})] == [15]


def test_no_training_goes_on_in_it(runs, capsys):
    workdir, rounded = runs
    before = sorted(rounded.glob('[!.]*'))
    command = ['train', f'--config={rounded}/config.json', f'--workdir={rounded}']
    for changes in ([], ['--config.train.num_steps=3'], ['--config.seed=7']):
        assert main([*command, *changes]) == 2
        said = capsys.readouterr().err
        assert f'{rounded}: step 1 of {workdir} in int8 (int8.json), in which no training goes on' in said
        assert f'--workdir={workdir}, or --config.train.start_from={workdir} in a new directory' in said
    assert sorted(rounded.glob('[!.]*')) == before
    (rounded / 'int8.json').write_text('[]')
    assert main(command) == 2 and f'{rounded}/int8.json: not what' in capsys.readouterr().err


def test_mistakes_are_named(runs, tmp_path, capsys):
    workdir, rounded = runs
    for flags, said in (
        ([f'--workdir={workdir}', f'--output={rounded}', '--quantize=int8'], 'int8: holds a run'),
        ([f'--workdir={rounded}', f'--output={tmp_path}/x', '--quantize=int8'], 'are int8 already'),
        ([f'--workdir={workdir}', f'--output={tmp_path}/x', '--quantize=int4'], '--quantize=int4: choose one of int8'),
    ):
        assert main(['export', *flags]) == 2 and said in capsys.readouterr().err
        assert not (tmp_path / 'x').exists()


def test_what_it_costs_is_said(tmp_path, monkeypatch, capsys):
    """Bytes of every array, and the metrics of both runs on a split."""
    fields = {'data.num_examples': 60, 'data.buckets': ((13, 13),), 'model.d_model': 48, 'model.d_ff': 96}
    monkeypatch.setitem(RUNS, 'seq2seq', ('tiny', fields, RUNS['seq2seq'][2]))
    workdir = run('seq2seq', tmp_path / 'run')
    cfg = open_run(workdir).cfg
    files.write_json(workdir / 'vocab.json', corpus.load(cfg.data).vocab.to_json())
    flags = [f'--workdir={workdir}', f'--output={tmp_path}/int8', '--quantize=int8', '--split=test', '--json']
    assert main(['export', *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    there = checkpoint.metadata(tmp_path / 'int8' / 'checkpoints', 1)
    assert found['int8_bytes'] == sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in there.values())
    assert found['bytes'] == sum(leaf.nbytes for leaf in jax.tree.leaves(open_run(workdir).params))
    assert found['bytes_ratio'] < 0.36 and 0.9 < found['half_steps'] <= 1 + 1e-6
    assert 0 < found['relative_error'] < 0.02
    assert found['loss'] != found['int8_loss'] and found['int8_loss'] == pytest.approx(found['loss'], rel=0.05)
    assert 0 <= found['int8_wer'] <= 1 and found['seconds'] > 0 and found['int8_seconds'] > 0
    assert int8.any_rounded(open_run(tmp_path / 'int8', keep_int8=True).params)
