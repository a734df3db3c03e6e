"""Attention by kernels that come with JAX: cuDNN's on a GPU, splash attention on a TPU, what XLA makes of it elsewhere.

They are asked where they compute the very numbers of plain attention. What they make of a query that may see nothing
(a mean of all values) is put right here.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_masks
from jax.sharding import Mesh

from jaxformer.model import devices
from jaxformer.model.masks import Sight
from jaxformer.model.view import View, dot_scale
from jaxformer.schema import ModelConfig

Array = jax.Array

Implementation = Literal['cudnn', 'splash', 'xla']

LANES = 128  # a block of splash attention


def refusal(cfg: ModelConfig, view: View) -> str | None:
    """Why no library has these numbers; None: it has."""
    if cfg.d_v != cfg.d_k:
        return f'model.d_v={cfg.d_v}: a library wants that of model.d_k={cfg.d_k}'
    if cfg.attention.score == 'additive':
        return 'model.attention.score=additive: a library has products alone'
    if view.dropout.key_2 is not None:
        return f'model.dropout.attention={cfg.dropout.attention}: a library would draw other masks'
    return None


def implementation(
    cfg: ModelConfig, mesh: Mesh | None, q_BTHK: Array, k_BSGK: Array, view: View
) -> tuple[Implementation, str | None]:
    """('cudnn' | 'splash' | 'xla', why it is not the one that this backend is known for)."""
    backend = jax.default_backend()
    if backend == 'gpu':
        reason = _cudnn_refusal(cfg, q_BTHK, k_BSGK, view)
        return ('cudnn', None) if reason is None else ('xla', reason)
    if backend == 'tpu':
        reason = _splash_refusal(cfg, mesh, q_BTHK, k_BSGK, view)
        return ('splash', None) if reason is None else ('xla', reason)
    return 'xla', None


def attention(
    implementation: Implementation,
    cfg: ModelConfig,
    mesh: Mesh | None,
    q_BTHK: Array,
    k_BSGK: Array,
    v_BSGE: Array,
    learned: dict[str, Any],
    view: View,
) -> Array:
    """y_BTHE, as `kernels.attention`, of what `refusal` lets pass."""
    (B, T), S = q_BTHK.shape[:2], k_BSGK.shape[1]
    mask = view.mask(cfg, T, S)
    if implementation == 'splash':
        y_BTHE = _splash_attention(mesh, q_BTHK, k_BSGK, v_BSGE, view.sight, dot_scale(cfg))
    else:
        y_BTHE = jax.nn.dot_product_attention(
            q_BTHK,
            k_BSGK,
            v_BSGE,
            view.bias(cfg, learned['table'], T, S),
            jnp.broadcast_to(mask, (B, 1, T, S)),
            scale=dot_scale(cfg),
            implementation=implementation,
        )
    some_BT = jnp.any(mask, axis=-1)[:, 0]
    return jnp.where(some_BT[..., None, None], y_BTHE, 0)


def _splash_attention(
    mesh: Mesh | None, q_BTHK: Array, k_BSGK: Array, v_BSGE: Array, sight: Sight, scale: float
) -> Array:
    """y_BTHE of what a sight allows; T and S are multiples of LANES. Interpreted where there is no TPU."""
    (B, T, H, _), S = q_BTHK.shape, k_BSGK.shape[1]
    assert isinstance(sight.start, int)  # who reads a cache has another kernel
    rule = splash_masks.CausalMask((T, S), sight.start) if sight.causal else splash_masks.FullMask((T, S))
    interpret = jax.default_backend() != 'tpu'
    kernel = splash.make_splash_mha(
        splash_masks.MultiHeadMask([rule] * (H // devices.counts(mesh)[1])),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    of_queries_BT, of_keys_BS = jnp.zeros((B, T), jnp.int32), jnp.zeros((B, S), jnp.int32)  # their documents
    if sight.segment_BT is not None:
        of_queries_BT, of_keys_BS = sight.segment_BT, sight.segment_BT
    if sight.valid_BS is not None:
        of_keys_BS = jnp.where(sight.valid_BS, of_keys_BS, -1)  # the document of no query
    q, k, v = (jnp.swapaxes(rows, 1, 2) for rows in (q_BTHK * jnp.asarray(scale, q_BTHK.dtype), k_BSGK, v_BSGE))
    specs = (devices.BY_BOTH, devices.BY_BOTH, devices.BY_BOTH, devices.BY_ROW)
    on_each = devices.on_each(mesh, jax.vmap(kernel), specs, devices.BY_BOTH)
    y = on_each(q, k, v, splash.SegmentIds(of_queries_BT, of_keys_BS))
    return jnp.swapaxes(y, 1, 2).astype(v_BSGE.dtype)


def _cudnn_refusal(cfg: ModelConfig, q_BTHK: Array, k_BSGK: Array, view: View) -> str | None:
    T, S, K = q_BTHK.shape[1], k_BSGK.shape[1], cfg.d_k
    if q_BTHK.dtype == jnp.float32:
        return f'model.precision.compute={cfg.precision.compute}: cuDNN takes 16 bits'
    if K % 8 or K > 128:
        return f'model.d_k={K}: cuDNN takes multiples of 8 up to 128'
    if view.biased(cfg):
        return f'model.position={cfg.position}: cuDNN would round its biases to 16 bits'
    if T % 2 or S % 2:
        return f'{T} queries and {S} keys: cuDNN takes even lengths'
    if float(jax.devices()[0].compute_capability) < 8:
        return 'a GPU before compute capability 8.0, which cuDNN has no kernel for'
    return None


def _splash_refusal(cfg: ModelConfig, mesh: Mesh | None, q_BTHK: Array, k_BSGK: Array, view: View) -> str | None:
    T, S = q_BTHK.shape[1], k_BSGK.shape[1]
    if view.own and cfg.attention.pattern != 'full':
        return f'model.attention.pattern={cfg.attention.pattern}: splash attention takes full'
    if view.biased(cfg):
        return f'model.position={cfg.position}: splash attention has no biases'
    if T % LANES or S % LANES:
        return f'{T} queries and {S} keys: splash attention takes multiples of {LANES}'
    return devices.refusal(mesh, len(k_BSGK), k_BSGK.shape[2])
