"""The TFDS form of the local data sets whose examples are worked out: cmudict and the synthetic tasks.

Importing this module imports tensorflow_datasets; reading a prepared corpus does not need it.
"""

import abc
import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jaxformer.data.examples import Pair
from jaxformer.data.held_out import SPLITS

_READ = 4096  # records per read


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


def read(builder: PairsBuilder) -> dict[str, list[Pair]]:
    """The pairs of each split as the builder wrote them."""
    prepare(builder)
    sources = {split: builder.as_data_source(split) for split in SPLITS}
    return {
        split: [
            {
                'source': as_text(record['source']),
                'target': as_text(record['target']),
                'references': [as_text(reference) for reference in record['references']],
            }
            for record in records(source)
        ]
        for split, source in sources.items()
    }


def prepare(builder: tfds.core.DatasetBuilder) -> None:
    """Downloads and prepares what is not there yet, without a word on standard output, which the command owns."""
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()


def records(source: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Reads a TFDS data source many records at a time, which costs a fraction of reading them one by one."""
    for start in range(0, len(source), _READ):
        yield from source.__getitems__(range(start, min(start + _READ, len(source))))  # type: ignore[attr-defined]


def as_text(value: str | bytes) -> str:
    """Text as TFDS gives it: bytes from the disk, str from its mock."""
    return value.decode() if isinstance(value, bytes) else value
