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


def count_correct(logits_BTV: Array, labels_BT: Array, weights_BT: Array) -> Array:
    """[] float32: weighted number of positions whose largest logit is the label."""
    return jnp.sum((jnp.argmax(logits_BTV, axis=-1) == labels_BT) * weights_BT)
