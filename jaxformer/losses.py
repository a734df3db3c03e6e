"""Losses as pure functions of logits and labels, summed over real tokens; who calls them divides by the count."""

import jax
import jax.numpy as jnp

Array = jax.Array


def cross_entropy(
    logits_BTV: Array, labels_BT: Array, weights_BT: Array, label_smoothing: float | Array | None = None
) -> Array:
    """Summed label-smoothed cross-entropy in nats (Szegedy et al. 2016, section 7: uniform over all V classes).

    The smoothed target is 1 − ε on the label plus ε/V everywhere, so that the loss is
    logsumexp − (1 − ε)·logit[label] − ε·mean(logits): no array of log-probabilities is formed.

    Args:
      logits_BTV: float. labels_BT: int32. weights_BT: float32, 0 where a position does not count.
      label_smoothing: ε in [0, 1); None gives the plain negative log-likelihood.

    Returns:
      [] float32; divide by sum(weights) for nats per token. Positions of weight 0 add nothing, whatever they hold.
    """
    logits = logits_BTV.astype(jnp.float32)
    target_BT = jnp.take_along_axis(logits, labels_BT[..., None], axis=-1)[..., 0]
    if label_smoothing is None:
        loss_BT = jax.nn.logsumexp(logits, axis=-1) - target_BT
    else:
        smoothed_BT = (1 - label_smoothing) * target_BT + label_smoothing * jnp.mean(logits, axis=-1)
        loss_BT = jax.nn.logsumexp(logits, axis=-1) - smoothed_BT
    return jnp.sum(jnp.where(weights_BT > 0, loss_BT * weights_BT, 0.0))


def distillation(logits_BTV: Array, teacher_BTV: Array, weights_BT: Array, temperature: float) -> Array:
    """Summed temperature² · KL(teacher ‖ student) of both softened by the temperature, in nats (Hinton et al. 2015, 2).

    Args:
      logits_BTV, teacher_BTV: float; no gradient goes to the teacher. weights_BT: as in `cross_entropy`.

    Returns:
      [] float32; 0 where the two agree. The square keeps the gradient's size as the temperature grows.
    """
    ours_BTV = logits_BTV.astype(jnp.float32) / temperature
    theirs_BTV = jax.lax.stop_gradient(teacher_BTV.astype(jnp.float32)) / temperature
    p_BTV = jax.nn.softmax(theirs_BTV, axis=-1)
    normaliser = lambda x: jax.nn.logsumexp(x, axis=-1)  # noqa: E731
    kl_BT = jnp.sum(p_BTV * (theirs_BTV - ours_BTV), axis=-1) - normaliser(theirs_BTV) + normaliser(ours_BTV)
    return temperature**2 * jnp.sum(jnp.where(weights_BT > 0, kl_BT * weights_BT, 0.0))


def count_correct(logits_BTV: Array, labels_BT: Array, weights_BT: Array) -> Array:
    """[] float32: weighted number of positions whose largest logit is the label."""
    return jnp.sum((jnp.argmax(logits_BTV, axis=-1) == labels_BT) * weights_BT)
