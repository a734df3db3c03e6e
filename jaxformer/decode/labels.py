"""Classes that a classifier gives to texts: one compiled program per bucket."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer import sharding
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.reading import Reading
from jaxformer.model.family import Family
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config


class Labels:
    """The most probable class of texts, or of each of their tokens."""

    def __init__(self, cfg: Config, model: Family, vocab: Vocabulary, mesh: Mesh) -> None:
        self._cfg, self._model, self._vocab, self._mesh = cfg, model, vocab, mesh
        self._rows = sharding.whole_rows(cfg.eval.batch_size, mesh)
        self.classify = CountedJit(self._classify)
        self.reading = Reading(cfg, vocab, self._no_room)

    def _classify(self, params: Any, tokens_BT: jax.Array) -> jax.Array:
        """[B, 1] or [B, T]: numbers of classes among those of the data."""
        logits_BTY, _ = self._model.apply({'params': params}, tokens_BT)
        return jnp.argmax(logits_BTY[..., : len(self._vocab.classes)], axis=-1)

    def lines(self, params: Any, lines: Sequence[str], first: int = 0) -> Iterable[tuple[str, int]]:
        """(class of each line, or of each of its tokens separated by blanks; number of unknown symbols), in order.

        A blank line gives an empty one.

        Args:
          first: number of the first line, from 0, for messages.

        Raises:
          UserError: a line is longer than the longest of data.buckets, unless `reading` is lenient.
        """
        vocab, special = self._vocab, self._vocab.ids
        encoded = self.reading(lines, first)
        outputs = [''] * len(lines)
        sizes = [size for (size,) in self._cfg.data.buckets]
        by_shape: dict[int, list[int]] = {}
        for index, tokens in enumerate(encoded):
            if tokens:
                by_shape.setdefault(next(size for size in sizes if len(tokens) + 2 <= size), []).append(index)
        for shape, indices in sorted(by_shape.items()):
            for start in range(0, len(indices), self._rows):
                rows = indices[start : start + self._rows]
                tokens_BT = np.full((self._rows, shape), self._cfg.model.ids.pad, np.int32)
                for row, index in enumerate(rows):
                    tokens_BT[row, : len(encoded[index]) + 2] = [special.bos, *encoded[index], special.eos]
                placed = sharding.put_batch({'tokens': tokens_BT}, self._mesh)['tokens']
                for index, numbers in zip(rows, jax.device_get(self.classify(params, placed)), strict=False):
                    per_token = self._cfg.model.head.pooling == 'tokens'
                    numbers = numbers[1 : len(encoded[index]) + 1] if per_token else numbers
                    outputs[index] = ' '.join(vocab.classes[number] for number in numbers)
        return zip(outputs, (tokens.count(special.unk) for tokens in encoded), strict=True)

    def _no_room(self, length: int) -> str:
        sizes = [size for (size,) in self._cfg.data.buckets]
        if length + 2 > sizes[-1]:
            return f'; the longest of config.data.buckets={sizes} has room for {sizes[-1] - 2}'
        return ''
