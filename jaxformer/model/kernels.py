"""How attention is computed: by the kernel that the config names, or by the next one that has the same numbers."""

import functools
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh

from jaxformer.model import blockwise, ring
from jaxformer.model.view import View
from jaxformer.schema import ModelConfig

Array = jax.Array


def attention(
    kernel: str,
    cfg: ModelConfig,
    mesh: Mesh | None,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    learned: dict[str, Any],
    view: View,
) -> Array:
    """y_BTHE in the dtype of v: the values under the softmax of the scores, zeros for a query that may see nothing.

    A kernel that cannot compute what it is asked for gives way, and a warning says once for which reason.

    Args:
      kernel: a choice of config.model.attention.kernel other than plain. mesh: None where there is one device.
      learned: 'score', the parameter of additive scores [H, K], and 'table', that of biases by position; or None each.
    """
    arrays = q_BTHK, k_BSGK, v_BSGE, learned, view
    divided = ring.divides(mesh, q_BTHK.shape[1], k_BSGK.shape[1])
    reason = f'mesh.seq={mesh.shape[ring.AXIS]}: the devices of a ring go block by block' if mesh and divided else None
    if kernel == 'library':
        from jaxformer.model import library  # late: importing Pallas takes as long as all of the rest here

        reason = reason or library.refusal(cfg, view)
        if reason is None:
            implementation, reason = library.implementation(cfg, mesh, q_BTHK, k_BSGK, view)
            if reason is not None:
                _give_way(kernel, implementation, reason)
            return library.attention(implementation, cfg, mesh, *arrays)
    elif kernel == 'pallas':
        from jaxformer.model import flash  # late, too

        reason = reason or flash.refusal(cfg, mesh, k_BSGK, v_BSGE)
        if reason is None:
            return flash.attention(cfg, mesh, *arrays)
    if kernel != 'blockwise':
        assert reason is not None
        _give_way(kernel, 'blockwise', reason)
    if divided:
        return ring.attention(view.look(cfg), mesh, *arrays)
    return blockwise.attention(view.look(cfg), *arrays)


@functools.cache  # a reason is given once, not by every layer of every program
def _give_way(kernel: str, other: str, reason: str) -> None:
    logging.warning(
        'config.model.attention.kernel=%s: %s instead, with the same numbers, for %s', kernel, other, reason
    )
