"""The TFDS form of every local data set: pairs of texts with the references that an output may equal.

Importing this module imports tensorflow_datasets; reading a prepared corpus does not need it.
"""

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

import numpy as np
import tensorflow_datasets as tfds


class Pair(TypedDict):
    """One example. Symbols of `target` and of each reference are separated by blanks."""

    source: str
    target: str
    references: list[str]


class PairsBuilder(tfds.core.GeneratorBasedBuilder):
    """Writes the pairs that `pairs()` gives, split by split, in their order."""

    VERSION = tfds.core.Version('1.0.0')

    @abc.abstractmethod
    def pairs(self) -> Mapping[str, Iterable[Pair]]:
        """Split name -> pairs."""

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            features=tfds.features.FeaturesDict(
                {
                    'source': tfds.features.Text(),
                    'target': tfds.features.Text(),
                    'references': tfds.features.Tensor(shape=(None,), dtype=np.str_),
                }
            ),
            disable_shuffling=True,  # the pipeline shuffles; record i is then the i-th pair
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(pairs) for split, pairs in self.pairs().items()}

    def _generate_examples(self, pairs: Iterable[Pair]) -> Iterator[tuple[int, Pair]]:
        yield from enumerate(pairs)
