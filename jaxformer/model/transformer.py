"""Stacks of blocks and the families of models built of them."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.data.vocab import BOS, PAD
from jaxformer.errors import UserError
from jaxformer.model import ops
from jaxformer.model.layers import Block, Context, Maps, Norm
from jaxformer.model.positions import POSITIONS

Array = jax.Array
Cache = dict[str, Array]
Params = Any  # a nested dict of arrays

EMBEDDING_SITE = 1_000_000  # dropout site of a stack's input, beyond any layer's index


class Stack(nn.Module):
    """`length` blocks as one scanned block: parameters carry a leading N axis, and one block is compiled whatever N."""

    cfg: ModelConfig
    length: int
    cross: bool

    def setup(self) -> None:
        self.position = POSITIONS[self.cfg.position](self.cfg)
        self.layers = Block(self.cfg, self.cross)
        if self.cfg.residual == 'pre':
            self.final_norm = Norm(self.cfg)

    def __call__(
        self, x_BTD: Array, context: Context, cache: Cache | None = None, keep_maps: bool = False
    ) -> tuple[Array, Cache | None, Maps]:
        """Runs the stack on embeddings.

        Returns:
          (y_BTD, the cache with a leading N axis or None, maps [N, B, H, T, S] by name if `keep_maps`).
        """
        cfg = self.cfg
        x_BTD = self.position.embed(x_BTD, context.start)
        if context.key_2 is not None and cfg.dropout.embedding > 0:
            x_BTD = ops.dropout(x_BTD, cfg.dropout.embedding, ops.fold(context.key_2, EMBEDDING_SITE))

        def body(block: Block, x: Array, layer_and_cache: tuple[Array, Cache | None]) -> tuple[Array, Any]:
            return block(x, *layer_and_cache, context, keep_maps)

        if cfg.remat == 'block':
            body = nn.remat(body, prevent_cse=False)  # a scan keeps XLA from undoing it
        scanned = nn.scan(
            body,
            variable_axes={'params': 0},
            split_rngs={'params': True},
            length=self.length,
            unroll=cfg.scan_unroll or self.length,
        )
        x_BTD, (cache, maps) = scanned(self.layers, x_BTD, (jnp.arange(self.length), cache))
        return (self.final_norm(x_BTD) if cfg.residual == 'pre' else x_BTD), cache, maps


class Seq2Seq(nn.Module):
    """Encoder-decoder (AIAYN Figure 1)."""

    cfg: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        cfg = self.cfg
        dtype = jnp.dtype(cfg.precision.parameters)
        table = nn.initializers.normal(cfg.d_model**-0.5)
        self.embedding = self.param('embedding', table, (self.vocab_size, cfg.d_model), dtype)
        if cfg.embedding.tables == 'separate':
            self.source_embedding = self.param('source_embedding', table, (self.vocab_size, cfg.d_model), dtype)
        if cfg.embedding.softmax == 'untied':
            self.softmax = self.param('softmax', table, (self.vocab_size, cfg.d_model), dtype)
        self.encoder = Stack(cfg, cfg.encoder_layers, cross=False)
        self.decoder = Stack(cfg, cfg.decoder_layers, cross=True)

    def __call__(
        self, source_BS: Array, target_BT: Array, key_2: Array | None = None, collect: tuple[str, ...] = ()
    ) -> tuple[Array, Maps]:
        """Logits of every target symbol given the source and the symbols before it (teacher forcing).

        Args:
          source_BS, target_BT: int32 tokens, PAD beyond their ends; the target is the labels, shifted here.
          key_2: uint32[2] for dropout, None for a deterministic pass.
          collect: 'attention' asks for the maps encoder [N,B,H,S,S], decoder [N,B,H,T,T], cross [N,B,H,T,S].

        Returns:
          (logits_BTV in float32, what was collected by name).
        """
        keep_maps = 'attention' in collect
        encoder_key = None if key_2 is None else ops.fold(key_2, 0)
        decoder_key = None if key_2 is None else ops.fold(key_2, 1)
        memory_BSD, source_mask, encoder_maps = self._encode(source_BS, encoder_key, keep_maps)
        T = target_BT.shape[1]
        input_BT = shift_right(target_BT)
        context = Context(
            self_mask=ops.causal_mask(T, T) & ops.padding_mask(input_BT, PAD),
            memory_BSD=memory_BSD,
            memory_mask=source_mask,
            key_2=decoder_key,
        )
        y_BTD, _, maps = self.decoder(self._embed(input_BT, self.embedding), context, keep_maps=keep_maps)
        collected = {}
        if keep_maps:
            collected = {'encoder': encoder_maps['self'], 'decoder': maps['self'], 'cross': maps['cross']}
        return self._logits(y_BTD), collected

    def start_cache(self, source_BS: Array, length: int) -> Cache:
        """Encodes the source and returns a decoder cache with room for `length` target positions.

        key [N,B,length,G,K], value [N,B,length,G,E] (empty), cross_key [N,B,S,G,K], cross_value [N,B,S,G,E],
        source_mask [B,1,1,S], index [] int32 (positions written so far).
        """
        cfg = self.cfg
        memory_BSD, source_mask, _ = self._encode(source_BS, None, False)
        N, B, G = cfg.decoder_layers, source_BS.shape[0], cfg.num_kv_heads
        empty = {
            'key': jnp.zeros((N, B, length, G, cfg.d_k), memory_BSD.dtype),
            'value': jnp.zeros((N, B, length, G, cfg.d_v), memory_BSD.dtype),
        }
        # A chunk of no tokens: it writes nothing but the keys and values of the memory.
        context = Context(jnp.ones((1, 1, 0, length), bool), memory_BSD, source_mask)
        nothing = jnp.zeros((B, 0, cfg.d_model), memory_BSD.dtype)
        _, cache, _ = self.decoder(nothing, context, empty)
        assert cache is not None
        return {**cache, 'source_mask': source_mask, 'index': jnp.int32(0)}

    def extend(self, tokens_BT: Array, cache: Cache) -> tuple[Array, Cache]:
        """Logits after each of T further target tokens, and the cache with them written (T ≥ 1 at once).

        The caller sees to it that index + T stays within the cache's length: XLA would clamp the write silently.

        Args:
          tokens_BT: decoder inputs at positions index … index + T − 1 (BOS first).

        Returns:
          (logits_BTV in float32, cache).
        """
        layers = {name: cache[name] for name in ('key', 'value', 'cross_key', 'cross_value')}
        T, length = tokens_BT.shape[1], cache['key'].shape[2]
        context = Context(
            self_mask=ops.causal_mask(T, length, offset=cache['index']),
            memory_mask=cache['source_mask'],
            start=cache['index'],
        )
        y_BTD, written, _ = self.decoder(self._embed(tokens_BT, self.embedding), context, layers)
        assert written is not None
        return self._logits(y_BTD), {**cache, **written, 'index': cache['index'] + T}

    def _encode(self, source_BS: Array, key_2: Array | None, keep_maps: bool) -> tuple[Array, Array, Maps]:
        source_mask = ops.padding_mask(source_BS, PAD)
        table = self.source_embedding if self.cfg.embedding.tables == 'separate' else self.embedding
        context = Context(self_mask=source_mask, key_2=key_2)
        memory_BSD, _, maps = self.encoder(self._embed(source_BS, table), context, keep_maps=keep_maps)
        return memory_BSD, source_mask, maps

    def _embed(self, tokens_BT: Array, table_VD: Array) -> Array:
        scale = EMBEDDING_SCALES[self.cfg.embedding.scale](self.cfg.d_model)
        return table_VD.astype(jnp.dtype(self.cfg.precision.compute))[tokens_BT] * scale

    def _logits(self, y_BTD: Array) -> Array:
        table_VD = self.softmax if self.cfg.embedding.softmax == 'untied' else self.embedding
        return jnp.einsum('BTD,VD->BTV', y_BTD, table_VD.astype(y_BTD.dtype), preferred_element_type=jnp.float32)


EMBEDDING_SCALES = {'sqrt_d_model': lambda d_model: d_model**0.5, 'none': lambda d_model: 1.0}
FAMILIES = {'seq2seq': Seq2Seq}


def shift_right(labels_BT: Array) -> Array:
    """Decoder input for labels: BOS, then every label but the last."""
    return jnp.concatenate([jnp.full_like(labels_BT[:, :1], BOS), labels_BT[:, :-1]], axis=1)


def build(cfg: ModelConfig, vocab_size: int) -> nn.Module:
    """The model of the family that `cfg` names; `vocab_size` counts the symbols of the data, specials included.

    cfg.vocab_size may ask for more rows than the data needs, never for fewer.

    Raises:
      UserError: cfg.vocab_size is below what the data needs.
    """
    if 0 < cfg.vocab_size < vocab_size:
        raise UserError(
            f'config.model.vocab_size={cfg.vocab_size}: the data has {vocab_size} symbols; set 0 to follow it'
        )
    return FAMILIES[cfg.family](cfg, cfg.vocab_size or vocab_size)


def init(model: nn.Module, seed: int | Array) -> Params:
    """Fresh parameters, a function of the seed alone; under jit, so that shardings can be asked of it."""
    token = jnp.zeros((1, 1), jnp.int32)
    return model.init(jax.random.key(seed), token, token)['params']


def abstract_params(cfg: ModelConfig, vocab_size: int) -> Params:
    """The tree of parameters as shapes and dtypes; nothing is allocated, no device is asked."""
    return jax.eval_shape(lambda: init(build(cfg, vocab_size), 0))
