"""Kernels for accelerators have the numbers of plain attention, or give way to one that has and say why.

No accelerator is at hand: the Pallas kernel and splash attention are interpreted, and that they can be compiled is seen
as far as a CPU can see it, in what is lowered for a GPU and a TPU.
"""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import space
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer.model import devices, flash, kernels, library, ops
from jaxformer.model.context import Draw
from jaxformer.model.masks import Sight
from jaxformer.model.view import SCORES, View

B, T, S, H, G = 3, 13, 13, 4, 2
KEY_2 = ops.fold(jnp.zeros(2, jnp.uint32), 5)
KEYS = np.arange(S) < np.array([S, 6, 0])[:, None]  # of one text no key is real
DOCUMENTS = jnp.asarray(np.sort(np.random.default_rng(3).integers(1, 4, (B, S)), axis=1))
SIGHTS = {
    'all': Sight(),
    'padding': Sight(jnp.asarray(KEYS)),
    'causal': Sight(causal=True),
    'causal, later': Sight(start=3, causal=True),
    'documents': Sight(jnp.asarray(KEYS), DOCUMENTS, causal=True),
}


def draw(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def design(**changes):
    names = {'d_model': 8, 'num_heads': H, 'num_kv_heads': G, 'd_k': 6, 'd_v': 5, 'attention.block': 4}
    names |= {name.replace('__', '.'): value for name, value in changes.items()}
    return space.resolved({f'model.{name}': value for name, value in names.items()}).model


def inputs(cfg, sight, rate=0.0, own=True, length=T, rows=B, **more):
    """(q, k, v, learned) and the view."""
    q, k = draw(rows, length, cfg.num_heads, cfg.d_k), draw(rows, S, cfg.num_kv_heads, cfg.d_k, seed=1)
    learned = {
        'score': draw(H, cfg.d_k, seed=4) if cfg.attention.score == 'additive' else None,
        'table': draw(cfg.relative.num_buckets, H, seed=5) if cfg.position == 't5_relative' else None,
    }
    at = (
        jnp.arange(S)[None]
        if sight.segment_BT is None
        else jnp.asarray(np.arange(S)[None] * np.array([1, 1, 2, 1])[:rows, None])
    )
    dropout = Draw(more.get('key_2', KEY_2), rate) if rate else Draw()
    view = View(sight, dropout, more.get('layer', 0), at[:, :length], at, own=own, causal=sight.causal)
    return (q, k, draw(rows, S, cfg.num_kv_heads, cfg.d_v, seed=2), learned), view


def plain(cfg, q, k, v, learned, view):
    scores = SCORES[cfg.attention.score](cfg, q, k, learned['score'])
    bias = view.bias(cfg, learned['table'], q.shape[1], k.shape[1])
    scores = scores if bias is None else scores + bias
    return ops.attend(scores, v, view.mask(cfg, q.shape[1], k.shape[1]), dropout=view.dropout)[0]


def graded(function, arrays, view):
    """(y, gradients) of a sum with weights of its own at every output."""

    def total(arrays, view):
        y = function(*arrays, view)
        return jnp.sum(y * draw(*y.shape, seed=9)), y

    (_, y), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(arrays, view)
    return y, gradients


def check(function, cfg, arrays, view):
    y, gradients = graded(function, arrays, view)
    expected, expected_gradients = graded(lambda *arrays: plain(cfg, *arrays), arrays, view)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=2e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradients, expected_gradients)
    none = ~np.any(
        np.broadcast_to(view.mask(cfg, y.shape[1], arrays[1].shape[1]), (len(y), 1, y.shape[1], arrays[1].shape[1])),
        axis=-1,
    )[:, 0]
    assert not np.any(np.asarray(y)[none]) and np.all(np.any(np.asarray(y)[~none], axis=(1, 2)))


# The kernel of our own

KERNELS = {
    'grouped heads, d_v': ({}, 'padding', {}),
    'one group': ({'num_kv_heads': 1, 'd_v': 19, 'attention__block': 64}, 'all', {}),
    'causal': ({'attention__block': 2}, 'causal', {}),
    'later': ({'attention__score': 'dot'}, 'causal, later', {'length': 7}),
    'cross': ({}, 'padding', {'own': False, 'length': 3}),
    'dropout': ({'attention__block': 8}, 'documents', {'rate': 0.3}),
    'dropout of a part of a batch': ({}, 'all', {'rate': 0.3, 'key_2': jnp.concatenate([KEY_2, KEY_2 * 0 + 2])}),
    'additive': ({'attention__score': 'additive'}, 'causal', {'rate': 0.2}),
    'alibi': ({'position': 'alibi', 'attention__pattern': 'local', 'attention__window': 2}, 'documents', {}),
    't5': ({'position': 't5_relative', 'relative__num_buckets': 6, 'relative__max_distance': 7}, 'padding', {}),
    't5, causal': ({'position': 't5_relative', 'relative__num_buckets': 5}, 'documents', {}),
    'global': ({'attention__pattern': 'global_local', 'attention__global_positions': (1, 9)}, 'causal', {}),
    'window2d': (
        {'attention__pattern': 'window2d', 'attention__window': 2, 'attention__shift': 1, 'attention__grid_width': 3},
        'padding',
        {'layer': jnp.int32(3)},
    ),
}


