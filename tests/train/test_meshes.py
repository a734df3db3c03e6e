"""Every strategy trains as one device does, holds the share of the state that it promises, and says what it must."""

import collections
import json
import math
import re
import sys

import jax
import numpy as np
import pytest
import small

from jaxformer import choices, hyperparameters, sharding
from jaxformer.train.program import Program

B, S, T, V = 16, 24, 24, 272
SIZES = {'d_model': 32, 'num_heads': 8, 'd_k': 3, 'd_v': 5, 'd_ff': 40, 'num_layers': 2, 'vocab_size': V}
CHANGES = {
    **{f'model.{name}': size for name, size in SIZES.items()},
    **{f'model.dropout.{place}': 0.1 for place in ('attention', 'residual', 'feed_forward', 'embedding')},
    **{'optim.weight_decay': 0.1, 'optim.clip_norm': 0.5, 'optim.schedule': 'constant', 'optim.learning_rate': 0.01},
    **{'optim.warmup_steps': 0, 'train.batch_size': B, 'data.buckets': ((S, T),)},
    'optim.epsilon': 1e-4,  # the rounding of a gradient that is nearly 0 must not become an update
}
OF_FAMILY = {
    'seq2seq': {},
    'lm': {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((T,),)},
}
INPUTS = {'seq2seq': ('source', 'target'), 'lm': ('tokens',)}
MESHES = {strategy: {'mesh.strategy': strategy} for strategy in choices.STRATEGIES}
MESHES['ring'] = {'mesh.strategy': 'sp', 'model.attention.kernel': 'blockwise'}
COLLECTIVES = r'= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\('


def batch_of(family):
    """Two rows a device: those of the last one, where eight divide them, are padding, and one more row half."""
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(5, V, (B, T)).astype(np.int32) for name in INPUTS[family]}
    for rows in batch.values():
        rows[-2:] = rows[3, T // 2 :] = 0
    return batch | {'example_id': np.append(np.arange(B - 2), (-1, -1)).astype(np.int32)}


def train(family, changes, start):
    """(What five steps leave and how, the first state) on all devices, or with no changes on one."""
    program = Program(cfg := small.make(CHANGES | OF_FAMILY[family] | changes), jax.devices()[: None if changes else 1])
    place = jax.tree.map(lambda leaf: leaf.sharding, program.target)
    start = jax.device_get(program.initialise(3)) if start is None else start
    state, losses = jax.device_put(start, place), []
    batch, values = sharding.put_batch(batch_of(family), program.mesh), hyperparameters.of(cfg)
    text = program.update.lower(state, batch, values).compile().as_text()
    for _ in range(5):
        state, metrics = program.update(state, batch, values)
        losses.append(float(metrics['loss']))
    found = {
        'losses': losses,
        'params': jax.device_get(state.params),
        'mesh': dict(program.mesh.shape),
        'shards': {
            sharding.path_name(path): [leaf.shape, *{shard.data.shape for shard in leaf.addressable_shards}]
            for path, leaf in jax.tree_util.tree_leaves_with_path((state.params, state.opt_state))
        },
        'batch': {name: rows.addressable_shards[0].data.shape for name, rows in batch.items()},
        'collectives': collectives(text),
    }
    return found, start


def collectives(text):
    """{operation: numbers of elements of all that it gives} of a compiled program."""
    sizes = collections.defaultdict(set)
    for line in text.splitlines():
        if match := re.search(COLLECTIVES, line):
            shapes = re.findall(r'\w+\[([\d,]*)\]', match[1])
            sizes[match[2]] |= {math.prod(int(n) for n in shape.split(',') if n) for shape in shapes}
    return {name: sorted(found) for name, found in sizes.items()}


def error(params, others):
    """Greatest difference within a parameter, of its greatest value."""
    apart = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b)) / np.max(np.abs(b))), params, others)
    return max(jax.tree.leaves(apart))


def main():
    """Run with eight virtual devices: prints what is found as JSON."""
    for family in OF_FAMILY:
        alone, start = train(family, {}, None)
        for strategy, changes in MESHES.items():
            found, _ = train(family, changes, start)
            found['error'] = error(found.pop('params'), alone['params'])
            print(json.dumps({'family': family, 'strategy': strategy, 'alone': alone['losses']} | found), flush=True)


