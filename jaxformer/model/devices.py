"""How a kernel that knows of one device runs on a mesh: each device has it for its own rows and heads."""

from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

Array = jax.Array

ROWS, HEADS = ('data', 'fsdp'), 'model'
"""Axes of the mesh that B, and H and G, are divided along."""

BY_ROW, BY_HEAD, BY_BOTH, WHOLE = PartitionSpec(ROWS), PartitionSpec(HEADS), PartitionSpec(ROWS, HEADS), PartitionSpec()


def counts(mesh: Mesh | None) -> tuple[int, int]:
    """In how many parts rows are divided, and heads."""
    return (1, 1) if mesh is None else (mesh.shape[ROWS[0]] * mesh.shape[ROWS[1]], mesh.shape[HEADS])


def refusal(mesh: Mesh | None, B: int, G: int) -> str | None:
    """Why devices cannot have equal shares; None: they can."""
    rows, heads = counts(mesh)
    if B % rows:
        return f'mesh.data and mesh.fsdp, which divide {B} rows among {rows} devices'
    if G % heads:
        return f'mesh.model={heads}, which does not divide model.num_kv_heads={G}'
    return None


def on_each(mesh: Mesh | None, function: Any, operands: Any, results: Any) -> Any:
    """`function` of the arrays of each device, of results that are laid out likewise; by trees of specs."""
    if mesh is None or mesh.size == 1:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=operands, out_specs=results, check_vma=False)


def first(mesh: Mesh | None, B: int, H: int) -> tuple[Array | int, Array | int]:
    """Within `on_each`: the number of the first row and of the first head here, B and H being what is here."""
    if mesh is None or mesh.size == 1:
        return 0, 0
    return lax.axis_index(ROWS) * B, lax.axis_index(HEADS) * H
