"""Where arrays live: a mesh from the config, letters for every parameter, mesh axes for every letter.

The model knows nothing of this. A parameter whose path is not in the table, or whose letters ask for one mesh axis
twice, is an error.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxformer import processes
from jaxformer.choices import STRATEGIES
from jaxformer.errors import UserError
from jaxformer.model.family import Family
from jaxformer.schema import Config, MeshConfig

AXES = ('data', 'fsdp', 'model', 'seq')

MESH_AXES: dict[str, tuple[str, ...]] = {
    'B': ('data', 'fsdp'),
    'T': ('seq',),
    'S': ('seq',),
    'D': ('fsdp',),
    'H': ('model',),
    'G': ('model',),
    'F': ('model',),
    'V': ('model',),
}
"""Letter → mesh axes; a letter that is not here, and _ (a dimension without one), is not divided."""

FIELDS = {'V': 'vocab_size', 'D': 'd_model', 'H': 'num_heads', 'G': 'num_kv_heads', 'F': 'd_ff', 'M': 'max_length'}
"""Letter → the field of config.model that gives its size."""

_LAYERS = r'^(encoder|decoder)/layers/'
PARAMETERS: tuple[tuple[str, str], ...] = (
    (r'^(source_)?embedding$', 'VD'),
    (r'^softmax$', 'VD'),
    (r'^softmax_bias$', 'V'),
    (r'^token_types$', '_D'),
    (r'^(transform|pooler)$', 'D_'),
    (r'^(transform|pooler)_bias$', '_'),
    (r'^classes$', 'DY'),
    (r'^classes_bias$', 'Y'),
    (r'^(encoder|decoder)/position/table$', 'MD'),
    (r'^(encoder|decoder)/position/relative_bias$', '__H'),
    (r'^(transform_norm|(encoder|decoder)/(embedding|final)_norm)/(scale|bias)$', 'D'),
    (_LAYERS + r'\w+_norm/(scale|bias)$', 'ND'),
    (_LAYERS + r'(self|cross)_\w+/query$', 'NDHK'),
    (_LAYERS + r'(self|cross)_\w+/key$', 'NDGK'),
    (_LAYERS + r'(self|cross)_\w+/value$', 'NDGE'),
    (_LAYERS + r'(self_(attention|linformer|static)|cross_attention)/out$', 'NHED'),
    (_LAYERS + r'(self|cross)_\w+/(query_bias|score)$', 'NHK'),
    (_LAYERS + r'(self|cross)_\w+/key_bias$', 'NGK'),
    (_LAYERS + r'(self|cross)_\w+/value_bias$', 'NGE'),
    (_LAYERS + r'(self|cross)_\w+/out_bias$', 'ND'),
    (_LAYERS + r'self_static/mixing$', 'NHMM'),
    (_LAYERS + r'self_linformer/(key|value)_projection$', 'NPM'),
    (_LAYERS + r'self_conv/kernel$', 'NWDR'),
    (_LAYERS + r'self_conv/bias$', 'NR'),
    (_LAYERS + r'self_(rnn|lstm|gru)/(forward|backward)/i\w*/kernel$', 'NDR'),
    (_LAYERS + r'self_(rnn|lstm|gru)/(forward|backward)/h\w*/kernel$', 'NRR'),
    (_LAYERS + r'self_(rnn|lstm|gru)/(forward|backward)/\w+/bias$', 'NR'),
    (_LAYERS + r'self_(rnn|lstm|gru)/out$', 'NRD'),
    (_LAYERS + r'feed_forward/(inner|gate)$', 'NDF'),
    (_LAYERS + r'feed_forward/inner_bias$', 'NF'),
    (_LAYERS + r'feed_forward/outer$', 'NFD'),
    (_LAYERS + r'feed_forward/outer_bias$', 'ND'),
)
"""Pattern of a parameter's path → its letters, one per dimension."""


def sizes(cfg: MeshConfig) -> tuple[int, ...]:
    """Devices along AXES as the config or its strategy has them; -1 where an axis takes all that are left."""
    given = {axis: getattr(cfg, axis) for axis in AXES}
    if cfg.strategy:
        said = {axis: size for axis, size in given.items() if size > 1}
        given = {**dict.fromkeys(AXES, 1), **STRATEGIES[cfg.strategy], **said}  # which the rules let be greater
    return tuple(given.values())


