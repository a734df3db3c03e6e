"""What the families of models share: tables, the encoder, the softmax, and what a decoder may look at."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.errors import UserError
from jaxformer.model.attention import Maps
from jaxformer.model.context import Context, Rates
from jaxformer.model.keep import ENCODER, Keep, of_stack
from jaxformer.model.masks import Sight
from jaxformer.model.stack import Cache, Stack, shared_positions
from jaxformer.schema import ModelConfig

Array = jax.Array


class Family(nn.Module):
    """What all families share: the table of embeddings, the softmax over it, and an encoder where there is one.

    num_classes: Y, of a classifier. mesh: over which positions are divided, where a kernel has to know (`ring.py`).
    """

    cfg: ModelConfig
    vocab_size: int
    num_classes: int = 0
    mesh: Mesh | None = None

    def setup(self) -> None:
        cfg = self.cfg
        self.embedding = self._table('embedding', self.vocab_size)
        if cfg.embedding.tables == 'separate':
            self.source_embedding = self._table('source_embedding', self.vocab_size)
        if cfg.embedding.token_types:
            self.token_types = self._table('token_types', cfg.embedding.token_types)
        if cfg.family != 'classifier':
            if cfg.embedding.softmax == 'untied':
                self.softmax = self._table('softmax', self.vocab_size)
            if cfg.embedding.softmax_bias == 'on':
                self.softmax_bias = self._zeros('softmax_bias', self.vocab_size)
        if cfg.family != 'lm':
            self.encoder = Stack(cfg, cfg.encoder_layers, cfg.encoder_mixer, causal=False, cross=False, mesh=self.mesh)
        if cfg.family in ('seq2seq', 'lm'):
            cross = cfg.family == 'seq2seq'
            self.decoder = Stack(cfg, cfg.decoder_layers, cfg.decoder_mixer, causal=True, cross=cross, mesh=self.mesh)

    def _table(self, name: str, rows: int) -> Array:
        initializer = nn.initializers.normal(self.cfg.d_model**-0.5)
        return self.param(name, initializer, (rows, self.cfg.d_model), jnp.dtype(self.cfg.precision.parameters))

    def _dense(self, name: str, size: int) -> Array:
        shape = (self.cfg.d_model, size)
        return self.param(name, nn.initializers.xavier_uniform(), shape, jnp.dtype(self.cfg.precision.parameters))

    def _zeros(self, name: str, size: int) -> Array:
        return self.param(name, nn.initializers.zeros, (size,), jnp.dtype(self.cfg.precision.parameters))

    def _embed(self, tokens_BT: Array, table_VD: Array, type_BT: Array | None = None) -> Array:
        dtype = jnp.dtype(self.cfg.precision.compute)
        # In this order the gradients of a symbol that comes often are summed in the parameters' own dtype.
        x_BTD = table_VD[tokens_BT].astype(dtype) * EMBEDDING_SCALES[self.cfg.embedding.scale](self.cfg.d_model)
        if self.cfg.embedding.token_types:
            type_BT = jnp.zeros_like(tokens_BT) if type_BT is None else type_BT
            x_BTD = x_BTD + self.token_types.astype(dtype)[type_BT]
        return x_BTD

    def _encode(
        self,
        tokens_BS: Array,
        key_2: Array | None,
        keep: Mapping[str, Keep],
        type_BS: Array | None = None,
        segment_BS: Array | None = None,
        rates: Rates | None = None,
    ) -> tuple[Array, Array, Maps]:
        """(y_BSD, which rows are real [B, S], the maps) of the encoder."""
        valid_BS = tokens_BS != self.cfg.ids.pad
        position_BS = shared_positions(tokens_BS.shape[1]) if segment_BS is None else document_positions(segment_BS)
        sight = Sight(valid_BS, segment_BS)
        context = Context(valid_BS, sight, position_BS, position_BS, segment_BT=segment_BS, key_2=key_2, rates=rates)
        table_VD = self.source_embedding if self.cfg.embedding.tables == 'separate' else self.embedding
        y_BSD, _, maps = self.encoder(self._embed(tokens_BS, table_VD, type_BS), context, keep=of_stack(keep, ENCODER))
        return y_BSD, valid_BS, {ENCODER[name]: found for name, found in maps.items()}

    def _logits(self, y_BTD: Array) -> Array:
        table_VD = self.softmax if self.cfg.embedding.softmax == 'untied' else self.embedding
        if self.cfg.embedding.logit_scale == 'rsqrt_d_model':
            y_BTD = y_BTD * jnp.asarray(self.cfg.d_model**-0.5, y_BTD.dtype)
        logits_BTV = jnp.einsum('BTD,VD->BTV', y_BTD, table_VD.astype(y_BTD.dtype), preferred_element_type=jnp.float32)
        if self.cfg.embedding.softmax_bias == 'on':
            logits_BTV = logits_BTV + self.softmax_bias.astype(jnp.float32)
        return logits_BTV

    def _extend_context(self, tokens_BT: Array, cache: Cache, length: int) -> Context:
        """Of T further tokens at position cache['index'], for a decoder whose cache has room for `length`."""
        T, start = tokens_BT.shape[1], cache['index']
        if not isinstance(start, jax.core.Tracer) and int(start) + T > length:
            raise UserError(
                f'a cache of {length} positions: {int(start)} are written and {T} more do not fit; '
                'start one with a greater length'
            )
        return Context(
            valid_BT=jnp.ones(tokens_BT.shape, bool),
            sight=Sight(start=start, causal=True),
            position_BT=start + shared_positions(T),
            key_BS=shared_positions(length),
            start=start,
        )


EMBEDDING_SCALES = {'sqrt_d_model': lambda d_model: d_model**0.5, 'none': lambda d_model: 1.0}


def document_positions(segment_BT: Array) -> Array:
    """[B, T]: positions that count from 0 in every document of a row."""
    column_T = jnp.arange(segment_BT.shape[1])
    begins_BT = jnp.pad(segment_BT[:, 1:] != segment_BT[:, :-1], ((0, 0), (1, 0)))
    return column_T - jax.lax.cummax(jnp.where(begins_BT, column_T, 0), axis=1)
