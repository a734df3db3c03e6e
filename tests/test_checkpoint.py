"""A checkpoint is whole or does not count: equal bits come back, damage is found, no kill or full disk loses one."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging
from etils import epath

from jaxformer import checkpoint, files
from jaxformer.errors import RunError, UserError

CONFIG = {'model': {'num_heads': 3, 'norm': None, 'tied': True}, 'buckets': ((5, 7), (9, 11)), 'empty': {}}


@flax.struct.dataclass
class State:
    step: jax.Array
    params: dict
    opt_state: tuple
    skipped: jax.Array


def make_state(seed=0, size=(5, 24)):
    keys = jax.random.split(jax.random.key(seed), 2)
    params = {
        'encoder': {'query': jax.random.normal(keys[0], size)},
        'scale': jax.random.normal(keys[1], (3,), jnp.bfloat16),
    }
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    _, opt_state = optimiser.update(params, optimiser.init(params), params)  # moments that are not zero
    return State(jnp.int32(7 + seed), params, opt_state, jnp.int32(2))


def save(directory, step, state=None, keep=3):
    return checkpoint.save(directory, step, state or make_state(step), {'next_index': 10 * step}, CONFIG, keep)


def assert_equal_bits(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def walk(path):
    return [f for p in sorted(path.iterdir()) for f in (walk(p) if p.is_dir() else [p])]


def flip(file, position=None):
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    file.write_bytes(bytes(content))


def test_state_data_and_config_come_back_bit_equal(tmp_path):
    state = make_state()
    path = save(tmp_path, 20, state)
    assert path == epath.Path(tmp_path) / '20' and checkpoint.check(path) is None
    abstract = jax.eval_shape(lambda: state)
    for target in (state, abstract):
        restored, data_state = checkpoint.restore(tmp_path, 20, target)
        assert_equal_bits(restored, state)
        assert isinstance(restored, State) and data_state == {'next_index': 200}
    assert_equal_bits(checkpoint.restore_params(tmp_path, 20), state.params)
    assert checkpoint.config(tmp_path, 20) == {**CONFIG, 'buckets': [[5, 7], [9, 11]]}


def test_metadata_names_every_array(tmp_path):
    save(tmp_path, 1)
    metadata = checkpoint.metadata(tmp_path, 1)
    assert metadata['params/encoder/query'] == ((5, 24), np.dtype('float32'))
    assert metadata['params/scale'] == ((3,), np.dtype(jnp.bfloat16))
    assert metadata['opt_state/1/0/mu/encoder/query'] == ((5, 24), np.dtype('float32'))
    assert len(metadata) == len(jax.tree.leaves(make_state()))


def test_mismatch_names_the_parameter_and_both_shapes(tmp_path):
    save(tmp_path, 1)
    other = make_state(size=(5, 23))
    with pytest.raises(
        UserError, match=r'params/encoder/query is float32\[5, 24\] .* and float32\[5, 23\] in this run'
    ):
        checkpoint.restore(tmp_path, 1, other)
    state = make_state()
    for changed, name in (
        (state.replace(params={'encoder': state.params['encoder']}), 'params/scale'),
        (state.replace(params={**state.params, 'more': jnp.zeros(3)}), 'params/more'),
        (state.replace(skipped=jnp.float32(0)), 'skipped'),  # orbax alone would cast
    ):
        with pytest.raises(UserError, match=f'{name} is ') as caught:
            checkpoint.restore(tmp_path, 1, changed)
        assert '\n' not in str(caught.value)
    with pytest.raises(UserError, match='no such checkpoint; the steps there are: 1'):
        checkpoint.restore(tmp_path, 2, state)


def test_damage_to_any_file_is_found(tmp_path):
    path = save(tmp_path, 3)
    names = [f for f in walk(path) if f.stat().length]
    assert len(names) > 6
    for file in names:
        content = file.read_bytes()
        name = file.relative_to(path).as_posix()
        for position in (
            (0, len(content) // 2, len(content) - 1) if name != 'manifest.json' else range(0, len(content) - 1, 7)
        ):
            flip(file, position)
            reason = checkpoint.check(path)
            assert reason is not None, f'{name} byte {position}'
            assert name == 'manifest.json' or reason.startswith(name)
            file.write_bytes(content)
        for shorter in (content[:-1], b''):
            if name == 'manifest.json' and shorter == content[:-1]:
                continue  # only its last line feed is gone
            file.write_bytes(shorter)
            assert checkpoint.check(path).startswith(name)
        file.unlink()
        assert checkpoint.check(path) == f'{name}: missing'
        file.write_bytes(content)
        assert checkpoint.check(path) is None
    (path / 'notes.txt').write_text('extra files do no harm')
    assert checkpoint.check(path) is None


def test_newest_whole_passes_over_damage_by_name_and_never_starts_afresh(tmp_path, monkeypatch):
    assert checkpoint.newest_whole(tmp_path / 'none') is None and checkpoint.newest_whole(tmp_path) is None
    warnings = []
    monkeypatch.setattr(logging, 'warning', lambda text, *args: warnings.append(text % args))
    for step in (5, 10, 15):
        save(tmp_path, step)
    assert checkpoint.newest_whole(tmp_path) == 15 and not warnings
    flip(epath.Path(tmp_path) / '15' / 'data' / 'data.json')
    (epath.Path(tmp_path) / '10' / 'manifest.json').unlink()
    assert checkpoint.newest_whole(tmp_path) == 5
    assert '/15: ' in warnings[0] and 'data/data.json' in warnings[0]
    assert '/10: ' in warnings[1] and 'manifest.json: missing' in warnings[1]
    with pytest.raises(RunError, match='data/data.json'):
        checkpoint.restore(tmp_path, 15, make_state())
    with pytest.raises(RunError, match='manifest.json'):
        checkpoint.restore_params(tmp_path, 10)
    flip(epath.Path(tmp_path) / '5' / 'state' / '_METADATA')
    with pytest.raises(RunError, match='step 15: .*; step 10: .*; step 5: state/_METADATA.*remove this directory') as e:
        checkpoint.newest_whole(tmp_path)
    assert str(tmp_path) in str(e.value) and '\n' not in str(e.value)


def test_keep_counts_whole_ones_only(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 4]
    flip(epath.Path(tmp_path) / '4' / 'data' / 'data.json')
    save(tmp_path, 5, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 4, 5]  # 3 and 5 are kept; 4 does not count, and stays to be looked at
    save(tmp_path, 6, keep=2)
    assert checkpoint.steps(tmp_path) == [5, 6]
    with pytest.raises(ValueError, match='keep'):
        save(tmp_path, 7, keep=0)
    save(tmp_path, 4, keep=1)  # after going back by hand: what was just saved is never removed
    assert checkpoint.steps(tmp_path) == [4, 6]


def test_what_a_newer_version_wrote_is_never_removed(tmp_path):
    save(tmp_path, 1, keep=1)
    manifest = tmp_path / '1' / checkpoint.MANIFEST
    files.write_json(manifest, files.read_json(manifest) | {'format': checkpoint.FORMAT + 1})
    for step in (2, 3):
        save(tmp_path, step, keep=1)
    assert checkpoint.steps(tmp_path) == [1, 3]


def test_keep_one_deletes_the_old_only_when_the_new_is_whole(tmp_path, monkeypatch):
    old = save(tmp_path, 1, keep=1)
    seen = []
    rmtree = type(old).rmtree

    def spy(path, *args, **kwargs):
        if path.name.startswith('1.'):
            seen.append(checkpoint.check(epath.Path(tmp_path) / '2'))
        return rmtree(path, *args, **kwargs)

    monkeypatch.setattr(type(old), 'rmtree', spy)
    save(tmp_path, 2, keep=1)
    assert seen == [None] and checkpoint.steps(tmp_path) == [2]

    def fail(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(files, 'write_json', fail)
    with pytest.raises(RunError, match='No space left'):
        save(tmp_path, 3, keep=1)
    assert os.listdir(tmp_path) == ['2'] and checkpoint.newest_whole(tmp_path) == 2


def test_same_step_again_and_leftovers(tmp_path):
    first, second = make_state(1), make_state(2)
    path = save(tmp_path, 30, first)
    save(tmp_path, 30, second)  # whole: left as it is
    assert_equal_bits(checkpoint.restore(tmp_path, 30, first)[0], first)
    flip(path / 'state' / '_METADATA')
    for orphan in ('30.orbax-checkpoint-tmp', '40.orbax-checkpoint-tmp-17', '40.partial'):
        (path.parent / orphan / 'state').mkdir(parents=True)
    assert checkpoint.steps(tmp_path) == [30]
    save(tmp_path, 30, second)
    assert os.listdir(tmp_path) == ['30']
    assert_equal_bits(checkpoint.restore(tmp_path, 30, second)[0], second)


CHILD = """
import sys, jax, jax.numpy as jnp, numpy as np
sys.path.insert(0, {tests!r})
from jax.sharding import NamedSharding, PartitionSpec
from test_checkpoint import *
def mesh_state(seed, count):
    assert jax.device_count() == count, jax.devices()
    mesh = jax.make_mesh((count,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))
    def place(a):
        spec = PartitionSpec(None, 'x') if a.ndim == 2 else PartitionSpec()
        return jax.device_put(a, NamedSharding(mesh, spec))
    return jax.tree.map(place, make_state(seed))
