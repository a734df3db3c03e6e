"""The families of models by name. A family is called with the tokens of a batch and gives logits."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.errors import UserError
from jaxformer.model import ops
from jaxformer.model.attention import Maps
from jaxformer.model.context import Context, Rates
from jaxformer.model.encoders import Classifier, MaskedLanguageModel
from jaxformer.model.family import Family, document_positions
from jaxformer.model.keep import DECODER, Collect, kept, of_stack
from jaxformer.model.masks import Sight
from jaxformer.model.stack import Cache, shared_positions
from jaxformer.schema import ModelConfig

Array = jax.Array
Params = Any  # a nested dict of arrays


class Seq2Seq(Family):
    """Encoder-decoder (AIAYN Figure 1)."""

    def __call__(
        self,
        source_BS: Array,
        target_BT: Array,
        key_2: Array | None = None,
        collect: Collect = (),
        rates: Rates | None = None,
    ) -> tuple[Array, Maps]:
        """Logits of every target symbol given the source and the symbols before it (teacher forcing).

        Args:
          source_BS, target_BT: int32 tokens, padding beyond their ends; the target is the labels, shifted here.
          key_2: uint32[2] for dropout, None for a deterministic pass.
          rates: of dropout, [] by place (a field of config.model.dropout), for those that are not zero in the config;
            None: those of the config.
          collect: ('attention',) asks for the maps encoder [N,B,H,S,S], decoder [N,B,H,T,T], cross [N,B,H,T,S], of a
            stack whose mixer has a weight for every key; (('cross', Keep(…)),) for those of chosen layers, heads, rows.

        Returns:
          (logits_BTV in float32, what was collected by name).
        """
        keep = kept(collect)
        encoder_key, decoder_key = (None, None) if key_2 is None else (ops.fold(key_2, 0), ops.fold(key_2, 1))
        memory_BSD, valid_BS, encoder_maps = self._encode(source_BS, encoder_key, keep, rates=rates)
        input_BT, context = decoder_inputs(target_BT, self.cfg)
        context = context.replace(memory_BSD=memory_BSD, memory_BS=valid_BS)
        context = context.replace(key_2=decoder_key, rates=rates)
        x_BTD = self._embed(input_BT, self.embedding)
        y_BTD, _, maps = self.decoder(x_BTD, context, keep=of_stack(keep, DECODER))
        return self._logits(y_BTD), encoder_maps | _of_decoder(maps)

    def start_cache(self, source_BS: Array, length: int) -> Cache:
        """Encodes the source and returns a decoder cache with room for `length` target positions.

        layers: {'self': that of the mixer (key [N,B,G,length,K] and value [N,B,G,length,E] of attention),
        'cross': {key [N,B,G,S,K], value [N,B,G,S,E]}}, source_mask [B,S], index [] int32 (positions written so
        far), room [length] (its shape alone matters).
        """
        memory_BSD, valid_BS, _ = self._encode(source_BS, None, {})
        B, dtype = source_BS.shape[0], memory_BSD.dtype
        # A chunk of no tokens: it writes nothing but the keys and values of the memory.
        nothing = jnp.zeros((B, 0, self.cfg.d_model), dtype)
        context = self._extend_context(jnp.zeros((B, 0), jnp.int32), {'index': jnp.int32(0)}, length)
        context = context.replace(memory_BSD=memory_BSD, memory_BS=valid_BS)
        cache = self.decoder.empty_cache(B, length, dtype, source_BS.shape[1])
        _, layers, _ = self.decoder(nothing, context, cache)
        return {'layers': layers, 'source_mask': valid_BS, 'index': jnp.int32(0), 'room': jnp.zeros(length, bool)}

    def extend(self, tokens_BT: Array, cache: Cache) -> tuple[Array, Cache]:
        """Logits after each of T further target tokens, and the cache with them written (T ≥ 1 at once).

        Where index is a value (outside jit) too many tokens are a UserError. Inside jit the caller sees to it that
        index + T stays within the cache's length: XLA would clamp the write silently.

        Args:
          tokens_BT: decoder inputs at positions index … index + T − 1 (the start symbol first).

        Returns:
          (logits_BTV in float32, cache).
        """
        context = self._extend_context(tokens_BT, cache, cache['room'].shape[0])
        context = context.replace(memory_BS=cache['source_mask'])
        y_BTD, layers, _ = self.decoder(self._embed(tokens_BT, self.embedding), context, cache['layers'])
        return self._logits(y_BTD), {**cache, 'layers': layers, 'index': cache['index'] + tokens_BT.shape[1]}


class LanguageModel(Family):
    """Decoder only: each token given the ones before it (GPT, LLaMA)."""

    def __call__(
        self,
        tokens_BT: Array,
        segment_BT: Array | None = None,
        key_2: Array | None = None,
        collect: Collect = (),
        position_BT: Array | None = None,
        rates: Rates | None = None,
    ) -> tuple[Array, Maps]:
        """Logits of every token given those before it.

        Args:
          tokens_BT: int32, padding at the end (or at the beginning, with position_BT); shifted here.
          segment_BT: number of the document of each token, from 1 upwards within a row: no token looks into another
            document, and positions count from its beginning. None: one document per row.
          key_2, collect, rates: as of `Seq2Seq`; the maps are decoder [N,B,H,T,T].
          position_BT: of each input, where they do not count from the row's first.

        Returns:
          (logits_BTV in float32, what was collected by name).
        """
        input_BT, context = decoder_inputs(tokens_BT, self.cfg, segment_BT)
        if position_BT is not None:
            context = context.replace(position_BT=position_BT, key_BS=position_BT)
        context = context.replace(key_2=key_2, rates=rates)
        x_BTD = self._embed(input_BT, self.embedding)
        y_BTD, _, maps = self.decoder(x_BTD, context, keep=of_stack(kept(collect), DECODER))
        return self._logits(y_BTD), _of_decoder(maps)

    def start_cache(self, batch_size: int, length: int) -> Cache:
        """An empty cache with room for `length` positions: layers, index and room as of `Seq2Seq.start_cache`."""
        layers = self.decoder.empty_cache(batch_size, length, jnp.dtype(self.cfg.precision.compute))
        return {'layers': layers, 'index': jnp.int32(0), 'room': jnp.zeros(length, bool)}

    def extend(self, tokens_BT: Array, cache: Cache) -> tuple[Array, Cache]:
        """Logits after each of T further tokens, as `Seq2Seq.extend`."""
        context = self._extend_context(tokens_BT, cache, cache['room'].shape[0])
        y_BTD, layers, _ = self.decoder(self._embed(tokens_BT, self.embedding), context, cache['layers'])
        return self._logits(y_BTD), {**cache, 'layers': layers, 'index': cache['index'] + tokens_BT.shape[1]}


FAMILIES: dict[str, type[Family]] = {
    'seq2seq': Seq2Seq,
    'lm': LanguageModel,
    'mlm': MaskedLanguageModel,
    'classifier': Classifier,
}


def decoder_inputs(labels_BT: Array, cfg: ModelConfig, segment_BT: Array | None = None) -> tuple[Array, Context]:
    """(decoder inputs [B, T] for labels, what a causal stack may look at).

    The input is the label before, and the start symbol at the first real label of a row or of a document (and at the
    beginning of a row that has none). Positions count from 0 in every document.
    """
    real_BT = labels_BT != cfg.ids.pad
    real_BT = real_BT | ((jnp.arange(labels_BT.shape[1]) == 0) & ~jnp.any(real_BT, axis=1, keepdims=True))
    T = labels_BT.shape[1]
    before_BT = jnp.pad(labels_BT[:, :-1], ((0, 0), (1, 0)))
    real_before_BT = jnp.pad(real_BT[:, :-1], ((0, 0), (1, 0)))
    valid_BT = real_BT | real_before_BT
    position_BT, sight = shared_positions(T), Sight(valid_BT, segment_BT, causal=True)
    first_BT = ~real_before_BT
    if segment_BT is not None:
        position_BT = document_positions(segment_BT)
        first_BT = first_BT | (position_BT == 0)
    input_BT = jnp.where(first_BT, jnp.where(real_BT, cfg.ids.start, cfg.ids.pad), before_BT)
    return input_BT, Context(valid_BT, sight, position_BT, position_BT, segment_BT=segment_BT)


def _of_decoder(maps: Maps) -> Maps:
    return {DECODER[name]: found for name, found in maps.items()}


def build(cfg: ModelConfig, vocab_size: int, num_classes: int = 0, mesh: Mesh | None = None) -> Family:
    """The model of the family that `cfg` names.

    cfg.vocab_size may ask for more rows than the data needs, never for fewer; so may cfg.head.num_classes.

    Args:
      vocab_size: symbols of the data, specials included. num_classes: classes of the data, for a classifier.
      mesh: on which it is to run; a kernel that positions are divided for along `seq` has to know (`ring.py`).

    Raises:
      UserError: cfg asks for fewer rows or classes than the data needs, or for a classifier without classes.
    """
    if 0 < cfg.vocab_size < vocab_size:
        raise UserError(
            f'config.model.vocab_size={cfg.vocab_size}: the data has {vocab_size} symbols; set 0 to follow it'
        )
    classes = (cfg.head.num_classes or num_classes) if cfg.family == 'classifier' else 0
    if cfg.family == 'classifier' and not classes >= max(num_classes, 1):
        raise UserError(
            f'config.model.head.num_classes={cfg.head.num_classes}: the data has {num_classes} classes; '
            'set as many, or 0 to follow it'
        )
    return FAMILIES[cfg.family](cfg, cfg.vocab_size or vocab_size, classes, mesh)


def init(model: Family, seed: int | Array) -> Params:
    """Fresh parameters, a function of the seed alone; under jit, so that shardings can be asked of it."""
    token = jnp.zeros((1, 1), jnp.int32)
    inputs = (token, token) if model.cfg.family == 'seq2seq' else (token,)
    return model.init(jax.random.key(seed), *inputs)['params']


def abstract_params(cfg: ModelConfig, vocab_size: int, num_classes: int = 0) -> Params:
    """The tree of parameters as shapes and dtypes; nothing is allocated, no device is asked."""
    return jax.eval_shape(lambda: init(build(cfg, vocab_size, num_classes), 0))
