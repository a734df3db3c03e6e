"""Every parameter has its letters, every letter its axes, and a mesh changes no number."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import choices, config, optim, sharding
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.schema import MeshConfig

ROOT = Path(__file__).parents[1]
ONE = MeshConfig(data=-1, fsdp=1, model=1, seq=1, strategy='')


SIZES = {'d_model': 16, 'num_heads': 6, 'num_kv_heads': 3, 'd_k': 5, 'd_v': 7, 'd_ff': 11, 'max_length': 64}
SIZES |= {'vocab_size': 0, 'recurrent__width': 9, 'conv__width': 8}
SIZES |= {'linformer__rank': 10, 'relative__num_buckets': 12, 'relative__max_distance': 20}
TEXT = {'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((64,),)}
TWO, FOUR = {'model.num_layers': 2}, {'model.num_layers': 4}  # layers of an encoder, of a decoder
OF_FAMILY = {
    'seq2seq': {'model.encoder_layers': 2, 'model.decoder_layers': 4},
    'mlm': TEXT | TWO,
    'classifier': TEXT | TWO | {'data.name': 'stdlib_labels'},
    'lm': TEXT | FOUR,
}
VOCAB, CLASSES = 13, 17


def model_config(family='seq2seq', **changes):
    edited = config.load(ROOT / 'configs' / 'base.py')
    config.override(edited, {'model.family': family} | OF_FAMILY[family])
    config.override(edited, {f'model.{name.replace("__", ".")}': v for name, v in (SIZES | changes).items()})
    return config.resolve(edited).model


def designs():
    """Model configs in which every kind of parameter occurs."""
    for order, norm, feed_forward in itertools.product(('pre', 'post'), ('layernorm', 'rmsnorm'), ('relu', 'swiglu')):
        yield model_config(residual=order, norm=norm, feed_forward=feed_forward, position='learned')
    yield model_config(embedding__tables='separate', embedding__softmax='untied', feed_forward='none')
    for mixer in choices.MIXERS:
        of_decoder = 'attention' if mixer == 'linformer' else mixer
        yield model_config(encoder_mixer=mixer, decoder_mixer=of_decoder, residual='sandwich', attention__bias='all')
    yield model_config(position='t5_relative', relative__tables='per_layer', attention__score='additive')
    yield model_config('mlm', position='t5_relative', embedding__token_types=15, head__transform='on')
    yield model_config('lm', residual='pre', embedding__norm='on', embedding__softmax_bias='on')
    yield model_config('classifier', head__pooler='on', head__pooling='mean')


LETTERS = {'D': 16, 'H': 6, 'G': 3, 'K': 5, 'E': 7, 'F': 11, 'V': VOCAB, 'M': 64, 'P': 10, 'W': 8, 'Y': CLASSES}


def sizes_of(name):
    """What a letter may stand for in the parameter of that name: R is the width inside a mixer, _ has no name."""
    layers = 2 if name.startswith('encoder') else 4
    inner = {32} if 'self_conv' in name else {9, 18}  # twice d_model; one direction, or two behind each other
    return {letter: {size} for letter, size in LETTERS.items()} | {
        'N': {layers},
        'R': inner,
        '_': {1, layers, 12, 15, 16},
    }


def leaves(cfg):
    """[(path, shape)] of the parameters."""
    tree = transformer.abstract_params(cfg, VOCAB, CLASSES)
    return [(sharding.path_name(path), leaf.shape) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def test_letters_are_the_sizes_of_every_parameter_and_no_row_of_the_table_is_idle():
    used = set()
    for cfg in designs():
        for name, shape in leaves(cfg):
            letters = sharding.letters(name)
            assert len(letters) == len(shape), name
            assert all(size in sizes_of(name)[letter] for letter, size in zip(letters, shape, strict=True)), name
            matching = [pattern for pattern, _ in sharding.PARAMETERS if re.search(pattern, name)]
            assert len(matching) == 1, name
            used.update(matching)
    assert used == {pattern for pattern, _ in sharding.PARAMETERS}


def test_letters_are_the_dimensions_of_every_activation_and_no_row_of_the_table_is_idle():
    seen, B, T = set(), 3, 21

    class Watched(sharding.LaidOut):
        def _place(self, method, args, options, context):
            seen.add(f'{type(context.module).__name__}.{context.method_name}')
            return super()._place(method, args, options, context)

        def _constrained(self, x, dims):
            sizes = LETTERS | {'B': B, 'T': T, 'S': T, '_': 16}
            assert x.shape == tuple(sizes[letter] for letter in dims), dims
            return x

    for cfg in designs():
        model = transformer.build(cfg, VOCAB, CLASSES)
        tokens = (jnp.ones((B, T), jnp.int32),) * (2 if cfg.family == 'seq2seq' else 1)
        params = transformer.abstract_params(cfg, VOCAB, CLASSES)
        jax.eval_shape(
            lambda params, *tokens, of=model: Watched(of, None).apply({'params': params}, *tokens), params, *tokens
        )
    for pattern, _ in sharding.ACTIVATIONS:
        assert any(re.search(pattern, name) for name in seen), pattern
    for name in seen:
        assert sum(bool(re.search(pattern, name)) for pattern, _ in sharding.ACTIVATIONS) <= 1, name
    assert len(seen) > 20


def test_two_axes_of_a_mesh_lay_out_every_parameter_of_every_design():
    """Even sizes: each dimension lies along the axis of its letter, and none asks for one twice."""
    mesh = jax.sharding.AbstractMesh((1, 2, 2, 1), sharding.AXES)
    even = {'num_kv_heads': 2, 'd_ff': 12, 'recurrent__width': 10}
    for cfg in (model_config(**even), *(model_config(encoder_mixer=mixer, **even) for mixer in choices.MIXERS)):
        params = transformer.abstract_params(cfg, 14)
        for path, place in jax.tree_util.tree_leaves_with_path(sharding.of_state(params, mesh)):
            name = sharding.path_name(path)
            by_letter = {'D': 'fsdp', **dict.fromkeys('HGFV', 'model')}
            assert list(place.spec) == [by_letter.get(letter) for letter in sharding.letters(name)], name


def test_an_unknown_parameter_is_an_error():
    with pytest.raises(KeyError, match='decoder/layers/self_attention/gain.*sharding.PARAMETERS'):
        sharding.letters('decoder/layers/self_attention/gain')


def test_one_device_is_the_mesh_of_ones():
    assert dict(sharding.make_mesh(ONE, jax.devices()[:1]).shape) == {'data': 1, 'fsdp': 1, 'model': 1, 'seq': 1}


@pytest.mark.parametrize('sizes', [(2, 1, 1, 1), (-1, 2, 1, 1), (1, 1, -1, 3)])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes):
    with pytest.raises(UserError, match=r'config.mesh \(data=-?\d, fsdp=\d, model=-?\d, seq=\d\).*devices, 1'):
        sharding.make_mesh(MeshConfig(*sizes, strategy=''), jax.devices()[:1])


@pytest.mark.parametrize(
    ('said', 'expected'),
    [
        ({}, (-1, 1, 1, 1)),
        ({'strategy': 'dp'}, (-1, 1, 1, 1)),
        ({'strategy': 'fsdp'}, (1, -1, 1, 1)),
        ({'strategy': 'fsdp', 'fsdp': -1}, (1, -1, 1, 1)),
        ({'strategy': 'tp', 'model': 4}, (1, 1, 4, 1)),
        ({'strategy': 'fsdp+tp'}, (1, -1, 2, 1)),
        ({'strategy': 'fsdp+tp', 'model': 4}, (1, -1, 4, 1)),
        ({'strategy': 'sp'}, (1, 1, 1, -1)),
    ],
)
def test_a_strategy_is_four_numbers(said, expected):
    edited = config.load(ROOT / 'configs' / 'base.py')
    config.override(edited, {f'mesh.{name}': value for name, value in said.items()})
    assert sharding.sizes(config.resolve(edited).mesh) == expected


def test_a_strategy_that_does_not_fit_the_devices_is_refused_by_its_name():
    with pytest.raises(UserError, match='fsdp=-1, model=2, seq=1, strategy=fsdp.tp.*devices, 1'):
        sharding.make_mesh(MeshConfig(-1, 1, 1, 1, strategy='fsdp+tp'), jax.devices()[:1])


def test_batch_rows_are_rounded_up_to_what_the_mesh_divides():
    mesh = jax.sharding.AbstractMesh((2, 3, 1, 1), sharding.AXES)
    assert [sharding.whole_rows(n, mesh) for n in (1, 6, 7, 12)] == [6, 6, 12, 12]


def test_the_axes_of_a_letter_are_divided_and_of_size_one_are_left_out():
    mesh = jax.sharding.AbstractMesh((2, 2, 2, 1), sharding.AXES)
    P = jax.sharding.PartitionSpec
    assert sharding.spec('BT', mesh, (8, 5), 'batch') == P(('data', 'fsdp'), None)
    assert sharding.spec('NDHK', mesh, (3, 4, 2, 5), 'query') == P(None, ('fsdp',), ('model',), None)
    only_data = jax.sharding.AbstractMesh((8, 1, 1, 1), sharding.AXES)
    assert sharding.spec('NDHK', only_data, (3, 4, 2, 5), 'query') == P(None, None, None, None)


def test_what_cannot_be_divided_is_refused_with_its_name_letter_and_size():
    mesh = jax.sharding.AbstractMesh((1, 1, 2, 1), sharding.AXES)
    with pytest.raises(
        UserError,
        match=r'^config.model.num_heads: decoder/q \[NDHK\]: H=3 is not divisible by config.mesh.model=2; make it 4',
    ):
        sharding.spec('NDHK', mesh, (3, 4, 3, 5), 'decoder/q')


def test_two_dimensions_that_want_one_axis_are_refused():
    mesh = jax.sharding.AbstractMesh((1, 1, 2, 1), sharding.AXES)
    with pytest.raises(UserError, match=r"x \[HF\].*'?model'?"):
        sharding.spec('HF', mesh, (2, 2), 'x')


@pytest.mark.parametrize('name', sorted(optim.DIRECTIONS))
def test_moments_lie_as_their_parameters(name):
    edited = config.load(ROOT / 'configs' / 'base.py')
    config.override(edited, {'optim.name': name, 'optim.weight_decay': 0.1, 'optim.clip_norm': 1.0})
    mesh = jax.sharding.AbstractMesh((1, 2, 1, 1), sharding.AXES)
    params = transformer.abstract_params(model_config(), 13)
    state = {'params': params, 'opt_state': jax.eval_shape(optim.build(config.resolve(edited)).init, params)}
    placed = sharding.of_state(state, mesh)
    flat = {sharding.path_name(path): leaf.spec for path, leaf in jax.tree_util.tree_flatten_with_path(placed)[0]}
    assert flat['opt_state/3/count'] == jax.sharding.PartitionSpec()
    moments = [name for name in flat if '/embedding' in name and name.startswith('opt_state')]
    assert moments
    for name in moments:
        assert flat[name] == flat['params/embedding'] == jax.sharding.PartitionSpec(None, ('fsdp',))


def test_eight_devices_start_and_compute_as_one_does():
    """Fresh parameters bit for bit, logits with dropout but for rounding; whole steps are compared in tests/train."""
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}
    result = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split('\n')[-2] == 'equal'


def compare_meshes():
    """Run in a process with eight virtual devices."""
    cfg = model_config(num_heads=2, num_kv_heads=2, d_ff=12, num_layers=1, decoder_layers=1, dropout__attention=0.2)
    model = transformer.build(cfg, 14)
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(4, 14, (8, length)).astype(np.int32) for name, length in (('source', 6), ('target', 4))}
    results = []
    for axes in ((1, 1, 1, 1), (2, 2, 2, 1)):
        mesh = sharding.make_mesh(MeshConfig(*axes, strategy=''), jax.devices()[: int(np.prod(axes))])
        layout = sharding.of_state(transformer.abstract_params(cfg, 14), mesh)
        params = jax.jit(lambda seed: transformer.init(model, seed), out_shardings=layout)(3)
        assert params['embedding'].addressable_shards[0].data.shape == (14 // axes[2], 16 // axes[1])
        placed = sharding.put_batch(batch, mesh)
        assert placed['source'].addressable_shards[0].data.shape == (8 // axes[0] // axes[1], 6)
        forward = jax.jit(lambda p, b, key_2: model.apply({'params': p}, b['source'], b['target'], key_2)[0])
        results.append(jax.device_get((params, forward(params, placed, jnp.array([1, 2], jnp.uint32)))))
    (params, logits), (other_params, other_logits) = results
    jax.tree.map(np.testing.assert_array_equal, params, other_params)
    np.testing.assert_allclose(logits, other_logits, atol=1e-4)
    print('equal')


if __name__ == '__main__':
    compare_meshes()


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'train.batch_size': 3}, 'config.train.batch_size=3'),
        ({'mesh.seq': 2, 'mesh.data': 1}, 'config.mesh.seq=2'),
    ],
)
def test_what_the_mesh_cannot_divide_is_refused_by_its_field(changes, named):
    class TwoDevices:
        shape = {'data': 2, 'fsdp': 1, 'model': 1, 'seq': 1} | ({'data': 1, 'seq': 2} if 'mesh.seq' in changes else {})

    edited = config.load(Path(__file__).parents[1] / 'configs' / 'tiny.py')
    config.override(edited, changes)
    with pytest.raises(UserError, match=named):
        sharding.refuse_undivided(config.resolve(edited), TwoDevices())
