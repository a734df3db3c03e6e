"""Positions against formulas written out in NumPy and the published numbers."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model import ops, positions

B, T, H, K = 2, 5, 3, 6
X = np.random.default_rng(0).standard_normal((B, T, H, K)).astype(np.float32)
LAYOUTS = ('halves', 'interleaved')


def turned_by_hand(x, position, base, layout):
    """Su et al. 2021, eq. 12 to 16: pairs of columns as complex numbers, times e^(i m θ), θ = base^(−2i/K)."""
    K = x.shape[-1]
    first = np.arange(K // 2) if layout == 'halves' else np.arange(0, K, 2)
    second = first + (K // 2 if layout == 'halves' else 1)
    z = x[..., first] + 1j * x[..., second].astype(np.float64)
    angle = np.asarray(position, np.float64)[:, :, None, None] * base ** (-2 * np.arange(K // 2) / K)
    z = z * np.exp(1j * angle)
    y = np.zeros(x.shape)
    y[..., first], y[..., second] = z.real, z.imag
    return y


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('base', [10_000.0, 7.0])
def test_rotary_turns_pairs_of_columns_as_complex_numbers(layout, base):
    position = np.array([[0, 1, 2, 3, 4], [7, 100, 3, 0, 1000]])
    found = ops.rotary(jnp.asarray(X), jnp.asarray(position), base, layout)
    np.testing.assert_allclose(found, turned_by_hand(X, position, base, layout), atol=2e-4)  # 1000 radians in float32
    other = LAYOUTS[1 - LAYOUTS.index(layout)]
    assert not np.allclose(found, turned_by_hand(X, position, base, other), atol=0.1)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_rotary_makes_products_depend_on_the_distance_alone(layout):
    q, k = X[:1, :1], X[1:, 1:2]

    def product(i, j):
        at = lambda x, p: ops.rotary(jnp.asarray(x), jnp.array([[p]]), 100.0, layout)  # noqa: E731
        return np.asarray(jnp.einsum('BTHK,BTHK->H', at(q, i), at(k, j)))

    for i, j in ((3, 1), (2, 7), (0, 0)):
        np.testing.assert_allclose(product(i, j), product(i + 50, j + 50), atol=1e-4)
    assert not np.allclose(product(3, 1), product(1, 3), atol=0.1) and not np.allclose(product(3, 1), product(4, 1))


@pytest.mark.parametrize('layout', LAYOUTS)
def test_rotary_by_an_offset_is_a_part_of_a_longer_rotation(layout):
    """B11: length 4 at 0, then at 7, then at 0 again, by one compiled program."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, 11, H, K)), jnp.float32)
    turn = jax.jit(lambda x, start: ops.rotary(x, start + jnp.arange(x.shape[1])[None], 10_000.0, layout))
    whole = turn(x, 0)
    first, second, third = turn(x[:, :4], 0), turn(x[:, 7:], 7), turn(x[:, :4], 0)
    np.testing.assert_allclose(second, whole[:, 7:], atol=1e-6)
    np.testing.assert_array_equal(first, third)
    np.testing.assert_allclose(first, whole[:, :4], atol=1e-6)
    assert not np.allclose(turn(x[:, 7:], 0), second, atol=0.1)


def test_rotary_keeps_the_dtype_and_turns_in_float32():
    x, position = jnp.asarray(X, jnp.bfloat16), jnp.array([[0, 1, 500, 501, 502]])
    found = ops.rotary(x, position, 10_000.0, 'halves')
    assert found.dtype == jnp.bfloat16
    exact = ops.rotary(x.astype(jnp.float32), position, 10_000.0, 'halves')
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def slopes_of_the_paper(H):
    """get_slopes as the authors of ALiBi published it (Press et al. 2022)."""

    def of_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(H).is_integer():
        return of_power_of_2(H)
    closest = 2 ** math.floor(math.log2(H))
    return of_power_of_2(closest) + slopes_of_the_paper(2 * closest)[0::2][: H - closest]


@pytest.mark.parametrize('H', range(1, 21))
def test_alibi_slopes_are_those_of_the_paper(H):
    found = ops.alibi_slopes(H)
    assert found.shape == (H,) and len(set(found.tolist())) == H
    np.testing.assert_allclose(found, slopes_of_the_paper(H), rtol=1e-6)


