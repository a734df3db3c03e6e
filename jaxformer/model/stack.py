"""A stack of blocks: positions, the scanned layers, the norms around them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.model.attention import CrossAttention, Maps
from jaxformer.model.cache import Cache
from jaxformer.model.context import Context
from jaxformer.model.heads import narrowed
from jaxformer.model.keep import OUTPUT, Keep
from jaxformer.model.layers import Block, Norm
from jaxformer.model.mixers import MIXERS
from jaxformer.model.positions import POSITIONS
from jaxformer.schema import ModelConfig

Array = jax.Array

WEIGHING = ('attention', 'static')  # mixers with a weight for every key
EMBEDDING_SITE = 1_000_000  # dropout site of a stack's input, beyond any layer's index


class Stack(nn.Module):
    """`length` blocks as one scanned block: parameters carry a leading N axis, and one block is compiled whatever N.

    mixer: of all its blocks. causal: whether it looks back only. cross: whether it attends to a memory.
    mesh: of `Context`.
    """

    cfg: ModelConfig
    length: int
    mixer: str
    causal: bool
    cross: bool
    mesh: Mesh | None = None

    def setup(self) -> None:
        cfg = self.cfg
        self.position = POSITIONS[cfg.position](cfg, self.length, self.causal)
        self.layers = Block(cfg, self.mixer, self.causal, self.cross)
        if cfg.embedding.norm == 'on':
            self.embedding_norm = Norm(cfg)
        if cfg.residual in ('pre', 'sandwich'):
            self.final_norm = Norm(cfg)

    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache | None = None, keep: Mapping[str, Keep] | None = None
    ) -> tuple[Array, Cache | None, Maps]:
        """Runs the stack on embeddings.

        Args:
          keep: what of the weights 'self' and 'cross' and of the 'output' of each layer is to be kept; a mixer without
            a weight for every key has no 'self'.

        Returns:
          (y_BTD, the cache with a leading N axis or None, maps [N, B, H, T, S] and outputs [N, B, T, D] by name, as far
          as they are kept).
        """
        cfg = self.cfg
        there = {OUTPUT: True, 'cross': self.cross, 'self': self.mixer in WEIGHING}
        keep = {name: part for name, part in (keep or {}).items() if there[name]}
        weights = bool(keep.keys() - {OUTPUT})
        x_BTD = self.position.embed(x_BTD, context.position_BT)
        if cfg.embedding.norm == 'on':
            x_BTD = self.embedding_norm(x_BTD)
        x_BTD = context.dropout(cfg, 'embedding', EMBEDDING_SITE)(x_BTD)
        # Who collects maps, or reads a cache, wants the weights of all keys at once.
        kernel = 'plain' if weights or cache is not None else cfg.attention.kernel
        context = context.replace(kernel=kernel, mesh=self.mesh)
        tables = self.position.tables()
        shared = tables is None or len(tables) == 1
        if shared:  # worked out once for all layers
            context = self._biased(context, None if tables is None else tables[0])

        def body(block: Block, carry: tuple[Array, Cache | None, Maps], row: tuple[Array, Array | None]) -> Any:
            (x, cache, kept), (layer, table) = carry, row
            biased = context if shared else self._biased(context, table)
            x, cache, maps = block(x, layer, cache, biased, weights)
            found = {**maps, OUTPUT: x}
            kept = {name: part.write(kept[name], found[name], layer, self.length) for name, part in keep.items()}
            return (x, cache, kept), None  # a cache that is carried is written in place

        rows = jnp.arange(self.length), None if shared else tables
        kept = {name: part.nothing(self._like(name, x_BTD, context), self.length) for name, part in keep.items()}
        if cache is not None and isinstance(self.variables['params']['layers'], tuple):
            x_BTD, cache, maps = self._apart(body, (x_BTD, cache, kept), rows)
        else:
            if cfg.remat != 'none':
                body = nn.remat(body, prevent_cse=False, policy=REMAT[cfg.remat])  # a scan keeps XLA from undoing it
            scanned = nn.scan(
                body,
                variable_axes={'params': 0},
                split_rngs={'params': True},
                length=self.length,
                unroll=cfg.scan_unroll or self.length,
            )
            (x_BTD, cache, maps), _ = scanned(self.layers, (x_BTD, cache, kept), rows)
        return (self.final_norm(x_BTD) if cfg.residual in ('pre', 'sandwich') else x_BTD), cache, maps

    def _apart(self, body: Callable[..., Any], carry: tuple[Array, Cache, Maps], rows: Any) -> Any:
        """What the scan gives, of parameters, and of what is kept of a memory, that `cache.apart` took apart."""
        (x_BTD, cache, kept), (_, tables) = carry, rows
        memory = cache.get('cross')
        for n, params in enumerate(self.variables['params']['layers']):
            block = Block(self.cfg, self.mixer, self.causal, self.cross, parent=None)
            of_layer = functools.partial(block.apply, {'params': jax.tree.map(lambda leaf: leaf[0], params)})
            own = cache if memory is None else {**cache, 'cross': memory[n]}
            row = n, None if tables is None else tables[n]
            (x_BTD, cache, kept), _ = body(of_layer, (x_BTD, own, kept), row)
        return x_BTD, cache if memory is None else {**cache, 'cross': memory}, kept

    def _like(self, name: str, x_BTD: Array, context: Context) -> jax.ShapeDtypeStruct:
        """What the weights of a layer are like, [B, H, T, S], or its output, [B, T, D]."""
        if name == OUTPUT:
            return jax.ShapeDtypeStruct(x_BTD.shape, x_BTD.dtype)
        keys = context.key_BS if name == 'self' else context.memory_BS
        assert keys is not None
        dtype = jnp.float32 if self.cfg.precision.softmax == 'float32' else x_BTD.dtype
        return jax.ShapeDtypeStruct(
            (x_BTD.shape[0], self._narrowed(name).num_heads, x_BTD.shape[1], keys.shape[1]), dtype
        )

    def _narrowed(self, name: str) -> ModelConfig:
        return narrowed(self.cfg, 'cross' if name == 'cross' else 'decoder' if self.causal else 'encoder')

    def _biased(self, context: Context, table: Array | None) -> Context:
        """The context with what its kernel wants of the biases: the table, or all of them."""
        if context.kernel != 'plain':
            return context.replace(table=table)
        bias = POSITIONS[self.cfg.position].bias
        found = bias(self.cfg, table, context.position_BT, context.key_BS, self.causal)
        return context if found is None else context.replace(bias=found)

    def empty_cache(self, B: int, length: int, dtype: jnp.dtype, memory: int = 0) -> Cache:
        """The cache of no rows with room for `length`, with a leading N axis.

        Returns:
          {'self': the mixer's}, and {'cross': {'key', 'value'}} for `memory` rows where the stack attends to them.
        """
        layer = {'self': MIXERS[self.mixer].empty_cache(self._narrowed('self'), B, length, dtype)}
        if self.cross:
            layer['cross'] = CrossAttention.empty_cache(self._narrowed('cross'), B, memory, dtype)
        return jax.tree.map(lambda part: jnp.zeros((self.length, *part.shape), part.dtype), layer)


REMAT = {'block': None, 'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable}
"""model.remat → what of a block is kept for the backward pass: nothing, or what a product with a matrix has given."""


def shared_positions(T: int) -> Array:
    """[1, T]: positions 0 … T − 1 of every row."""
    return jnp.arange(T)[None]
