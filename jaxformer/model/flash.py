"""Attention as one Pallas kernel, for what no library takes (FlashAttention, Dao et al. 2022, Algorithm 1).

A program of the grid has one head and one block of queries, and sums up its softmax over the blocks of keys. Scores,
masks, biases by position and dropout are worked out in the kernel, so that nothing of size T · S is ever in memory. The
backward pass is that of `blockwise.py`, which wants no more than the sums.

Triton compiles it for a GPU and Mosaic for a TPU; on a CPU it can only be interpreted, which is for tests.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import Mesh, PartitionSpec

from jaxformer.model import blockwise, devices, ops
from jaxformer.model.masks import rows
from jaxformer.model.view import PATTERNS, View, dot_scale
from jaxformer.schema import ModelConfig

Array = jax.Array
Refs = dict[str, Any]

PLATFORM: str | None = None
"""gpu | tpu | interpret: what the kernel is made for; None: JAX's default backend."""

SIZES = {'gpu': (16, 64), 'tpu': (128, 128)}
"""Platform → fewest and most queries or keys in a block; the field model.attention.block chooses between."""

VMEM = 2**23  # bytes of keys and values of a head that a TPU is trusted with: they lie there as a whole
FAR = 2**16  # the greatest distance that has a bucket of its own
NOWHERE = -1  # the document of keys that no query sees


