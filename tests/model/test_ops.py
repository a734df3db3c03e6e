"""The pure functions of the model against NumPy, JAX and Flax, and their behaviour where masks leave nothing."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxformer.model import ops

B, T, S, H, K, E = 2, 4, 6, 6, 5, 7


def qkv(G=H, E=E, T=T, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((B, T, H, K), (B, S, G, K), (B, S, G, E)))


def some_mask():
    """[B, H, T, S] with every row allowing something."""
    mask = np.random.default_rng(9).random((B, H, T, S)) < 0.5
    mask[..., 2] = True
    return mask


def attention_by_hand(q, k, v, mask, scale):
    """softmax(q kᵀ · scale) v in float64, one head at a time; query head h reads key head h // (H / G)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    y = np.zeros((*q.shape[:3], v.shape[-1]))
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            scores = scale * q[b, :, h] @ k[b, :, h // group].T
            y[b, :, h] = scipy.special.softmax(np.where(mask[b, h], scores, -np.inf), axis=-1) @ v[b, :, h // group]
    return y


# Masks


@pytest.mark.parametrize('offset', [0, 3])
def test_causal_mask_shows_the_keys_up_to_the_query(offset):
    mask = ops.causal_mask(3, 7, offset)
    assert mask.shape == (1, 1, 3, 7)
    for i in range(3):
        for j in range(7):
            assert mask[0, 0, i, j] == (j <= i + offset)
    np.testing.assert_array_equal(jax.jit(lambda o: ops.causal_mask(3, 7, o))(offset), mask)


def test_masked_softmax_is_softmax_among_what_is_allowed():
    scores = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    mask = np.random.default_rng(1).random((3, 8)) < 0.6
    found = ops.masked_softmax(scores, mask, jnp.float32)
    np.testing.assert_allclose(found, scipy.special.softmax(np.where(mask, scores, -np.inf), axis=-1), rtol=1e-5)
    assert not np.any(np.asarray(found)[~mask])


@pytest.mark.parametrize('value', [1e4, -1e4, 3e38, -3e38])
def test_masked_softmax_of_extreme_scores_is_finite_and_sums_to_one(value):
    scores = jnp.array([[value, value, 0.0]])
    weights, gradient = jax.value_and_grad(lambda s: ops.masked_softmax(s, True, jnp.float32)[0, 0])(scores)
    assert np.isfinite(weights) and np.all(np.isfinite(gradient))
    np.testing.assert_allclose(ops.masked_softmax(scores, True, jnp.float32).sum(), 1)


def test_a_hidden_score_has_no_effect_even_where_it_is_not_finite():
    scores, mask = jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[True, True, False]])
    for hidden in (jnp.inf, jnp.nan, 3e38):
        np.testing.assert_array_equal(
            ops.masked_softmax(scores.at[0, 2].set(hidden), mask, jnp.float32),
            ops.masked_softmax(scores, mask, jnp.float32),
        )


def test_a_score_that_is_not_a_number_stays_visible():
    assert np.isnan(ops.masked_softmax(jnp.array([[jnp.nan, 1.0]]), True, jnp.float32)).all()


def test_no_keys_at_all_gives_an_empty_row():
    assert ops.masked_softmax(jnp.zeros((2, 0)), jnp.zeros((2, 0), bool), jnp.float32).shape == (2, 0)


@pytest.mark.parametrize(
    ('dtype', 'softmax_dtype'),
    [('float32', 'float32'), ('bfloat16', 'float32'), ('bfloat16', 'bfloat16'), ('float16', 'float16')],
)
def test_a_row_that_may_see_nothing_is_zero_and_harms_no_other(dtype, softmax_dtype):
    """B01: attention where row 1 of example 0 is masked everywhere."""
    whole = jnp.asarray(some_mask())

    def attend(qkv, mask):
        q, k, v = qkv
        y, _ = ops.attend(ops.dot_scores(q, k, K**-0.5), v, mask, softmax_dtype=jnp.dtype(softmax_dtype))
        return jnp.sum(jnp.cos(y.astype(jnp.float32))), y.astype(jnp.float32)

    run = jax.jit(jax.value_and_grad(attend, has_aux=True))
    (_, y), gradients = run(qkv(dtype=dtype), whole.at[0, :, 1].set(False))
    (_, expected), _ = run(qkv(dtype=dtype), whole)
    assert np.all(np.isfinite(y)) and not np.any(y[0, 1]) and np.any(expected[0, 1])
    others = np.ones((B, T), bool)
    others[0, 1] = False
    np.testing.assert_allclose(np.asarray(y)[others], np.asarray(expected)[others], atol=1e-6)
    assert all(np.all(np.isfinite(np.asarray(g, np.float32))) for g in gradients)
    assert not np.any(gradients[0][0, 1]) and np.any(gradients[0][1, 1])  # its query learns nothing


# Attention