ACTIVATIONS: tuple[tuple[str, str], ...] = (
    (r'\._embed$', 'BT_'),
    (r'^(Stack|Block|Norm|FeedForward)\.__call__$', 'BT_'),
    (r'^(SelfAttention|CrossAttention|Static|Linformer|Convolution|Recurrent|LSTM|GRU)\.__call__$', 'BT_'),
    (r'\.projected$', 'BT_'),
    (r'\.queries$', 'BTHK'),
    (r'\.keys$', 'BSGK'),
    (r'\.values$', 'BSGE'),
    (r'\._logits$', 'BTV'),
)
"""Pattern of a method of the model, 'Class.method' → the letters of what it gives (of the first thing, where it gives
several). D of an activation is not divided: along fsdp its rows are."""


class LaidOut:
    """A model whose activations lie on a mesh by their letters; it is called as the model itself.

    Left to itself, XLA divides D of the activations along fsdp as their parameters have it, and each device works on
    all rows; with the rows in their place it gathers the parameters of a layer when it needs them.
    """

    def __init__(self, model: Family, mesh: Mesh) -> None:
        self._model, self._mesh = model, mesh

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def apply(self, *args: Any, **options: Any) -> Any:
        with nn.intercept_methods(self._place):
            return self._model.apply(*args, **options)

    def _place(self, method: Callable[..., Any], args: Any, options: Any, context: nn.module.InterceptorContext) -> Any:
        name = f'{type(context.module).__name__}.{context.method_name}'
        dims = next((dims for pattern, dims in ACTIVATIONS if re.search(pattern, name)), None)
        if dims is None:
            return method(*args, **options)
        if context.method_name == '__call__':
            # So that in the backward pass what comes from all that reads x is added up, and goes through the devices
            # once, before it is added to what comes along the residual.
            x, *rest = args
            args = self._constrained(x, dims), *rest
        given = method(*args, **options)
        if isinstance(given, tuple):
            return (self._constrained(given[0], dims), *given[1:])
        return self._constrained(given, dims)

    def _constrained(self, x: jax.Array, dims: str) -> jax.Array:
        """x by its letters; a dimension that its axes do not divide stays whole (one position of a decoder)."""
        axes = [tuple(axis for axis in MESH_AXES.get(letter, ()) if self._mesh.shape[axis] > 1) for letter in dims]
        parts = [math.prod(self._mesh.shape[axis] for axis in entry) for entry in axes]
        entries = [entry if size % n == 0 else None for entry, size, n in zip(axes, x.shape, parts, strict=True)]
        return jax.lax.with_sharding_constraint(x, NamedSharding(self._mesh, PartitionSpec(*entries)))


def laid_out(model: Family, mesh: Mesh) -> Family:
    """`LaidOut`; the model itself on one device."""
    return model if mesh.size == 1 else cast(Family, LaidOut(model, mesh))