directory = sys.argv[1]
"""


def child(code, *arguments, devices=1):
    env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}'}
    source = CHILD.format(tests=os.path.dirname(__file__)) + code
    return subprocess.Popen(
        [sys.executable, '-c', source, *map(str, arguments)], env=env, stdout=subprocess.PIPE, text=True
    )


def test_eight_devices_to_one_and_back(tmp_path):
    """B37: 1 → 8 and 8 → 1, whole state and parameters alone, metadata included."""
    save(tmp_path, 1, make_state(1))
    code = """
wanted = mesh_state(1, 8)
restored, _ = checkpoint.restore(directory, 1, wanted)
assert_equal_bits(restored, wanted)
query = restored.params['encoder']['query']
assert query.sharding == wanted.params['encoder']['query'].sharding and len(query.sharding.device_set) == 8
save(directory, 2, mesh_state(2, 8))
"""
    process = child(code, tmp_path, devices=8)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert jax.device_count() == 1
    assert_equal_bits(checkpoint.restore(tmp_path, 2, jax.eval_shape(make_state))[0], make_state(2))
    assert_equal_bits(checkpoint.restore_params(tmp_path, 2), make_state(2).params)
    assert checkpoint.metadata(tmp_path, 2) == checkpoint.metadata(tmp_path, 1)


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    code = """
state = make_state(0, (50, 2400))
start = checkpoint.newest_whole(directory) or 0
for step in range(start + 1, start + 1000):
    save(directory, step, state.replace(step=jnp.int32(step)), keep=1)
    print(step, flush=True)
