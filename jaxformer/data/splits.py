"""The examples of a split by number, mapped into memory, and the rows of a batch that they make."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from jaxformer.data.ragged import Ragged
from jaxformer.data.vocab import PAD

Batch = dict[str, np.ndarray]
Bucket = tuple[int, ...]


class Split(abc.ABC):
    """Examples of one kind. A row number of −1 is a row that only fills up a batch: all padding, example_id −1."""

    kind: ClassVar[str]
    name: str

    @abc.abstractmethod
    def fits(self, bucket: Bucket) -> np.ndarray:
        """Boolean [examples]: which of them the bucket holds."""

    @abc.abstractmethod
    def batch(self, rows_B: np.ndarray, bucket: Bucket) -> Batch:
        """The batch of the examples `rows_B`, each of which fits the bucket."""


@dataclasses.dataclass(frozen=True, eq=False)
class PairSplit(Split):
    """Pairs of texts: {'source': int32 [B, S], 'target': int32 [B, T], 'example_id': int32 [B]} in a bucket (S, T)."""

    kind: ClassVar[str] = 'pairs'

    name: str
    source: Ragged  # symbol ids and EOS
    target: Ragged  # symbol ids and EOS
    text: Ragged  # the source as it was written, UTF-8
    reference_text: Ragged  # UTF-8, one reference a line
    symbols: Callable[[str], list[str]] = str.split  # of a reference
    fill: int = PAD  # behind a row

    def __len__(self) -> int:
        return len(self.source)

    def source_text(self, index: int) -> str:
        """The source of example `index` as it was written."""
        return self.text[index].tobytes().decode()

    def reference_texts(self, index: int) -> list[str]:
        """Each output that counts as right for example `index`, as it was written; the first is the target."""
        return self.reference_text[index].tobytes().decode().split('\n')

    def references(self, index: int) -> list[list[str]]:
        """The symbols of each output that counts as right for example `index`; the first is the target."""
        return [self.symbols(line) for line in self.reference_texts(index)]

    def fits(self, bucket: Bucket) -> np.ndarray:
        return (self.source.lengths <= bucket[0]) & (self.target.lengths <= bucket[1])

    def batch(self, rows_B: np.ndarray, bucket: Bucket) -> Batch:
        return {
            'source': self.source.pad(rows_B, bucket[0], self.fill),
            'target': self.target.pad(rows_B, bucket[1], self.fill),
            'example_id': rows_B.astype(np.int32),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class TextSplit(Split):
    """One stream of documents, cut into rows: {'tokens': int32 [B, T], 'example_id': int32 [B]} in a bucket (T,).

    Row i holds the tokens [i·T, (i+1)·T) of the stream, in which each document is followed by EOS; the last row is
    filled up with PAD. With packing 'documents' there is also 'segment', int32 [B, T]: the number of the document
    within its row, from 1, and 0 at PAD.
    """

    kind: ClassVar[str] = 'text'

    name: str
    documents: Ragged  # symbol ids and EOS
    packing: str  # stream | documents
    fill: int = PAD  # behind the last row
    num_bytes: int = 0  # of the documents as UTF-8; 0 where nobody counted

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream, EOS included."""
        return len(self.documents.values)

    def fits(self, bucket: Bucket) -> np.ndarray:
        return np.ones(-(-self.num_tokens // bucket[0]), bool)

    def batch(self, rows_B: np.ndarray, bucket: Bucket) -> Batch:
        place_BT = rows_B[:, None].astype(np.int64) * bucket[0] + np.arange(bucket[0])
        inside_BT = (place_BT >= 0) & (place_BT < self.num_tokens)
        tokens_BT = np.full(place_BT.shape, self.fill, np.int32)
        tokens_BT[inside_BT] = self.documents.values[place_BT[inside_BT]]
        batch = {'tokens': tokens_BT, 'example_id': rows_B.astype(np.int32)}
        if self.packing == 'documents':
            document_BT = np.searchsorted(self.documents.offsets, place_BT, side='right')
            segment_BT = document_BT - document_BT[:, :1] + 1
            batch['segment'] = np.where(inside_BT, segment_BT, 0).astype(np.int32)
        return batch


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledSplit(Split):
    """Texts with classes: {'tokens': int32 [B, T], 'label': int32 [B] or [B, T], 'example_id': int32 [B]}, (T,).

    A row of tokens is BOS, the text, EOS and PAD. The label is the class of the text, or of each token, and −1 where
    there is none: at BOS, EOS and PAD, and in rows of padding.
    """

    kind: ClassVar[str] = 'labelled'

    name: str
    tokens: Ragged  # BOS, symbol ids, EOS
    labels: Ragged  # one to each text, or one to each token
    per_token: bool
    fill: int = PAD  # behind a row of tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def fits(self, bucket: Bucket) -> np.ndarray:
        return self.tokens.lengths <= bucket[0]

    def batch(self, rows_B: np.ndarray, bucket: Bucket) -> Batch:
        label = self.labels.pad(rows_B, bucket[0] if self.per_token else 1, fill=-1)
        return {
            'tokens': self.tokens.pad(rows_B, bucket[0], self.fill),
            'label': label if self.per_token else label[:, 0],
            'example_id': rows_B.astype(np.int32),
        }
