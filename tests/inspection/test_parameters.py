"""The table is complete, its totals are the known ones, and reading it costs no array."""

import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import pytest
from orbax.checkpoint import v1 as ocp

from jaxformer import checkpoint, config
from jaxformer.errors import RunError, UserError
from jaxformer.inspection import parameters

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
    monkeypatch.setattr(ocp, 'load_checkpointables', lambda *args, **kwargs: pytest.fail('arrays were loaded'))
    rows = parameters.from_checkpoint(trained)
    assert rows == parameters.from_config(make_cfg(), 15)
    assert parameters.from_checkpoint(trained, 30) == rows


def test_json_and_text_hold_every_row(trained):
    rows = parameters.from_checkpoint(trained)
    data = json.loads(json.dumps(parameters.as_json(rows)))
    assert data['total'] == sum(data['groups'].values()) == sum(row['count'] for row in data['parameters'])
    assert data['bytes'] == 4 * data['total']
    assert [row['path'] for row in data['parameters']] == [row.path for row in rows]
    table, groups, end = parameters.as_text(rows).split('\n\n')
    lines = table.splitlines()
    assert len(lines) == 1 + len(rows) and len(groups.splitlines()) == 1 + len(data['groups'])
    column = lines[0].index('letters')
    assert all(line[column:].split()[0] == row.letters for line, row in zip(lines[1:], rows, strict=True))
    assert f'total {data["total"]:,} parameters' in end


def test_damaged_absent_and_foreign_checkpoints_are_named(trained, tmp_path, caplog):
    run = tmp_path / 'run'
    shutil.copytree(trained, run)
    damaged = run / 'checkpoints' / '60'
    victim = max((file for file in damaged.glob('state/**/*') if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING):
        assert parameters.from_checkpoint(run) == parameters.from_checkpoint(run, 30)
    assert str(damaged) in caplog.text
    with pytest.raises(RunError, match=r'60: damaged checkpoint: state.* has changed'):
        parameters.from_checkpoint(run, 60)
    with pytest.raises(UserError, match='no checkpoint of step 7; the steps there are: 30, 60'):
        parameters.from_checkpoint(run, 7)
    shutil.rmtree(run / 'checkpoints' / '30')
    with pytest.raises(RunError, match='no whole checkpoint'):
        parameters.from_checkpoint(run)
    with pytest.raises(UserError, match='not the directory of a run'):
        parameters.from_checkpoint(tmp_path)


def test_parameter_of_another_version_is_listed_without_letters():
    rows = parameters._rows({'decoder': {'memory': {'slots': jax.ShapeDtypeStruct((5, 7), 'float32')}}})
    assert [(row.path, row.letters, row.count) for row in rows] == [('decoder/memory/slots', '??', 35)]
    assert sum(parameters.groups(rows).values()) == 35


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
    assert parameters.from_checkpoint(tmp_path) == parameters.from_config(cfg, 16)
