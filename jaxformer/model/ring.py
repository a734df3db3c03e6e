"""Attention over a ring of devices that share the positions of a sequence, as a pure function (Liu et al. 2023).

Each device keeps its queries, and the keys and values of all come by, from neighbour to neighbour; in the backward pass
with their gradients. What is in memory at a time is one device's share of them, and a block of scores.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxformer.model import blockwise
from jaxformer.model.blockwise import Look, Place

Array = jax.Array
Tree = Any

AXIS = 'seq'
"""Of the mesh, along which positions are divided."""

_SAME, _ROWS, _TOTALS = PartitionSpec(), PartitionSpec(None, AXIS), PartitionSpec(None, None, AXIS)


def divides(mesh: Mesh | None, T: int, S: int) -> bool:
    """Whether the mesh has a ring, and each of its devices an equal share of these lengths."""
    devices = 1 if mesh is None else mesh.shape[AXIS]
    return devices > 1 and T % devices == 0 and S % devices == 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attention(look: Look, mesh: Mesh, q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, learned: Tree, given: Tree) -> Array:
    """`blockwise.attention` over the devices along AXIS, which divide T and S.

    Args:
      mesh: other axes divide the other dimensions as XLA sees fit. learned, given: the same on all devices of a ring.

    Returns:
      y_BTHE, laid out as the queries.
    """
    return _forward(look, mesh, q_BTHK, k_BSGK, v_BSGE, learned, given)[0]


def _forward(look: Look, mesh: Mesh, q: Array, k: Array, v: Array, learned: Tree, given: Tree) -> tuple[Array, Tree]:
    whole, devices = (q.shape[0], q.shape[2], q.shape[1], k.shape[1]), mesh.shape[AXIS]

    def of_device(number_1: Array, q: Array, k: Array, v: Array, learned: Tree, given: Tree) -> tuple[Array, Array]:
        def step(carry: Tree, passed: Array) -> tuple[Tree, None]:
            sums, k, v = carry
            place = _place(number_1[0], passed, q, k, whole, devices)
            sums = blockwise.seen(look, sums, q, k, v, learned, given, place)
            return (sums, *_passed_on((k, v), devices)), None

        B, T, H, _ = q.shape
        start = blockwise.nothing(B, T, H, v.shape[3])
        (sums, _, _), _ = lax.scan(step, (start, k, v), jnp.arange(devices))
        y_BTHE, total_BHT = blockwise.attended(sums)
        return y_BTHE.astype(v.dtype), total_BHT

    shared = _shared(of_device, mesh, (_ROWS,) * 3, (_ROWS, _TOTALS))
    y_BTHE, total_BHT = shared(jnp.arange(devices), q, k, v, learned, given)
    return y_BTHE, (q, k, v, learned, given, y_BTHE, total_BHT)


def _backward(look: Look, mesh: Mesh, kept: Tree, dy_BTHE: Array) -> tuple[Tree, ...]:
    q, k, v, learned, given, y_BTHE, total_BHT = kept
    whole, devices = (q.shape[0], q.shape[2], q.shape[1], k.shape[1]), mesh.shape[AXIS]

    def of_device(
        number_1: Array, q: Array, k: Array, v: Array, dy: Array, y: Array, total: Array, learned: Tree, given: Tree
    ) -> tuple[Tree, ...]:
        def step(carry: Tree, passed: Array) -> tuple[Tree, None]:
            dq, dk, dv, dlearned, k, v = carry
            place = _place(number_1[0], passed, q, k, whole, devices)
            found = blockwise.gradients(look, (dq, dk, dv, dlearned), q, k, v, learned, given, dy, y, total, place)
            dq, dk, dv, dlearned = found
            dk, dv, k, v = _passed_on((dk, dv, k, v), devices)  # gradients travel with their keys, all the way round
            return (dq, dk, dv, dlearned, k, v), None

        start = (*blockwise.no_gradients(q, k, v, learned), k, v)
        (dq, dk, dv, dlearned, _, _), _ = lax.scan(step, start, jnp.arange(devices))
        return dq, dk, dv, jax.tree.map(lambda part: lax.psum(part, AXIS), dlearned)

    shared = _shared(of_device, mesh, (*(_ROWS,) * 5, _TOTALS), (_ROWS, _ROWS, _ROWS, _SAME))
    found = shared(jnp.arange(devices), q, k, v, dy_BTHE, y_BTHE, total_BHT, learned, given)
    return *blockwise.as_primal(found, (q, k, v, learned)), None


attention.defvjp(_forward, _backward)


def _shared(function: Any, mesh: Mesh, rows: tuple[PartitionSpec, ...], out: Tree) -> Any:
    """`function` on each device of the ring: its number, its rows, and what is the same on all."""
    specs = (PartitionSpec(AXIS), *rows, _SAME, _SAME)
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, axis_names={AXIS}, check_vma=False)


def _place(number: Array, passed: Array, q: Array, k: Array, whole: tuple[int, ...], devices: int) -> Place:
    """Of a device's queries and of the keys that have come to it after so many steps."""
    return Place(number * q.shape[1], (number - passed) % devices * k.shape[1], whole)


def _passed_on(trees: tuple[Array, ...], devices: int) -> tuple[Array, ...]:
    around = [(number, (number + 1) % devices) for number in range(devices)]
    return tuple(lax.ppermute(rows, AXIS, around) for rows in trees)
