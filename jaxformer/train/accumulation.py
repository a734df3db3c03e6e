"""A batch in parts, one after the other in one program: the gradient of its mean loss, in the memory of a part."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Batch = dict[str, Array]
Loss = Callable[[Any, Batch, Array | None], tuple[Array, Array]]
"""(parameters, rows, which of the batch these are: [first, stride] uint32) → (mean over their labels, how many)."""


def value_and_grad(loss: Loss, parts: int, params: Any, batch: Batch) -> tuple[Array, Array, Any]:
    """(mean over the labels of the batch, how many there are, gradient of that mean), whatever the number of parts.

    Each label of the batch weighs the same: means and gradients of the parts are summed by their labels, in float32,
    and divided by all labels. A mean of means would not do, as the parts hold different numbers of labels.

    Args:
      loss: which rows these are is None where they are the batch.
      parts: divides the number of rows. Part i has the rows i, i + parts, i + 2·parts …, so that where the rows of the
        batch lie on several devices each of them has its share of every part, and nothing is moved between them.
    """
    gradient = jax.value_and_grad(loss, has_aux=True)
    if parts == 1:
        (mean, count), grads = gradient(params, batch, None)
        return mean, count, grads

    def add(sums: tuple[Array, Array, Any], part: tuple[Array, Batch]) -> tuple[tuple[Array, Array, Any], None]:
        number, rows = part
        (mean, count), grads = gradient(params, rows, number)
        weighed = jax.tree.map(lambda total, leaf: total + count * leaf.astype(jnp.float32), sums[2], grads)
        return (sums[0] + count * mean, sums[1] + count, weighed), None

    zero = jnp.zeros((), jnp.float32)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    which = jnp.stack([jnp.arange(parts), jnp.full(parts, parts)], axis=1).astype(jnp.uint32)
    split = {name: _split(rows, parts) for name, rows in batch.items()}
    (total, count, sums), _ = jax.lax.scan(add, (zero, zero, zeros), (which, split))
    labels = jnp.maximum(count, 1.0)
    return total / labels, count, jax.tree.map(lambda sum_, leaf: (sum_ / labels).astype(leaf.dtype), sums, params)


def summed(sums: Callable[[Batch], Any], parts: int, batch: Batch) -> Any:
    """What `sums` gives of each part, added up; of the parts that `value_and_grad` makes."""
    if parts == 1:
        return sums(batch)
    split = {name: _split(rows, parts) for name, rows in batch.items()}
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.lax.map(sums, split))


def _split(rows: Array, parts: int) -> Array:
    """[parts, B / parts, …]."""
    return jnp.swapaxes(rows.reshape(-1, parts, *rows.shape[1:]), 0, 1)
