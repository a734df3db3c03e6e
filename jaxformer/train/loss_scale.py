"""Dynamic loss scaling for float16 (Micikevicius et al. 2018, 3.2): gradients are made so great that few vanish.

flax.training.dynamic_scale does the same for one gradient per update; here one update may have gradients of many parts.
"""

import flax.struct
import jax
import jax.numpy as jnp

FIRST, LEAST, GREATEST = 2.0**16, 1.0, 2.0**24
GROWS_AFTER = 2000  # finite updates in a row


class LossScale(flax.struct.PyTreeNode):
    """scale: [] float32, the factor on the loss. finite_in_row: [] int32, finite updates since it changed.

    grows_after: number of those after which it doubles.
    """

    scale: jax.Array
    finite_in_row: jax.Array
    grows_after: int = flax.struct.field(pytree_node=False, default=GROWS_AFTER)

    def can_fall(self) -> jax.Array:
        """Whether a gradient that is not finite may be so for the scale alone."""
        return self.scale > LEAST

    def after(self, finite: jax.Array) -> 'LossScale':
        """That of the next update, after a gradient that was finite or not."""
        grows = finite & (self.finite_in_row + 1 >= self.grows_after)
        greater, smaller = jnp.minimum(2 * self.scale, GREATEST), jnp.maximum(self.scale / 2, LEAST)
        return self.replace(
            scale=jnp.where(grows, greater, jnp.where(finite, self.scale, smaller)),
            finite_in_row=jnp.where(finite & ~grows, self.finite_in_row + 1, 0),
        )


def first() -> LossScale:
    """That of the first update: too great for most models, it falls to what fits within a few updates."""
    return LossScale(jnp.float32(FIRST), jnp.int32(0))
