"""Dropout by hashing: the right rate, no dependence between any two masks, the same on every layout of devices."""

import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model import ops

ZERO = jnp.zeros(2, jnp.uint32)


def key(*numbers):
    return ops.fold(ZERO, *numbers)


def kept(key_2, shape=(64, 1024), rate=0.5):
    """Boolean mask of what is kept."""
    return np.asarray(jax.jit(lambda k: ops.dropout(jnp.ones(shape), rate, k))(key_2)) > 0


def agreement(a, b):
    """Deviation of the share of equal places from 1/2, in standard errors, of two masks of rate 1/2."""
    return (np.mean(a == b) - 0.5) * 2 * np.sqrt(a.size)


@pytest.mark.parametrize('rate', [0.01, 0.1, 0.5, 0.9, 0.999])
def test_the_rate_is_the_rate(rate):
    size = 1_000_000
    zeros = size - kept(key(3), (1000, 1000), rate).sum()
    assert abs(zeros - rate * size) < 5 * np.sqrt(size * rate * (1 - rate))


def test_every_row_and_every_column_has_the_rate():
    mask = kept(key(1), (512, 512), 0.3)
    error = np.sqrt(0.3 * 0.7 / 512)
    for axis in (0, 1):
        deviation = (mask.mean(axis) - 0.7) / error
        assert np.abs(deviation).max() < 5 and 0.9 < deviation.std() < 1.1


def test_what_is_kept_is_scaled_so_that_the_mean_stays():
    x = jnp.linspace(1, 2, 7 * 9).reshape(7, 9)
    y = np.asarray(ops.dropout(x, 0.3, key(5)))
    np.testing.assert_allclose(y[y > 0], np.asarray(x)[y > 0] / 0.7, rtol=1e-6)
    assert 0 < (y == 0).sum() < y.size


def test_rate_zero_is_the_identity():
    x = jnp.linspace(-3, 3, 100)
    np.testing.assert_array_equal(ops.dropout(x, 0.0, key(5)), x)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_mask_does_not_depend_on_the_dtype_and_the_dtype_is_kept(dtype):
    y = ops.dropout(jnp.ones((33, 65), dtype), 0.4, key(2))
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.asarray(y, np.float32) > 0, kept(key(2), (33, 65), 0.4))


def test_masks_of_different_keys_are_independent():
    """Seeds, steps, layers and sites that are neighbours, or each other's mirror image, or longer by a zero."""
    keys = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 2, 3), (3, 2, 1), (2**31 - 1,), (1_000_000,)]
    masks = [kept(key(*numbers)) for numbers in keys]
    for (i, a), (j, b) in itertools.combinations(enumerate(masks), 2):
        assert abs(agreement(a, b)) < 5, (keys[i], keys[j])


def test_folding_in_turn_is_folding_at_once():
    np.testing.assert_array_equal(ops.fold(key(4, 5), 6, 7), key(4, 5, 6, 7))


def test_no_two_keys_of_a_training_run_are_equal():
    """Seeds × steps × (encoder, decoder) × layers × sites."""
    grid = itertools.product(range(3), range(40), range(2), range(6), range(6))
    numbers = jnp.array(list(grid), jnp.uint32)
    keys = np.asarray(jax.jit(jax.vmap(lambda row: ops.fold(ZERO, *row)))(numbers)).astype(np.uint64)
    assert len(np.unique(keys[:, 0] << np.uint64(32) | keys[:, 1])) == len(numbers)
    assert len(np.unique(keys[:, 0])) > 0.999 * len(numbers)  # each word by itself is well mixed


def test_places_of_one_mask_are_independent():
    """No correlation at any small distance along rows or columns, nor at powers of two, where a weak hash shows."""
    mask = kept(key(11), (1024, 1024))
    for axis, distance in itertools.product((0, 1), (1, 2, 3, 4, 8, 16, 64, 256, 512)):
        moved = np.roll(mask, distance, axis)
        assert abs(agreement(mask, moved)) < 5, (axis, distance)


def test_the_mask_is_not_the_same_along_any_axis():
    mask = kept(key(7), (2, 3, 16, 64))
    for axis in range(3):
        first, second = mask.take(0, axis), mask.take(1, axis)
        assert abs(agreement(first, second)) < 5


def test_the_backward_pass_uses_the_same_mask():
    x = jnp.linspace(1, 2, 200)
    y, back = jax.vjp(lambda x: ops.dropout(x, 0.5, key(8)), x)
    np.testing.assert_array_equal(np.asarray(back(jnp.ones(200))[0]), np.where(y > 0, 2.0, 0.0))


def test_the_mask_is_the_same_under_scan_and_vmap():
    keys = jnp.stack([key(i) for i in range(3)])
    x = jnp.ones((4, 5))
    alone = jnp.stack([ops.dropout(x, 0.5, k) for k in keys])
    np.testing.assert_array_equal(jax.vmap(lambda k: ops.dropout(x, 0.5, k))(keys), alone)
    np.testing.assert_array_equal(jax.lax.scan(lambda c, k: (c, ops.dropout(x, 0.5, k)), 0, keys)[1], alone)


def test_random_bits_are_uniform_in_every_bit_and_every_range():
    bits = np.asarray(jax.jit(lambda k: ops.random_bits(k, (1000, 1000)))(key(21)))
    assert bits.dtype == np.uint32
    for place in range(32):
        assert abs(((bits >> place) & 1).mean() - 0.5) < 5 * 0.5 / 1000, place
    counts = np.bincount((bits >> 22).ravel(), minlength=1024)  # χ² of 1,024 equal ranges: mean 1,023, sd √2,046
    chi_squared = ((counts - 1e6 / 1024) ** 2 / (1e6 / 1024)).sum()
    assert abs(chi_squared - 1023) < 5 * np.sqrt(2046)
    assert len(np.unique(bits)) > 1e6 - 3 * 1e12 / 2**33  # collisions as of a random function: n²/2³³ of them


def test_random_bits_depend_on_the_place_in_the_whole_array_and_not_on_its_shape():
    flat = ops.random_bits(key(2), (24,))
    np.testing.assert_array_equal(ops.random_bits(key(2), (4, 6)).ravel(), flat)
    np.testing.assert_array_equal(ops.random_bits(key(2), (2, 3, 4)).ravel(), flat)
    assert not np.any(flat == ops.random_bits(key(3), (24,)))


def test_eight_devices_draw_what_one_draws():
    program = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxformer.model import ops
mesh = jax.make_mesh((2, 4), ('a', 'b'), axis_types=(AxisType.Auto,) * 2)
x = jnp.arange(1.0, 8 * 12 * 4 + 1).reshape(8, 12, 4)
drop = jax.jit(lambda x: ops.dropout(x, 0.4, ops.fold(jnp.zeros(2, jnp.uint32), 1, 2)))
one = drop(x)
assert len(jax.devices()) == 8 and len(one.sharding.device_set) == 1
for spec in (('a', 'b'), ('b', None, 'a'), (None, 'a'), (('a', 'b'),)):
    many = drop(jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec))))
    assert len(many.sharding.device_set) == 8
    np.testing.assert_array_equal(many, one)
"""
    flags = '--xla_force_host_platform_device_count=8'
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags}
    subprocess.run([sys.executable, '-c', program], env=environment, check=True)