@pytest.fixture
def warnings(monkeypatch):
    """The sentences that are logged."""
    said = []
    monkeypatch.setattr(kernels.logging, 'warning', lambda text, *values: said.append(text % values))
    kernels._give_way.cache_clear()
    return said


@pytest.fixture
def platform(monkeypatch):
    return lambda name: monkeypatch.setattr(flash, 'PLATFORM', name)


@pytest.mark.parametrize('name', KERNELS)
def test_the_pallas_kernel_has_the_numbers_of_plain_attention(platform, name):
    changes, sight, more = KERNELS[name]
    platform('interpret')
    cfg = design(**changes)
    arrays, view = inputs(cfg, SIGHTS[sight], **more)
    assert flash.refusal(cfg, None, *arrays[1:3]) is None
    check(lambda *arrays: kernels.attention('pallas', cfg, None, *arrays), cfg, arrays, view)


@pytest.mark.parametrize('name', KERNELS)
@pytest.mark.parametrize(('target', 'compiler'), [('gpu', '__gpu$xla.gpu.triton'), ('tpu', 'tpu_custom_call')])
def test_the_pallas_kernel_is_lowered_for_accelerators(platform, name, target, compiler):
    changes, sight, more = KERNELS[name]
    platform(target)
    cfg = design(**changes)
    arrays, view = inputs(cfg, SIGHTS[sight], **more)
    for dtype in (jnp.float32, jnp.bfloat16):
        arrays = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), arrays)
        traced = jax.jit(lambda arrays, view: flash.attention(cfg, None, *arrays, view)).trace(arrays, view)
        assert compiler in traced.lower(lowering_platforms=({'gpu': 'cuda'}.get(target, target),)).as_text()


# Libraries

TAKEN = {
    'grouped heads': ({}, 'padding', {}),
    'later': ({'attention__score': 'dot'}, 'causal, later', {'length': 7}),
    'cross': ({'position': 'alibi'}, 'padding', {'own': False, 'length': 3}),
    't5': ({'position': 't5_relative', 'attention__pattern': 'local'}, 'documents', {}),
}


@pytest.mark.parametrize('name', TAKEN)
def test_what_a_library_takes_has_the_numbers_of_plain_attention(name, warnings):
    changes, sight, more = TAKEN[name]
    cfg = design(d_v=6, **changes)
    arrays, view = inputs(cfg, SIGHTS[sight], **more)
    check(lambda *arrays: kernels.attention('library', cfg, None, *arrays), cfg, arrays, view)
    assert not warnings


@pytest.mark.parametrize('name', SIGHTS)
def test_splash_attention_has_the_numbers_of_plain_attention(name):
    """Two blocks of queries and of keys."""
    cfg, length, sight = design(num_heads=2, num_kv_heads=1, d_v=6), 2 * library.LANES, SIGHTS[name]
    long = lambda rows: None if rows is None else jnp.repeat(rows, 20, axis=1)[:, :length]  # noqa: E731
    sight = sight.replace(valid_BS=long(sight.valid_BS), segment_BT=long(sight.segment_BT))
    q, k, v = (draw(B, length, heads, 6, seed=heads) for heads in (2, 1, 1))

    def run(q, k, v, learned, view):
        return library.attention('splash', cfg, None, q, k, v, learned, View(sight, Draw()))

    check(run, cfg, (q, k, v, {'score': None, 'table': None}), View(sight, Draw()))


# Giving way

