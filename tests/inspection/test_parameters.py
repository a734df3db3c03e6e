"""The table is complete, its totals are the known ones, and reading it costs no array."""

import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import tensorstore
from flax import traverse_util
from orbax.checkpoint import v1 as ocp

from jaxformer import checkpoint, config, optim, sharding
from jaxformer.errors import RunError, UserError
from jaxformer.inspection import parameters, statistics
from jaxformer.inspection.stored import Stored
from jaxformer.model import transformer

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


def total(name, vocab_size):
    edited = config.load(CONFIGS / f'{name}.py')
    config.override(edited, {'model.vocab_size': vocab_size})
    return parameters.as_json(parameters.from_config(config.resolve(edited), 0))['total']


def test_totals_of_the_paper():
    arrays = len(jax.live_arrays())
    assert total('base', 37_000) == 63_045_632
    assert round(total('base', 41_100), -6) == 65_000_000
    assert round(total('big', 36_000), -6) == 213_000_000
    assert len(jax.live_arrays()) == arrays  # counted, not made


def test_rows_by_hand(make_cfg):
    cfg = make_cfg(model__num_heads=4, model__num_kv_heads=2, model__d_k=5, model__d_v=7, model__num_layers=3)
    rows = {row.path: row for row in parameters.from_config(cfg, 15)}
    key = rows['decoder/layers/cross_attention/key']
    assert (key.letters, key.shape, key.dtype) == ('NDGK', (3, 48, 2, 5), 'float32')
    assert (key.count, key.bytes, key.decayed) == (3 * 48 * 2 * 5, 4 * 3 * 48 * 2 * 5, True)
    assert rows['embedding'].shape == (15, 48) and rows['embedding'].decayed
    undecayed = {path.rpartition('/')[2] for path, row in rows.items() if not row.decayed}
    assert undecayed == {'scale', 'bias', 'inner_bias', 'outer_bias'}