"""
    random.seed(0)
    reported, leftovers = 0, 0
    for kill in range(8):
        if kill >= 3 and leftovers:
            break
        process = child(code, tmp_path)
        reported = max(reported, int(process.stdout.readline()))
        time.sleep(random.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
        reported = max([reported, *map(int, rest)])
        leftovers += len(os.listdir(tmp_path)) > 1
        newest = checkpoint.newest_whole(tmp_path)
        assert newest is not None and newest >= reported
        state, data_state = checkpoint.restore(tmp_path, newest, jax.eval_shape(lambda: make_state(0, (50, 2400))))
        assert int(state.step) == newest and data_state == {'next_index': 10 * newest}
    assert leftovers, 'no kill fell into a save: the test has shown nothing'


@contextlib.contextmanager
def small_disk(path):
    path.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', str(path)]
    if os.getuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip('needs the right to mount a small file system')
    try:
        yield path
    finally:
        subprocess.run(['umount', '-l', str(path)], check=True)


def test_full_and_read_only_disk_give_one_line_and_keep_the_old(tmp_path, capfd):
    logging.use_absl_handler()
    with small_disk(tmp_path / 'disk') as disk:
        small = make_state(1)
        save(disk, 1, small, keep=1)
        capfd.readouterr()
        with pytest.raises(RunError, match='/2: .*No space left on device.*free space') as caught:
            save(disk, 2, make_state(2, (1000, 1000)), keep=1)
        assert '\n' not in str(caught.value) and 'Traceback' not in capfd.readouterr().err
        assert os.listdir(disk) == ['1']
        assert_equal_bits(checkpoint.restore(disk, 1, small)[0], small)
        save(disk, 2, small, keep=2)  # and the run can go on once there is space
        subprocess.run(['mount', '-o', 'remount,ro', str(disk)], check=True)
        with pytest.raises(RunError, match='/3: .*Read-only file system'):
            save(disk, 3, small, keep=1)
        assert checkpoint.newest_whole(disk) == 2


def test_unwritable_directory_without_mounting(tmp_path):
    (tmp_path / 'file').write_text('not a directory')
    with pytest.raises(RunError, match='could not be written'):
        save(tmp_path / 'file' / 'checkpoints', 1)
