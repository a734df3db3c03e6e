"""A sharded checkpoint of ten gigabytes is listed from its metadata: in seconds, in little memory, its arrays unread.

It is a small one, saved by eight devices, whose arrays and whose largest file are then made to look large: the sizes in
the metadata grow, and the file with a hole.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SAVE_ON_EIGHT = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxformer import checkpoint, sharding
from jaxformer.schema import MeshConfig

mesh = sharding.make_mesh(MeshConfig(data=1, fsdp=4, model=2, seq=1, strategy=''))
lay = lambda shape, *axes: jax.device_put(jnp.ones(shape), NamedSharding(mesh, PartitionSpec(*axes)))
params = {
    'embedding': lay((6, 8), 'model', 'fsdp'),
    'decoder': {'layers': {'feed_forward': {'inner': lay((3, 8, 10), None, 'fsdp', 'model')}}},
    'more': {f'w{number}': lay((8,)) for number in range(300)},
}
checkpoint.save(sys.argv[1], 5, {'params': params, 'step': jnp.int32(5)}, {}, {}, 1)
"""

ENLARGE = """
import json, sys
import tensorstore
state = sys.argv[1]
store = tensorstore.KvStore.open({'driver': 'ocdbt', 'base': f'file://{state}/'}).result()
index = json.loads(open(f'{state}/_METADATA').read())
for name, shape in (('embedding', (128000, 4096)), ('decoder/layers/feed_forward/inner', (24, 4096, 20000))):
    key = 'params.' + name.replace('/', '.') + '/zarr.json'
    array = json.loads(store[key])
    old = array['shape']
    array['shape'] = shape
    chunk = array['chunk_grid']['configuration']
    chunk['chunk_shape'] = [new * part // size for new, part, size in zip(shape, chunk['chunk_shape'], old)]
    store[key] = json.dumps(array)
    value = index['tree_metadata'][str(('params', *name.split('/')))]['value_metadata']
    value['write_shape'] = [new * part // size for new, part, size in zip(shape, value['write_shape'], old)]
open(f'{state}/_METADATA', 'w').write(json.dumps(index))
"""

LIST = """
import json, sys, time
begun = time.time()
from jaxformer.main import main
status = main(['inspect', f'--workdir={sys.argv[1]}', '--json'])
read = int(dict(line.split(': ') for line in open('/proc/self/io').read().splitlines())['rchar'])
# Not getrusage's, which a process has from the one that started it.
(peak,) = [int(line.split()[1]) * 1024 for line in open('/proc/self/status') if line.startswith('VmHWM')]
print(json.dumps({'status': status, 'seconds': time.time() - begun, 'peak': peak, 'read': read}), file=sys.stderr)
"""

SIZE = 10 * 2**30


def process(program, argument, devices=1):
    environment = {
        **os.environ,
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
    }
    command = [sys.executable, '-c', program, str(argument)]
    done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp('large')
    (run / 'config.json').write_text('{}')
    process(SAVE_ON_EIGHT, run / 'checkpoints', devices=8)
    path = run / 'checkpoints' / '5'
    process(ENLARGE, path / 'state')
    with (path / 'state' / 'd' / 'hole').open('wb') as file:
        file.truncate(SIZE)
    files = [file for file in path.rglob('*') if file.is_file() and file.name not in ('manifest.json', 'hole')]
    listing = {
        str(file.relative_to(path)): {
            'size': file.stat().st_size,
            'sha256': hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in files
    }
    listing['state/d/hole'] = {'size': SIZE, 'sha256': 'never asked for'}
    (path / 'manifest.json').write_text(json.dumps({'files': listing}))
    return pathlib.Path(run)


def test_ten_gigabytes_are_listed_in_seconds_and_half_a_gigabyte(run):
    done = process(LIST, run)
    listed = json.loads(done.stdout)
    cost = json.loads(done.stderr.splitlines()[-1])
    assert cost['status'] == 0 and 'not a whole checkpoint' not in done.stderr
    rows = {row['path']: row for row in listed['parameters']}
    assert len(rows) == 302 and listed['bytes'] == 4 * (128000 * 4096 + 24 * 4096 * 20000 + 300 * 8) > 9.9e9
    assert rows['embedding']['divided'] == 'V:model D:fsdp'
    inner = rows['decoder/layers/feed_forward/inner']
    assert (inner['letters'], inner['shape'], inner['divided']) == ('NDF', [24, 4096, 20000], 'D:fsdp F:model')
    assert cost['peak'] < 500e6, cost
    assert cost['read'] < 200e6, cost  # most of it Python's modules
    assert cost['seconds'] < 20, cost  # about two on a machine at leisure


def test_names_survive_the_loss_of_what_arrays_are_in(run, tmp_path):
    whole = json.loads(process(LIST, run).stdout)['parameters']
    path = tmp_path / 'checkpoints' / '5'
    shutil.copytree(run / 'checkpoints' / '5', path, ignore=shutil.ignore_patterns('d', '*.ocdbt', 'ocdbt*'))
    (tmp_path / 'config.json').write_text('{}')
    done = process(LIST, tmp_path)
    left = json.loads(done.stdout)['parameters']
    assert left == [{**row, 'shape': None, 'dtype': '?', 'count': 0, 'bytes': 0} for row in whole]
    assert f'{path}: not a whole checkpoint (state/' in done.stderr and 'Traceback' not in done.stderr