def test_bfloat16_counts_two_bytes(make_cfg):
    rows = parameters.from_config(make_cfg(model__precision__parameters='bfloat16'), 15)
    assert {(row.dtype, row.bytes // row.count) for row in rows} == {('bfloat16', 2)}


def test_every_parameter_is_in_one_group(make_cfg):
    cfg = make_cfg(
        model__position='learned', model__max_length=13, model__embedding__tables='separate',
        model__embedding__softmax='untied', model__feed_forward='swiglu',
    )  # fmt: skip
    rows = parameters.from_config(cfg, 15)
    groups = parameters.groups(rows)
    assert sum(groups.values()) == sum(row.count for row in rows)
    assert groups['embedding'] == 2 * 15 * 48 and groups['softmax'] == 15 * 48
    assert groups['positions'] == 2 * 13 * 48
    assert groups['norms'] == 2 * 48 * (2 * 2 + 2 * 3 + 2)
    sublayers = {'encoder/self_attention', 'encoder/feed_forward'} | {
        f'decoder/{name}' for name in ('self_attention', 'cross_attention', 'feed_forward')
    }
    assert set(groups) == sublayers | {'embedding', 'softmax', 'positions', 'norms'}


def test_checkpoint_has_the_rows_of_its_config_and_no_array_is_loaded(trained, make_cfg, monkeypatch):
    for module, name in ((tensorstore, 'open'), (ocp, 'load'), (ocp, 'load_checkpointables')):
        monkeypatch.setattr(module, name, lambda *args, **kwargs: pytest.fail('arrays were loaded'))
    rows = parameters.from_checkpoint(trained)
    assert rows == parameters.from_config(make_cfg(), 15)
    assert parameters.from_checkpoint(trained, 30) == rows


def test_json_and_text_hold_every_row(trained):
    rows = parameters.from_checkpoint(trained)
    data = json.loads(json.dumps(parameters.as_json(rows)))
    assert data['total'] == sum(data['groups'].values()) == sum(row['count'] for row in data['parameters'])
    assert data['bytes'] == 4 * data['total']
    assert [row['path'] for row in data['parameters']] == [row.path for row in rows]
    assert data['bytes'] == sum(data['group_bytes'].values()) and data['group_bytes'].keys() == data['groups'].keys()
    assert data['group_bytes']['norms'] == 4 * data['groups']['norms']
    table, groups, end = parameters.as_text(rows).split('\n\n')
    lines = table.splitlines()
    assert len(lines) == 1 + len(rows) and len(groups.splitlines()) == 1 + len(data['groups'])
    column = lines[0].index('letters')
    assert all(line[column:].split()[0] == row.letters for line, row in zip(lines[1:], rows, strict=True))
    assert f'total {data["total"]:,} parameters' in end


def cut(file):
    """Half of a file is gone, as after a full disk."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def copied(trained, tmp_path):
    run = pathlib.Path(shutil.copytree(trained, tmp_path / 'run'))
    return run, run / 'checkpoints' / '60' / 'state'


def test_cut_checkpoint_is_named_passed_over_and_listed_on_demand(trained, tmp_path, caplog):
    run, state = copied(trained, tmp_path)
    rows = parameters.from_checkpoint(run)
    cut(next(state.glob('ocdbt.process_0/d/*')))
    with caplog.at_level(logging.WARNING):
        assert parameters.from_checkpoint(run) == parameters.from_checkpoint(run, 30) == rows
    (line,) = [record.getMessage() for record in caplog.records]
    assert f'{state.parent}: not a whole checkpoint (state/ocdbt.process_0/d/' in line and 'bytes instead of' in line
    caplog.clear()
    listed = parameters.from_checkpoint(run, 60)  # damage may hide the dtypes; names and shapes stand elsewhere, too
    assert [(row.path, row.shape, row.count) for row in listed] == [(row.path, row.shape, row.count) for row in rows]
    assert 'what can be read of it follows' in caplog.text
    shutil.rmtree(run / 'checkpoints' / '30')
    assert parameters.from_checkpoint(run) == listed


def test_metadata_that_changed_is_noticed(trained, tmp_path, caplog):
    run, state = copied(trained, tmp_path)
    index = (state / '_METADATA').read_text()
    (state / '_METADATA').write_text(index.replace('write_shape": [48]', 'write_shape": [49]'))
    parameters.from_checkpoint(run)
    assert 'state/_METADATA: its content has changed' in caplog.text


def test_nothing_readable_is_one_line(trained, tmp_path):
    run, state = copied(trained, tmp_path)
    for file in state.rglob('*'):
        if file.is_file():
            file.write_bytes(b'')
    with pytest.raises(RunError, match='60: no array of it can be listed') as raised:
        parameters.from_checkpoint(run, 60)
    assert len(str(raised.value).splitlines()) == 1


def test_absent_ones_are_named(trained, tmp_path):
    with pytest.raises(UserError, match='no checkpoint of step 7; the steps there are: 30, 60'):
        parameters.from_checkpoint(trained, 7)
    with pytest.raises(UserError, match='not the directory of a run'):
        parameters.from_checkpoint(tmp_path)


def test_foreign_checkpoint_is_named_and_listed(trained, tmp_path, caplog):
    run, _ = copied(trained, tmp_path)
    ocp.save(run / 'checkpoints' / '90', {'dense': {'bias': np.ones(3)}, 'blocks': [np.ones((5, 7)), np.ones(2)]})
    assert {row.path: row.shape for row in parameters.from_checkpoint(run, 90)} == {
        'blocks/0': (5, 7), 'blocks/1': (2,), 'dense/bias': (3,),
    }  # fmt: skip
    assert 'manifest.json: missing' in caplog.text and 'not a checkpoint of jaxformer (it has no params)' in caplog.text
    assert parameters.from_checkpoint(run) == parameters.from_checkpoint(run, 60)  # it is no newer one of ours


def test_run_of_a_newer_version_is_listed(trained, tmp_path, caplog):
    run, state = copied(trained, tmp_path)
    (run / 'config.json').write_text('{"of": "the future"}')
    assert parameters.from_checkpoint(run) == parameters.from_checkpoint(trained)
    (state / 'telepathy').write_text('a file more, which no manifest lists')
    (state / '_sharding').unlink()  # which a newer orbax may do without
    edited = json.loads((state.parent / 'manifest.json').read_text())
    del edited['files']['state/_sharding']
    (state.parent / 'manifest.json').write_text(json.dumps({'version': 9, **edited}))
    assert parameters.from_checkpoint(run) == parameters.from_checkpoint(trained) and not caplog.records


def test_parameter_of_another_version_is_listed_without_letters():
    stored = Stored((5, 7), np.dtype('float32'), ((), ('fsdp', 'model')))
    (row,) = rows = parameters.rows({'decoder/memory/slots': stored})
    assert (row.path, row.letters, row.divided, row.count) == ('decoder/memory/slots', '??', '?:fsdp+model', 35)
    assert sum(parameters.groups(rows).values()) == 35


DECAYED = [
    {'model.norm': 'rmsnorm'},
    {'model.residual': 'post', 'model.attention.bias': 'all'},
    {'model.residual': 'sandwich', 'model.embedding.norm': 'on', 'model.attention.score': 'additive'},
    {'model.family': 'mlm', 'model.head.transform': 'on', 'model.embedding.softmax_bias': 'on'},
    {'model.family': 'classifier', 'model.head.pooler': 'on', 'model.position': 't5_relative'},
    {'model.mixer': 'gru', 'model.feed_forward': 'swiglu'},
]


@pytest.mark.parametrize('changes', DECAYED, ids=str)
def test_decayed_is_what_the_optimiser_decays(changes):
    edited = config.load(CONFIGS / 'tiny.py')
    if family := changes.get('model.family'):
        changes = {**changes, 'data.name': {'mlm': 'text', 'classifier': 'labelled'}[family], 'data.source': 'any'}
        changes |= {'data.tokenizer': 'characters', 'data.buckets': ((9,),)}
    config.override(edited, {'optim.weight_decay': 0.1, 'optim.clip_norm': None, **changes})
    cfg = config.resolve(edited)
    abstract = transformer.abstract_params(cfg.model, 15, 4)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), abstract)
    optimizer = optim.build(cfg)
    update, _ = optimizer.update(jax.tree.map(np.zeros_like, ones), optimizer.init(ones), ones)
    moved = {sharding.path_name(path): bool(np.any(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(update)}
    assert {row.path: row.decayed for row in parameters.from_config(cfg, 15, 4)} == moved
    named = {path for path in moved if path.endswith(('scale', 'bias'))}
    assert {path for path, decayed in moved.items() if not decayed} == named and named


SAVE_ON_EIGHT = """
import sys
import jax
from etils import epath
from jaxformer import checkpoint, config, files, optim, sharding
from jaxformer.model import transformer
from jaxformer.train import state

workdir = epath.Path(sys.argv[1])
cfg = config.from_dict(files.read_json(workdir / 'config.json'))
assert jax.device_count() == 8
mesh = sharding.make_mesh(cfg.mesh)
model, optimizer = transformer.build(cfg.model, 16), optim.build(cfg)
fresh = state.initialise(model, optimizer, 0, state.abstract(model, optimizer, mesh))
assert not fresh.params['embedding'].sharding.is_fully_replicated
checkpoint.save(workdir / 'checkpoints', 5, fresh, {'next_index': 5}, config.to_dict(cfg), 1)
"""


def test_checkpoint_of_eight_devices_is_listed_on_fewer(make_cfg, tmp_path):
    assert jax.device_count() < 8
    cfg = make_cfg(mesh__data=2, mesh__fsdp=2, mesh__model=2, model__num_heads=4)
    (tmp_path / 'config.json').write_text(json.dumps(config.to_dict(cfg)))
    flags = '--xla_force_host_platform_device_count=8'
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags}
    subprocess.run([sys.executable, '-c', SAVE_ON_EIGHT, str(tmp_path)], env=environment, check=True, timeout=300)
    assert checkpoint.steps(tmp_path / 'checkpoints') == [5]
    rows = parameters.from_checkpoint(tmp_path)
    assert rows == parameters.from_config(cfg, 16)
    restored = traverse_util.flatten_dict(checkpoint.restore_params(tmp_path / 'checkpoints', 5), sep='/')
    for row, numbers in statistics.of_checkpoint(tmp_path):
        assert numbers.norm == pytest.approx(np.linalg.norm(np.asarray(restored[row.path], np.float64))), row.path
    divided = {row.path: row.divided for row in rows}
    assert (
        divided['embedding'] == 'V:model D:fsdp' and divided['decoder/layers/cross_attention/out'] == 'H:model D:fsdp'
    )
