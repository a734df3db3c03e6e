"""Families of an encoder alone: masked tokens, and classes of texts or of their tokens."""

import jax
import jax.numpy as jnp

from jaxformer.model.attention import Maps
from jaxformer.model.context import Rates
from jaxformer.model.family import Family
from jaxformer.model.keep import Collect, kept
from jaxformer.model.layers import Norm, activation_function

Array = jax.Array


class MaskedLanguageModel(Family):
    """Encoder only: each masked token given all the others (BERT)."""

    def setup(self) -> None:
        super().setup()
        if self.cfg.head.transform == 'on':
            self.transform = self._dense('transform', self.cfg.d_model)
            self.transform_bias = self._zeros('transform_bias', self.cfg.d_model)
            self.transform_norm = Norm(self.cfg)

    def __call__(
        self,
        tokens_BT: Array,
        segment_BT: Array | None = None,
        key_2: Array | None = None,
        collect: Collect = (),
        type_BT: Array | None = None,
        rates: Rates | None = None,
    ) -> tuple[Array, Maps]:
        """Logits of the token at every place.

        Args:
          tokens_BT: int32, the mask where a token is to be guessed. segment_BT: as of `LanguageModel`.
          key_2, collect, rates: as of `Seq2Seq`; the maps are encoder [N,B,H,T,T].
          type_BT: types of the tokens, None for type 0.

        Returns:
          (logits_BTV in float32, what was collected by name).
        """
        y_BTD, _, maps = self._encode(tokens_BT, key_2, kept(collect), type_BT, segment_BT, rates)
        if self.cfg.head.transform == 'on':
            y_BTD = jnp.einsum('BTD,DO->BTO', y_BTD, self.transform.astype(y_BTD.dtype))
            y_BTD = activation_function('gelu', self.cfg.gelu)(y_BTD + self.transform_bias.astype(y_BTD.dtype))
            y_BTD = self.transform_norm(y_BTD)
        return self._logits(y_BTD), maps

    def hidden(self, tokens_BT: Array, type_BT: Array | None = None) -> Array:
        """y_BTD of the encoder's last layer."""
        return self._encode(tokens_BT, None, {}, type_BT)[0]


class Classifier(Family):
    """Encoder only: the class of a text, or of each of its tokens."""

    def setup(self) -> None:
        super().setup()
        if self.cfg.head.pooler == 'on':
            self.pooler = self._dense('pooler', self.cfg.d_model)
            self.pooler_bias = self._zeros('pooler_bias', self.cfg.d_model)
        self.classes = self._dense('classes', self.num_classes)
        self.classes_bias = self._zeros('classes_bias', self.num_classes)

    def __call__(
        self,
        tokens_BT: Array,
        key_2: Array | None = None,
        collect: Collect = (),
        type_BT: Array | None = None,
        rates: Rates | None = None,
    ) -> tuple[Array, Maps]:
        """Logits of the classes.

        Args:
          tokens_BT: int32, padding at the end. key_2, collect, type_BT, rates: as of `MaskedLanguageModel`.

        Returns:
          (logits [B, 1, Y] of each text, or [B, T, Y] of each token, in float32, what was collected by name).
        """
        y_BTD, valid_BT, maps = self._encode(tokens_BT, key_2, kept(collect), type_BT, rates=rates)
        y_BTD = POOLINGS[self.cfg.head.pooling](y_BTD, valid_BT)
        if self.cfg.head.pooler == 'on':
            y_BTD = jnp.einsum('BTD,DO->BTO', y_BTD, self.pooler.astype(y_BTD.dtype))
            y_BTD = jnp.tanh(y_BTD + self.pooler_bias.astype(y_BTD.dtype))
        classes_DY = self.classes.astype(y_BTD.dtype)
        logits_BTY = jnp.einsum('BTD,DY->BTY', y_BTD, classes_DY, preferred_element_type=jnp.float32)
        return logits_BTY + self.classes_bias.astype(jnp.float32), maps

    def hidden(self, tokens_BT: Array, type_BT: Array | None = None) -> Array:
        """y_BTD of the encoder's last layer."""
        return self._encode(tokens_BT, None, {}, type_BT)[0]


def mean_pooling(y_BTD: Array, valid_BT: Array) -> Array:
    """[B, 1, D]: the mean of the real rows, summed and counted in float32; zeros where there is none."""
    total_BD = jnp.einsum('BTD,BT->BD', y_BTD, valid_BT.astype(y_BTD.dtype), preferred_element_type=jnp.float32)
    mean_BD = total_BD / jnp.maximum(jnp.sum(valid_BT, axis=1, keepdims=True), 1)
    return mean_BD.astype(y_BTD.dtype)[:, None]


POOLINGS = {
    'first': lambda y_BTD, valid_BT: y_BTD[:, :1],
    'mean': mean_pooling,
    'tokens': lambda y_BTD, valid_BT: y_BTD,
}