@pytest.mark.parametrize('G', [1, 3, 6])
@pytest.mark.parametrize('scale', [None, 1.0])
def test_attention_is_equation_1_head_by_head(G, scale):
    q, k, v = qkv(G)
    mask = some_mask()
    y, weights = ops.scaled_dot_product_attention(q, k, v, jnp.asarray(mask), scale=scale)
    assert y.shape == (B, T, H, E) and weights.shape == (B, H, T, S)
    expected = attention_by_hand(q, k, v, mask, K**-0.5 if scale is None else scale)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize('G', [2, 6])
def test_attention_agrees_with_that_of_jax(G):
    q, k, v = qkv(G, E=K)
    mask = jnp.asarray(some_mask())
    y, _ = ops.scaled_dot_product_attention(q, k, v, mask)
    np.testing.assert_allclose(y, jax.nn.dot_product_attention(q, k, v, mask=mask), atol=1e-5)


def test_weights_are_returned_as_they_were_before_dropout():
    q, k, v = qkv()
    mask = jnp.asarray(some_mask())
    y, weights = ops.attend(ops.dot_scores(q, k, 1.0), v, mask, dropout=lambda w: 0 * w)
    assert not np.any(y)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_half_precision_accumulates_scores_and_softmax_in_float32():
    q, k = jnp.full((1, 2, 1, 4096), 0.25, jnp.float16), jnp.ones((1, 3, 1, 4096), jnp.float16)
    v = qkv(dtype=jnp.float16)[2][:1, :3, :1]
    q = q.at[:, :, :, 0].set(100.0)
    scores = ops.dot_scores(q, k, 1.0)
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, 100 + 4095 * 0.25)  # 1123.75 needs more than the 11 bits of float16
    y, weights = ops.scaled_dot_product_attention(q, k, v, jnp.ones((1, 1, 1, 1), bool))
    assert weights.dtype == jnp.float32 and y.dtype == jnp.float16


# Norms


@pytest.mark.parametrize('epsilon', [1e-6, 0.3])
def test_norms_are_those_of_flax(epsilon):
    x = 2 + 3 * jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 9)), jnp.float32)
    scale, bias = jnp.linspace(0.5, 2, 9), jnp.linspace(-1, 1, 9)
    layer_norm = nn.LayerNorm(epsilon=epsilon).apply({'params': {'scale': scale, 'bias': bias}}, x)
    rms_norm = nn.RMSNorm(epsilon=epsilon).apply({'params': {'scale': scale}}, x)
    np.testing.assert_allclose(ops.layer_norm(x, scale, bias, epsilon), layer_norm, atol=1e-5)
    np.testing.assert_allclose(ops.rms_norm(x, scale, epsilon), rms_norm, atol=1e-5)


def test_norms_keep_the_dtype_and_compute_in_float32():
    x = jnp.asarray(300 + np.arange(9.0)[None, None], jnp.bfloat16)
    ones = jnp.ones(9, jnp.bfloat16)
    for found, exact in (
        (ops.layer_norm(x, ones, 0 * ones, 1e-6), ops.layer_norm(x.astype(jnp.float32), ones, 0 * ones, 1e-6)),
        (ops.rms_norm(x, ones, 1e-6), ops.rms_norm(x.astype(jnp.float32), ones, 1e-6)),
    ):
        assert found.dtype == jnp.bfloat16 and exact.dtype == jnp.float32
        np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def test_norms_of_a_row_of_zeros_have_finite_gradients():
    zeros, ones = jnp.zeros((1, 1, 4)), jnp.ones(4)
    for norm in (lambda x: ops.layer_norm(x, ones, ones, 1e-6), lambda x: ops.rms_norm(x, ones, 1e-6)):
        assert np.all(np.isfinite(norm(zeros)))
        assert np.all(np.isfinite(jax.grad(lambda x, norm=norm: jnp.sum(norm(x) ** 2))(zeros)))


# Sinusoids (B08)


def sinusoids_by_hand(positions, D):
    table = np.zeros((len(positions), D))
    for column in range(D):
        angle = np.asarray(positions, np.float64) / 10_000 ** (2 * (column // 2) / D)
        table[:, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return table


@pytest.mark.parametrize('D', [1, 2, 5, 7, 16, 127])
def test_sinusoids_are_the_formula_for_odd_widths_too(D):
    found = ops.sinusoids(jnp.arange(300), D)
    assert found.shape == (300, D) and found.dtype == jnp.float32
    np.testing.assert_allclose(found, sinusoids_by_hand(range(300), D), atol=5e-5)  # 300 radians in float32


def test_sinusoids_of_width_five_at_position_one():
    found = ops.sinusoids(jnp.array([1]), 5)[0]
    np.testing.assert_allclose(found, [0.84147, 0.54030, 0.02512, 0.99968, 0.00063], atol=1e-5)


def test_position_plus_k_is_a_rotation_that_depends_on_k_alone():
    D, k = 16, 11
    position = jnp.arange(100)
    here, there = np.asarray(ops.sinusoids(position, D)), np.asarray(ops.sinusoids(position + k, D))
    for i in range(0, D, 2):
        angle = k / 10_000 ** (i / D)
        rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        np.testing.assert_allclose(there[:, i : i + 2], here[:, i : i + 2] @ rotation.T, atol=1e-5)