def test_alibi_slopes_of_eight_and_twelve_heads():
    """8: the sequence 1/2 … 1/256 of the paper's section 3; 12: four of the sixteen between them besides."""
    eight = [2.0**-i for i in range(1, 9)]
    np.testing.assert_array_equal(ops.alibi_slopes(8), eight)
    np.testing.assert_allclose(ops.alibi_slopes(12), [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-6)


def test_alibi_falls_with_the_distance_in_both_directions(make_config):
    cfg = make_config(position='alibi')
    bias = positions.Alibi.bias(cfg, None, jnp.array([[4, 9]]), jnp.array([[3, 4, 5, 6]]), True)
    assert bias.shape == (1, 3, 2, 4) and bias.dtype == jnp.float32
    expected = -np.asarray(slopes_of_the_paper(3))[:, None, None] * np.array([[1, 0, 1, 2], [6, 5, 4, 3]])
    np.testing.assert_allclose(bias[0], expected, rtol=1e-6)


def bucket_by_hand(distance, num_buckets, max_distance, causal):
    """Raffel et al. 2020, 2.1, by rational numbers: bucket `exact + j` begins at exact · (max / exact)^(j / far)."""
    first = 0
    if not causal:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
    behind = abs(distance) if not causal else max(-distance, 0)
    exact = num_buckets // 2
    if behind < exact:
        return first + behind
    far = num_buckets - exact
    grown, whole = Fraction(behind, exact) ** far, Fraction(max_distance, exact)
    return first + exact + max(j for j in range(far) if grown >= whole**j)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize(('num_buckets', 'max_distance'), [(32, 128), (32, 100), (16, 64), (7, 11), (4, 9), (5, 3)])
def test_relative_buckets_are_exact_then_logarithmic_then_one(num_buckets, max_distance, causal):
    distance = np.arange(-300, 301)
    found = np.asarray(jax.jit(lambda d: ops.relative_buckets(d, num_buckets, max_distance, causal))(distance))
    expected = [bucket_by_hand(int(d), num_buckets, max_distance, causal) for d in distance]
    np.testing.assert_array_equal(found, expected)
    assert found.min() == 0 and found.max() == (num_buckets if causal else num_buckets // 2 * 2) - 1


@pytest.mark.parametrize(('tables', 'rows'), [('shared', 1), ('per_layer', 4)])
def test_relative_bias_is_the_row_of_the_bucket_by_head_and_layer(make_config, tables, rows):
    sizes = {'relative__num_buckets': 7, 'relative__max_distance': 9}
    cfg = make_config(position='t5_relative', relative__tables=tables, **sizes)
    table = jnp.asarray(np.random.default_rng(0).standard_normal((rows, 7, 3)), jnp.float32)
    query, key = np.array([[3, 8]]), np.array([[0, 3, 4, 20]])
    params = {'params': {'relative_bias': table}}
    found = positions.T5Relative(cfg, 4, False).apply(params, method='tables')
    assert len(found) == rows
    bias = np.stack([positions.T5Relative.bias(cfg, of_layer, query, key, False) for of_layer in found])
    assert bias.shape == (rows, 1, 3, 2, 4)
    for layer in range(rows):
        for t, s in np.ndindex(2, 4):
            bucket = bucket_by_hand(int(key[0, s] - query[0, t]), 7, 9, causal=False)
            np.testing.assert_array_equal(bias[layer, 0, :, t, s], table[layer, bucket])


def test_sinusoids_in_halves_are_the_interleaved_ones_in_another_order():
    for D in (6, 7):
        position = jnp.arange(50)
        interleaved, halves = ops.sinusoids(position, D), ops.sinusoids(position, D, 'halves')
        np.testing.assert_array_equal(halves, jnp.concatenate([interleaved[:, ::2], interleaved[:, 1::2]], axis=1))


@pytest.mark.parametrize('kind', sorted(positions.POSITIONS))
def test_what_a_kind_does_not_do_is_the_identity(make_config, kind):
    """Sinusoidal and learned positions are in the embeddings, rotary in queries and keys, the others in the scores."""
    cfg = make_config(position=kind)
    module = positions.POSITIONS[kind](cfg, 2, False)
    x, at = jnp.ones((1, T, 16)), jnp.arange(T)[None]
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), x, at, method='embed')).get('params', {})
    assert bool(params) == (kind in ('learned', 't5_relative'))
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), params)
    embedded = module.apply({'params': params}, x, at, method='embed')
    assert bool(jnp.any(embedded != x)) == (kind in ('sinusoidal', 'learned'))
    rotated = positions.POSITIONS[kind].rotate(cfg, jnp.asarray(X), jnp.arange(T)[None])
    assert bool(jnp.any(rotated != X)) == (kind == 'rotary')
    tables = module.apply({'params': params}, method='tables')
    bias = positions.POSITIONS[kind].bias(cfg, None if tables is None else tables[0], at, at, False)
    assert (bias is not None) == (kind in ('alibi', 't5_relative'))