@pytest.fixture(scope='module')
def found():
    """(family, strategy) → what a process of eight devices finds."""
    result = small.run_process(__file__, devices=8)
    assert result.returncode == 0, result.stderr[-3000:]
    records = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{')]
    return {(record['family'], record['strategy']): record for record in records}


each = pytest.mark.parametrize('family', OF_FAMILY)


@each
@pytest.mark.parametrize('strategy', MESHES)
def test_five_steps_are_those_of_one_device(found, family, strategy):
    record = found[family, strategy]
    np.testing.assert_allclose(record['losses'], record['alone'], rtol=1e-5)
    assert record['losses'][4] < record['losses'][0] - 0.1
    assert record['error'] < 1e-5


def parameters(record):
    """[(name, letters, [whole shape, shape on a device, …])] of every parameter and every moment."""
    for name, shapes in record['shards'].items():
        if len(shapes[0]):
            part = re.sub(r'^(0|1/\d+/(mu|nu))/', '', name)
            yield name, sharding.letters(part), shapes


@each
@pytest.mark.parametrize('strategy', MESHES)
def test_a_device_holds_its_share_of_parameters_and_moments(found, family, strategy):
    record = found[family, strategy]
    mesh, seen = record['mesh'], collections.Counter()
    assert math.prod(mesh.values()) == 8
    for name, letters, shapes in parameters(record):
        share = (mesh['fsdp'] if 'D' in letters else 1) * (mesh['model'] if set('HGFV') & set(letters) else 1)
        assert len(shapes) == 2 and math.prod(shapes[1]) * share == math.prod(shapes[0]), name
        seen[re.search(r'^0|mu|nu', name)[0], share] += 1
    assert {kind for kind, _ in seen} == {'0', 'mu', 'nu'}
    expected = {'dp': {1}, 'fsdp': {1, 8}, 'tp': {1, 8}, 'fsdp+tp': {2, 4, 8}, 'sp': {1}, 'ring': {1}}[strategy]
    assert {share for _, share in seen} == expected
    first = INPUTS[family][0]
    assert record['batch'][first] == [B // mesh['data'] // mesh['fsdp'], T // mesh['seq']]


def sizes_of_layers(record, divided=''):
    """Elements of each parameter of one layer, over the model axis where it has one of the letters `divided`."""
    for _, letters, (shape, _) in parameters(record):
        whole = math.prod(shape[1:] if letters[0] == 'N' else shape)
        yield whole // (record['mesh']['model'] if set(divided) & set(letters) else 1)


@each
def test_devices_tell_each_other_what_the_strategy_needs_and_no_more(found, family):
    collected = {strategy: found[family, strategy]['collectives'] for strategy in MESHES}
    assert set(collected['dp']) == {'all-reduce'}  # of gradients; nobody asks for parameters
    assert set(sizes_of_layers(found[family, 'dp'])) - {2 * 32} <= set(collected['dp']['all-reduce'])
    # Parameters of one layer at a time. Rows stay where they are, but for the tokens, that all look up in their columns
    # of the table, and then swap for the other columns of their own.
    gathered = set(collected['fsdp']['all-gather'])
    matrices = {32 * 8 * 3, 32 * 8 * 5, 32 * 40, V * 32}
    assert matrices <= gathered <= {B * T, *sizes_of_layers(found[family, 'fsdp'])}
    assert collected['fsdp']['all-to-all'] == [B * T * 32 // 8 // 8]
    assert matrices <= {n for name in ('all-reduce', 'reduce-scatter') for n in collected['fsdp'].get(name, ())}
    # Sums over heads and over F, of activations; no matrix is put together.
    assert B * T * 32 in collected['tp']['all-reduce']
    assert not matrices & set(collected['tp'].get('all-gather', ()))
    # Both: the halves of a layer's matrices are put together along fsdp.
    both = found[family, 'fsdp+tp']
    assert {n // 2 for n in matrices} <= set(sizes_of_layers(both, 'HGFV')) & set(collected['fsdp+tp']['all-gather'])
    assert B // 4 * T * 32 in collected['fsdp+tp']['all-reduce']
    # Keys and values of all positions, queries of one's own.
    assert {B * T * 8 * 3, B * T * 8 * 5} <= set(collected['sp']['all-gather'])
    # In a ring they are passed on, a device's share at a time.
    assert {B * T * 8 * 3 // 8, B * T * 8 * 5 // 8} <= set(collected['ring']['collective-permute'])
    assert not {B * T * 8 * 3, B * T * 8 * 5} & set(collected['ring'].get('all-gather', ()))


if __name__ == '__main__':
    sys.exit(main())