GIVING_WAY = {  # (kernel, backend, devices) → changes, the sentence
    'd_v': ('library', 'cpu', {}, 'library: blockwise instead, with the same numbers, for model.d_v=5'),
    'additive': ('library', 'gpu', {'d_v': 6, 'attention__score': 'additive'}, 'for model.attention.score=additive'),
    'dropout': ('library', 'tpu', {'d_v': 6, 'dropout__attention': 0.2}, 'for model.dropout.attention=0.2'),
    'float32': (
        'library',
        'gpu',
        {'d_v': 6},
        'library: xla instead, with the same numbers, for model.precision.compute',
    ),
    'lanes': ('library', 'tpu', {'d_v': 6}, 'library: xla instead, with the same numbers, for 13 queries and 13 keys'),
    'bias': ('library', 'tpu', {'d_v': 6, 'position': 'alibi'}, 'for model.position=alibi'),
    'pattern': ('library', 'tpu', {'d_v': 6, 'attention__pattern': 'local'}, 'for model.attention.pattern=local'),
    'cpu': ('pallas', 'cpu', {}, 'pallas: blockwise instead, with the same numbers, for a CPU'),
    'far': (
        'pallas',
        'gpu',
        {'position': 't5_relative', 'relative__max_distance': 2**17},
        'for model.relative.max_distance=131072',
    ),
}


@pytest.mark.parametrize('name', GIVING_WAY)
def test_who_gives_way_says_once_why_and_has_the_same_numbers(monkeypatch, warnings, name):
    kernel, backend, changes, sentence = GIVING_WAY[name]
    monkeypatch.setattr(jax, 'default_backend', lambda: backend)
    cfg = design(**changes)
    arrays, view = inputs(cfg, SIGHTS['documents'], cfg.dropout.attention)
    for _ in range(2):
        y = kernels.attention(kernel, cfg, None, *arrays, view)
    np.testing.assert_allclose(y, plain(cfg, *arrays, view), rtol=1e-5, atol=2e-6)
    assert len(warnings) == 1 and sentence in warnings[0]


@pytest.mark.parametrize(('changes', 'reason'), [
    ({'d_k': 12}, 'model.d_k=12: cuDNN takes multiples of 8'),
    ({'d_k': 8, 'position': 't5_relative'}, 'model.position=t5_relative'),
    ({'d_k': 8}, '13 queries and 13 keys: cuDNN takes even lengths'),
])  # fmt: skip
def test_cudnn_is_not_asked_for_what_it_refuses(monkeypatch, changes, reason):
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    cfg = design(d_v=changes['d_k'], **changes)
    (q, k, _, _), view = inputs(cfg, SIGHTS['all'])
    found, why = library.implementation(cfg, None, q.astype(jnp.bfloat16), k.astype(jnp.bfloat16), view)
    assert found == 'xla' and why.startswith(reason)


# On a mesh


def compare():
    """Run in a process with eight devices: two by two along the batch, two along heads."""
    mesh = jax.make_mesh((2, 2, 2, 1), ('data', 'fsdp', 'model', 'seq'), axis_types=(AxisType.Auto,) * 4)
    place = NamedSharding(mesh, PartitionSpec(('data', 'fsdp'), None, 'model'))
    placed = lambda arrays: (*(jax.device_put(rows, place) for rows in arrays[:3]), arrays[3])  # noqa: E731
    whole = lambda rows: jnp.concatenate([rows, rows[:1]])  # noqa: E731
    sight = Sight(whole(jnp.asarray(KEYS)), whole(DOCUMENTS), causal=True)

    flash.PLATFORM = 'interpret'
    cfg = design(position='t5_relative', dropout__attention=0.3)
    arrays, view = inputs(cfg, sight, 0.3, rows=4)
    run = lambda *arrays: kernels.attention('pallas', cfg, mesh, *arrays)  # noqa: E731
    check(run, cfg, placed(arrays), view)
    text = jax.jit(run).lower(*placed(arrays), view).compile().as_text()
    assert 'f32[1,2,' in text and not re.search(r'f32\[4,4,\d+,\d+\]', text)  # each has its row and its two heads

    long = lambda rows: jnp.repeat(rows, 10, axis=1)[:, : library.LANES]  # noqa: E731
    sight = Sight(long(sight.valid_BS), long(sight.segment_BT), causal=True)
    cfg = design(d_v=6)
    q, k, v = (draw(4, library.LANES, heads, 6, seed=heads) for heads in (H, G, G))

    def splash(q, k, v, learned, view):
        return library.attention('splash', cfg, mesh, q, k, v, learned, View(sight, Draw()))

    check(splash, cfg, placed((q, k, v, {'score': None, 'table': None})), View(sight, Draw()))
    assert devices.refusal(mesh, 6, 2).startswith('mesh.data and mesh.fsdp, which divide 6 rows')
    assert devices.refusal(mesh, 8, 3).startswith('mesh.model=2, which does not divide model.num_kv_heads=3')
    print('equal')


def test_each_device_of_a_mesh_has_the_kernel_for_its_rows_and_heads():
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == 'equal'


if __name__ == '__main__':
    compare()
