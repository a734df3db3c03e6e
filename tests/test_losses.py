"""The loss against optax and against its definition, and what padding may do to it: nothing (B15)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import losses
from jaxformer.data.vocab import PAD


def arrays(B=3, T=5, V=7, seed=0):
    """(logits_BTV, labels_BT, weights_BT) with two positions that do not count."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((B, T, V)).astype(np.float32)
    labels = rng.integers(1, V, (B, T)).astype(np.int32)
    labels[0, -1] = labels[2, -2] = PAD
    return logits, labels, (labels != PAD).astype(np.float32)


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 0.9])
def test_smoothed_loss_is_cross_entropy_with_smoothed_labels(smoothing):
    logits, labels, weights = arrays()
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), smoothing)
    expected = jnp.sum(optax.softmax_cross_entropy(logits, targets) * weights)
    np.testing.assert_allclose(losses.cross_entropy(logits, labels, weights, smoothing), expected, rtol=1e-6)


def test_smoothing_is_uniform_over_all_classes_in_float64():
    logits, labels, weights = arrays()
    x = logits.astype(np.float64)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    target = np.full_like(x, 0.1 / 7)
    np.put_along_axis(target, labels[..., None], 0.9 + 0.1 / 7, -1)
    expected = -(target * log_p).sum(-1)[weights > 0].sum()
    np.testing.assert_allclose(losses.cross_entropy(logits, labels, weights, 0.1), expected, rtol=1e-6)


def test_gradient_is_softmax_minus_smoothed_target():
    logits, labels, weights = arrays()
    gradient = jax.grad(losses.cross_entropy)(logits, labels, weights, 0.2)
    targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.2)
    np.testing.assert_allclose(gradient, (jax.nn.softmax(logits) - targets) * weights[..., None], atol=1e-6)


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_padding_changes_neither_loss_nor_gradient(smoothing):
    logits, labels, weights = arrays()
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((6, 15, 7)).astype(np.float32)
    wide[:3, :5] = logits
    wide_labels = np.full((6, 15), PAD, np.int32)
    wide_labels[:3, :5] = labels
    wide_weights = (wide_labels != PAD).astype(np.float32)
    value, gradient = jax.value_and_grad(losses.cross_entropy)(logits, labels, weights, smoothing)
    wide_value, wide_gradient = jax.value_and_grad(losses.cross_entropy)(wide, wide_labels, wide_weights, smoothing)
    np.testing.assert_allclose(wide_value, value, rtol=1e-6)
    np.testing.assert_allclose(wide_gradient[:3, :5], gradient, atol=1e-6)
    assert not np.any(wide_gradient[3:]) and not np.any(wide_gradient[:, 5:])


def test_a_batch_of_padding_alone_is_zero():
    logits, labels, _ = arrays()
    value, gradient = jax.value_and_grad(losses.cross_entropy)(logits, 0 * labels, np.zeros((3, 5), np.float32), 0.1)
    assert value == 0 and not np.any(gradient)


def test_what_stands_at_a_position_without_weight_does_not_matter():
    logits, labels, weights = arrays()
    expected = losses.cross_entropy(logits, labels, weights, 0.1)
    logits[0, -1] = np.nan
    logits[2, -2] = np.inf
    assert losses.cross_entropy(logits, labels, weights, 0.1) == expected


def test_a_weight_scales_its_position():
    logits, labels, weights = arrays()
    alone = lambda i: losses.cross_entropy(logits[:1, i : i + 1], labels[:1, i : i + 1], np.ones((1, 1)))  # noqa: E731
    graded = np.array([[0.5, 1, 2, 0]], np.float32)
    expected = 0.5 * alone(0) + alone(1) + 2 * alone(2)
    np.testing.assert_allclose(losses.cross_entropy(logits[:1, :4], labels[:1, :4], graded), expected, rtol=1e-6)


def test_large_logits_do_not_overflow():
    logits = np.array([[[1e4, -1e4, 0.0]]], np.float32)
    value, gradient = jax.value_and_grad(losses.cross_entropy)(logits, np.array([[1]]), np.ones((1, 1)), 0.1)
    np.testing.assert_allclose(value, 0.9 * 2e4 + 0.1 * 1e4, rtol=1e-6)
    assert np.all(np.isfinite(gradient))


def test_the_loss_is_computed_in_float32_whatever_the_logits():
    logits, labels, weights = arrays()
    half = jnp.asarray(logits, jnp.bfloat16)
    expected = losses.cross_entropy(half.astype(jnp.float32), labels, weights, 0.1)
    found = losses.cross_entropy(half, labels, weights, 0.1)
    assert found.dtype == jnp.float32 and found == expected


def test_count_correct_counts_what_has_weight():
    logits = jnp.eye(4)[jnp.array([[1, 2, 3], [0, 1, 2]])]
    labels = jnp.array([[1, 3, 3], [0, 1, 2]])
    weights = jnp.array([[1.0, 1, 1], [0, 1, 0]])
    assert losses.count_correct(logits, labels, weights) == 3
    assert losses.count_correct(logits, labels, jnp.zeros((2, 3))) == 0