def make_mesh(cfg: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh of cfg over all devices; one device is the mesh of ones.

    Raises:
      UserError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = list(sizes(cfg))
    fixed = math.prod(size for size in shape if size > 0)
    if -1 in shape and len(devices) % fixed == 0:
        shape[shape.index(-1)] = len(devices) // fixed
    if math.prod(shape) != len(devices):
        asked = ', '.join(f'{axis}={size}' for axis, size in zip(AXES, shape, strict=True))
        asked += f', strategy={cfg.strategy}' if cfg.strategy else ''
        raise UserError(f'config.mesh ({asked}): the product must be the number of devices, {len(devices)}')
    return jax.make_mesh(tuple(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def path_name(path: tuple[Any, ...]) -> str:
    """'decoder/layers/cross_attention/query' for a key path of jax.tree_util."""
    return '/'.join(str(getattr(part, 'key', getattr(part, 'name', getattr(part, 'idx', part)))) for part in path)


def letters(path: str) -> str:
    """The letters of a parameter's dimensions. Raises KeyError for a path that no pattern of PARAMETERS matches."""
    for pattern, dims in PARAMETERS:
        if re.search(pattern, path):
            return dims
    raise KeyError(f'parameter {path}: no pattern of sharding.PARAMETERS matches it; add a row with its letters')


def spec(dims: str, mesh: Mesh, shape: tuple[int, ...], name: str) -> PartitionSpec:
    """The partition of an array by its letters.

    Raises:
      UserError: two dimensions ask for one axis of size > 1, or an axis does not divide its dimension.
    """
    used: set[str] = set()
    entries: list[tuple[str, ...] | None] = []
    for letter, size in zip(dims, shape, strict=True):
        axes = tuple(axis for axis in MESH_AXES.get(letter, ()) if mesh.shape[axis] > 1)
        if clash := used.intersection(axes):
            raise UserError(f'{name} [{dims}]: two dimensions want mesh axis {clash.pop()}; mend sharding.MESH_AXES')
        parts = math.prod(mesh.shape[axis] for axis in axes)
        if size % parts:
            over = ' x '.join(f'config.mesh.{axis}' for axis in axes)
            field = f'config.model.{FIELDS[letter]}: ' if letter in FIELDS else ''
            raise UserError(
                f'{field}{name} [{dims}]: {letter}={size} is not divisible by {over}={parts}; '
                f'make it {size + -size % parts}, say, or choose another config.mesh'
            )
        used.update(axes)
        entries.append(axes or None)
    return PartitionSpec(*entries)


def of_state(state: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of a train state (or of bare parameters).

    The optimiser's moments mirror the parameters, so they lie as the parameter whose path ends theirs; scalars are
    replicated.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        if leaf.ndim == 0:
            return NamedSharding(mesh, PartitionSpec())
        name = _parameter_part(path_name(path))
        return NamedSharding(mesh, spec(letters(name), mesh, leaf.shape, name))

    return jax.tree_util.tree_map_with_path(place, state)


def _parameter_part(path: str) -> str:
    """The path below `params`, or below an optimiser's moment (`opt_state/1/mu/…`)."""
    return re.sub(r'^(params/|opt_state/\d+/(mu|nu|trace|average)/)', '', path)


BATCH = {
    'source': 'BS', 'target': 'BT', 'tokens': 'BT', 'segment': 'BT', 'label': 'BT', 'example_id': 'B',
}  # fmt: skip
"""Name of a batch's array → its letters."""


def rows_here(batch_size: int, mesh: Mesh) -> np.ndarray:
    """int [b], ascending: the rows of a global batch that devices of this process hold; `mesh` divides the batch."""
    held = _rows(mesh).addressable_devices_indices_map((batch_size,))
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in held.values()]))


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Puts a batch onto the mesh: rows along data and fsdp, positions along seq.

    Args:
      batch: of this process's rows only, in the order of `rows_here`.
    """
    several = processes.number() > 1
    blocks = math.prod(mesh.shape[axis] for axis in MESH_AXES['B'])
    times = blocks // len(rows_here(blocks, mesh)) if several else 1
    placed: dict[str, jax.Array] = {}
    for name, rows in batch.items():
        shape = (rows.shape[0] * times, *rows.shape[1:])
        sharding = NamedSharding(mesh, spec(BATCH[name][: rows.ndim], mesh, shape, f'batch {name}'))
        if several:
            part = functools.partial(_part, rows, rows_here(shape[0], mesh), np.arange(shape[0]))
            placed[name] = jax.make_array_from_callback(shape, sharding, part)
        else:
            placed[name] = jax.device_put(rows, sharding)
    return placed


def _part(rows: np.ndarray, numbers: np.ndarray, all_numbers: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
    """What `index` into the global array is, of which `rows` has the rows of these `numbers`."""
    return rows[np.searchsorted(numbers, all_numbers[index[0]])][(slice(None), *index[1:])]


def _rows(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(MESH_AXES['B']))


def everywhere(array: jax.Array, mesh: Mesh) -> np.ndarray:
    """The whole of an array on the host of every process."""
    return jax.device_get(_replicate(mesh)(array))


@functools.cache
def _replicate(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))


def refuse_undivided(cfg: Config, mesh: Mesh) -> None:
    """Raises UserError, naming the field, where a training batch or a bucket cannot be divided over the mesh."""
    rows = math.prod(mesh.shape[axis] for axis in MESH_AXES['B'])
    parts = cfg.train.accumulation
    if cfg.train.batch_size // parts % rows:
        each = f', and so must each of its config.train.accumulation={parts} parts' if parts > 1 else ''
        raise UserError(
            f'config.train.batch_size={cfg.train.batch_size}: must be a multiple of the {rows} devices along '
            f'config.mesh.data and config.mesh.fsdp{each}'
        )
    for bucket in cfg.data.buckets:
        if any(size % mesh.shape['seq'] for size in bucket):
            raise UserError(
                f'config.data.buckets: {bucket} must be multiples of config.mesh.seq={mesh.shape["seq"]}; '
                'choose other lengths, or config.mesh.seq=1'
            )


def whole_rows(batch_size: int, mesh: Mesh) -> int:
    """`batch_size` rounded up to a number of rows that the mesh divides; the rows too many are padding."""
    multiple = math.prod(mesh.shape[axis] for axis in MESH_AXES['B'])
    return -(-batch_size // multiple) * multiple