def refusal(cfg: ModelConfig, mesh: Mesh | None, k_BSGK: Array, v_BSGE: Array) -> str | None:
    """Why the kernel cannot be used; None: it can."""
    platform = PLATFORM or jax.default_backend()
    if platform == 'cpu':
        return 'a CPU: no compiler of Pallas kernels'
    if cfg.position == 't5_relative' and cfg.relative.max_distance > FAR:
        return f'model.relative.max_distance={cfg.relative.max_distance}: the kernel goes to {FAR}'
    size = k_BSGK.shape[1] * k_BSGK.dtype.itemsize * sum(-(-part.shape[3] // 128) * 128 for part in (k_BSGK, v_BSGE))
    if platform == 'tpu' and size > VMEM:
        return f'{k_BSGK.shape[1]} keys: those and their values are {size} bytes of a head, a TPU holds {VMEM}'
    return devices.refusal(mesh, k_BSGK.shape[0], k_BSGK.shape[2])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attention(
    cfg: ModelConfig,
    mesh: Mesh | None,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    learned: dict[str, Any],
    view: View,
) -> Array:
    """y_BTHE, as `kernels.attention`, of what `refusal` lets pass."""
    return _forward(cfg, mesh, q_BTHK, k_BSGK, v_BSGE, learned, view)[0]


def _forward(
    cfg: ModelConfig, mesh: Mesh | None, q: Array, k: Array, v: Array, learned: dict[str, Any], view: View
) -> tuple[Array, tuple[Any, ...]]:
    y_BTHE, total_BHT = _run(cfg, mesh, q, k, v, learned, view)
    return y_BTHE, (q, k, v, learned, view, y_BTHE, total_BHT)


def _backward(cfg: ModelConfig, mesh: Mesh | None, kept: tuple[Any, ...], dy_BTHE: Array) -> tuple[Any, ...]:
    return blockwise.backward(kept[4].look(cfg), kept, dy_BTHE)


attention.defvjp(_forward, _backward)


def _run(
    cfg: ModelConfig,
    mesh: Mesh | None,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    learned: dict[str, Any],
    view: View,
) -> tuple[Array, Array]:
    """(y_BTHE, log Σ exp score [B, H, T])."""
    platform = PLATFORM or jax.default_backend()
    (B, T, H, K), (_, S, G, E) = q_BTHK.shape, v_BSGE.shape
    places: dict[str, tuple[Callable[..., tuple[Any, ...]], PartitionSpec]] = {  # of program (b, h, i), of devices
        'queries': (lambda b, h, i: (b, h, i, 0), devices.BY_BOTH),
        'keys': (lambda b, h, i: (b, lax.div(h, H // G), 0, 0), devices.BY_BOTH),
        'of queries': (lambda b, h, i: (b, i, 0), devices.BY_ROW),
        'of keys': (lambda b, h, i: (b, 0, 0), devices.BY_ROW),
        'of heads': (lambda b, h, i: (h, 0, 0), devices.BY_HEAD),
        'of all': (lambda b, h, i: (0, 0), devices.WHOLE),
    }
    t, s = (_size(platform, cfg.attention.block, length) for length in (T, S))
    if cfg.attention.score != 'additive':
        q_BTHK = q_BTHK * jnp.asarray(dot_scale(cfg), q_BTHK.dtype)

    q = _filled(jnp.moveaxis(q_BTHK, 2, 1), t, _power(K))
    k = _filled(jnp.moveaxis(k_BSGK, 1, 3), _power(K), s)  # [B, G, K, S]
    v = _filled(jnp.moveaxis(v_BSGE, 2, 1), s, _power(E))
    scalars = jnp.stack([jnp.asarray(number, jnp.int32) for number in (view.sight.start, view.layer, 0, 0)])[None]
    operands = {
        'q': (q, (None, None, t, _power(K)), 'queries'),
        'k': (k, (None, None, _power(K), k.shape[3]), 'keys'),
        'v': (v, (None, None, v.shape[2], _power(E)), 'keys'),
        'scalars': (scalars, (1, 4), 'of all'),
    }
    for name, (of_queries_BT, of_keys_BS) in _tables(view, B, T, S).items():
        of_queries, of_keys = _filled(of_queries_BT[..., None], t, 1), _filled(of_keys_BS[:, None], 1, s)
        operands[f'{name} of queries'] = (of_queries, (None, t, 1), 'of queries')
        operands[f'{name} of keys'] = (of_keys, (None, 1, of_keys.shape[2]), 'of keys')
    if learned['score'] is not None:
        operands['score'] = (learned['score'][:, None], (None, 1, K), 'of heads')
    steps = None
    if view.own and cfg.position == 'alibi':
        slopes_H = ops.alibi_slopes(H) if learned['table'] is None else learned['table']
        operands['bias'] = (-slopes_H[:, None, None], (None, 1, 1), 'of heads')
    if view.own and cfg.position == 't5_relative':
        steps = _steps(cfg, view.causal)
        operands['bias'] = (
            learned['table'].T[:, None].astype(jnp.float32),
            (None, 1, len(learned['table'])),
            'of heads',
        )
    if view.dropout.key_2 is not None:
        words = len(view.dropout.key_2)
        operands['key'] = (view.dropout.key_2[None], (1, words), 'of all')
        operands['rate'] = (jnp.asarray(view.dropout.rate, jnp.float32).reshape(1, 1), (1, 1), 'of all')

    def on_device(arrays: dict[str, Array]) -> tuple[Array, Array]:
        rows, heads, length, _ = arrays['q'].shape
        first = jnp.array([[0, 0, *devices.first(mesh, rows, heads)]], jnp.int32)
        return pl.pallas_call(
            functools.partial(_kernel, cfg, view.sight.causal, steps, (B, H, T, S), s),
            grid=(rows, heads, length // t),
            in_specs=[{name: pl.BlockSpec(block, places[place][0]) for name, (_, block, place) in operands.items()}],
            out_specs=[pl.BlockSpec((None, None, t, size), places['queries'][0]) for size in (_power(E), 1)],
            out_shape=[
                jax.ShapeDtypeStruct((rows, heads, length, _power(E)), v.dtype),
                jax.ShapeDtypeStruct((rows, heads, length, 1), jnp.float32),
            ],
            compiler_params=triton.CompilerParams(num_warps=4, num_stages=2) if platform == 'gpu' else None,
            interpret=platform == 'interpret',
            name='attention',
        )(arrays | {'scalars': arrays['scalars'] + first})

    specs = {name: places[place][1] for name, (_, _, place) in operands.items()}
    on_each = devices.on_each(mesh, on_device, (specs,), devices.BY_BOTH)
    y, total = on_each({name: array for name, (array, _, _) in operands.items()})
    return jnp.moveaxis(y[:, :, :T, :E], 1, 2), total[:, :, :T, 0]


def _kernel(
    cfg: ModelConfig,
    causal: bool,
    steps: tuple[tuple[int, int], ...] | None,
    whole: tuple[int, ...],
    s: int,
    refs: Refs,
    y_ref: Any,
    total_ref: Any,
) -> None:
    """All keys for one block of queries of one head.

    causal: of the sight. steps: of `_steps`, with biases by bucket. whole: B, H, T, S. s: keys in a block.
    """
    b, h, i = (pl.program_id(axis) for axis in range(3))
    t, S = y_ref.shape[0], whole[3]
    start, layer, first_row, first_head = (refs['scalars'][0, number] for number in range(4))
    query = i * t + lax.broadcasted_iota(jnp.int32, (t, 1), 0)
    q = refs['q'][...]

    def further(j: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        peak, total, values = sums
        block = pl.ds(j * s, s)
        scores = (
            lax.dot(q, refs['k'][:, block], preferred_element_type=jnp.float32)
            if 'score' not in refs
            else (_additive(refs, block))
        )
        key = j * s + lax.broadcasted_iota(jnp.int32, (1, s), 1)
        mask = (key < S) & (refs['document of queries'][...] == refs['document of keys'][:, block])
        if causal:
            mask = mask & (key <= query + start)
        if 'position of queries' in refs:
            at, of = refs['position of queries'][...], refs['position of keys'][:, block]
            if cfg.attention.pattern != 'full':
                mask = mask & PATTERNS[cfg.attention.pattern](cfg.attention, at, of, layer)
            if 'bias' in refs:
                scores = scores + _bias(refs['bias'], steps, of - at)
        scores = jnp.where(mask, scores, -jnp.inf)
        higher = jnp.maximum(peak, jnp.max(scores, axis=1, keepdims=True))
        shift = jnp.where(higher == -jnp.inf, 0.0, higher)
        shrunk, p = jnp.exp(peak - shift), jnp.exp(scores - shift)
        total = total * shrunk + jnp.sum(p, axis=1, keepdims=True)
        if 'key' in refs:
            words = [refs['key'][0, word] for word in range(refs['key'].shape[1])]
            p = ops.dropout(
                p[None, None], refs['rate'][0, 0], words, (first_row + b, first_head + h, i * t, j * s), whole
            )[0, 0]
        v = refs['v'][block, :]
        values = values * shrunk + lax.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return higher, total, values

    blocks: Array | int = pl.cdiv(S, s)
    if causal:
        blocks = jnp.minimum(blocks, lax.div(i * t + t - 1 + start, s) + 1)
    nothing = jnp.full((t, 1), -jnp.inf), jnp.zeros((t, 1)), jnp.zeros(y_ref.shape)
    peak, total, values = lax.fori_loop(0, blocks, further, nothing)
    y_ref[...] = (values / jnp.where(total == 0, 1, total)).astype(y_ref.dtype)
    total_ref[...] = jnp.where(total == 0, 0, peak) + jnp.log(jnp.where(total == 0, 1, total))


def _additive(refs: Refs, block: Any) -> Array:
    """[t, s] as `ops.additive_scores`, column by column."""
    dtype, scores = refs['q'].dtype, jnp.zeros(())
    for column in range(refs['score'].shape[1]):
        inner = jnp.tanh(refs['q'][:, column : column + 1] + refs['k'][column : column + 1, block])
        scores = scores + inner.astype(jnp.float32) * refs['score'][0, column].astype(dtype).astype(jnp.float32)
    return scores


def _bias(row: Any, steps: tuple[tuple[int, int], ...] | None, distance: Array) -> Array:
    """[t, s] by the distance of a key from a query: a slope, or a step for each bucket."""
    if steps is None:
        return row[0, 0] * jnp.abs(distance).astype(jnp.float32)
    (_, bucket), *others = steps
    bias = jnp.full(distance.shape, row[0, bucket])
    for least, bucket in others:
        bias = jnp.where(distance >= least, row[0, bucket], bias)
    return bias


def _steps(cfg: ModelConfig, causal: bool) -> tuple[tuple[int, int], ...]:
    """(least distance, bucket) of all buckets, as `ops.relative_buckets` has them, by distance."""
    relative, far = cfg.relative, cfg.relative.max_distance
    with jax.ensure_compile_time_eval():
        buckets = np.asarray(
            ops.relative_buckets(jnp.arange(-far, far + 1), relative.num_buckets, relative.max_distance, causal)
        )
    begins = [0, *np.flatnonzero(np.diff(buckets)) + 1]
    return tuple((int(at) - far, int(buckets[at])) for at in begins)


def _tables(view: View, B: int, T: int, S: int) -> dict[str, tuple[Array, Array]]:
    """What masks and biases are told of every query [B, T] and of every key [B, S], int32: documents and positions."""
    sight, query_T, key_S = view.sight, jnp.arange(T), jnp.arange(S)
    segment_BT = jnp.zeros((1, 1), jnp.int32) if sight.segment_BT is None else sight.segment_BT
    of_keys_BS = rows(segment_BT, key_S)
    if sight.valid_BS is not None:
        of_keys_BS = jnp.where(sight.valid_BS, of_keys_BS, NOWHERE)
    tables = {'document': (rows(segment_BT, query_T), of_keys_BS)}
    if view.own:
        tables['position'] = view.positions(query_T, key_S)
    return {
        name: (jnp.broadcast_to(of_queries, (B, T)).astype(jnp.int32), jnp.broadcast_to(keys, (B, S)).astype(jnp.int32))
        for name, (of_queries, keys) in tables.items()
    }


def _power(size: int) -> int:
    """The power of two from 16 up that holds so many columns: what Triton multiplies."""
    return max(16, 1 << (size - 1).bit_length())


def _size(platform: str, block: int, length: int) -> int:
    """Queries or keys in a block: a power of two, at most `block` where the platform has no other wish."""
    least, most = SIZES.get(platform, (1, block))
    return max(least, min(1 << (min(most, block).bit_length() - 1), 1 << (length - 1).bit_length()))


def _filled(array: Array, *multiples: int) -> Array:
    """Zeros behind, so that these divide the last axes."""
    sizes = array.shape[-len(multiples) :]
    widths = [(0, -size % multiple) for size, multiple in zip(sizes, multiples, strict=True)]
    return jnp.pad(array, [(0, 0)] * (array.ndim - len(widths)) + widths)
