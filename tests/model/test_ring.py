"""Attention over a ring of devices has the numbers of plain attention, and a share of its memory."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer import config, sharding
from jaxformer.model import ops, ring, transformer
from jaxformer.model.blockwise import Look
from jaxformer.model.masks import Sight

B, T, H, G, K, E = 4, 24, 4, 2, 6, 5


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def compare():
    """Run in a process with eight devices: two along the batch, four along the ring."""
    mesh = jax.make_mesh((2, 4), ('data', 'seq'), axis_types=(AxisType.Auto,) * 2)
    arrays = draw(B, T, H, K), draw(B, T, G, K, seed=1), draw(B, T, G, E, seed=2), draw(H, T, T, seed=3)
    place = NamedSharding(mesh, PartitionSpec('data', 'seq'))
    placed = (*(jax.device_put(rows, place) for rows in arrays[:3]), arrays[3])
    weights = draw(B, T, H, E, seed=9)
    key_2 = ops.fold(jnp.zeros(2, jnp.uint32), 5)
    keys = np.arange(T) < np.array([T, 7, 0, 13])[:, None]  # whole shares are padding, and of one text everything

    def graded(attend):
        def total(q, k, v, bias):
            y = attend(q, k, v, bias)
            return jnp.sum(y * weights), y

        return jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))

    for causal in (False, True):
        for rate in (0.0, 0.3):
            sight = Sight(jnp.asarray(keys), causal=causal)

            def plain(q, k, v, bias, sight=sight, rate=rate):
                drop = lambda p: ops.dropout(p, rate, key_2)  # noqa: E731
                return ops.attend(ops.dot_scores(q, k, 0.4) + bias, v, sight.mask(T, T), dropout=drop)[0]

            def scores(q, k, query_T, key_S, bias, given):
                rows = jnp.take(bias, query_T, axis=1, mode='clip')
                return ops.dot_scores(q, k, 0.4) + jnp.take(rows, key_S, axis=2, mode='clip')

            def drop(p, origin, whole, given, rate=rate):
                return ops.dropout(p, rate, key_2, origin, whole)

            look = Look(scores, lambda query_T, key_S, sight: sight.mask(query_T, key_S), drop, 4)
            around = lambda q, k, v, bias, look=look, sight=sight: ring.attention(  # noqa: E731
                look, mesh, q, k, v, bias, sight
            )
            (_, expected), gradients = graded(plain)(*arrays)
            (_, y), found = graded(around)(*placed)
            assert y.sharding.is_equivalent_to(place, y.ndim), y.sharding
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
            assert not np.any(np.asarray(y)[2])
            for one, other in zip(found, gradients, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    compare_models()
    print('equal', temporary(8) < 0.35 * temporary(2))  # of what grows with the length, a quarter


def compare_models():
    """Logits and gradients of a whole model whose positions are divided, against one device and plain attention."""
    model_cfg = {
        'd_model': 16, 'num_heads': 4, 'num_kv_heads': 2, 'd_k': 4, 'd_v': 6, 'd_ff': 12, 'num_layers': 2,
        'position': 't5_relative', 'attention.pattern': 'global_local', 'attention.score': 'additive',
        'dropout.attention': 0.2, 'vocab_size': 0, 'attention.block': 4,
    }  # fmt: skip
    rng = np.random.default_rng(1)
    source, target = (jnp.asarray(rng.integers(5, 20, (4, length)), jnp.int32) for length in (24, 16))
    source, target = source.at[1, 5:].set(0), target.at[2, 3:].set(0)
    found = []
    for kernel, sizes in (('plain', (1, 1, 1, 1)), ('blockwise', (2, 1, 1, 4))):
        edited = config.load(Path(__file__).parents[2] / 'configs' / 'base.py')
        config.override(edited, {f'model.{name}': value for name, value in model_cfg.items()})
        config.override(edited, {'model.attention.kernel': kernel})
        config.override(edited, {f'mesh.{axis}': size for axis, size in zip(sharding.AXES, sizes, strict=True)})
        cfg = config.resolve(edited)
        mesh = sharding.make_mesh(cfg.mesh, jax.devices()[: int(np.prod(sizes))])
        model = transformer.build(cfg.model, 20, mesh=mesh)
        params = transformer.init(transformer.build(cfg.model, 20), 3)

        def total(params, source, target, model=model):
            logits, _ = model.apply({'params': params}, source, target, key_2=jnp.array([1, 2], jnp.uint32))
            return jnp.sum(jnp.sin(logits)), logits

        rows = NamedSharding(mesh, PartitionSpec('data', 'seq'))
        step = jax.jit(jax.value_and_grad(total, has_aux=True), in_shardings=(None, rows, rows))
        text = step.lower(params, source, target).compile().as_text()
        assert ('collective-permute' in text) == (kernel == 'blockwise')
        (_, logits), gradients = step(params, source, target)
        found.append((np.asarray(logits), jax.device_get(gradients)))
    (logits, gradients), (other_logits, other_gradients) = found
    np.testing.assert_allclose(other_logits, logits, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), other_gradients, gradients)


def temporary(devices):
    """Bytes of each device for forward and backward at length 4096, as the compiler says."""
    mesh = jax.make_mesh((devices,), ('seq',), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    rows = jax.ShapeDtypeStruct((1, 4096, 1, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, 'seq')))
    look = Look(
        lambda q, k, query_T, key_S, learned, given: ops.dot_scores(q, k, 0.1),
        lambda query_T, key_S, given: Sight(causal=True).mask(query_T, key_S),
        None,
        128,
    )
    total = lambda *qkv: jnp.sum(ring.attention(look, mesh, *qkv, None, None))  # noqa: E731
    return jax.jit(jax.grad(total, (0, 1, 2))).lower(rows, rows, rows).compile().memory_analysis().temp_size_in_bytes


def test_around_a_ring_values_and_gradients_are_those_of_plain_attention():
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == 'equal True'


if __name__ == '__main__':
    compare()
