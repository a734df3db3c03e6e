"""Batches of token ids: length buckets, epoch shuffles, rows per process, and a state that is one index.

A batch is what `splits.PairSplit`, `TextSplit` or `LabelledSplit` says, in the shape of one of `data.buckets`. A row
that only fills up a batch is all PAD with example_id −1.

Training batch n is a pure function of (data, buckets, batch size, seed, n), formed globally: each process takes the
rows of it that its devices hold (`sharding.rows_here`), so that the state is n whatever the process count. The sequence
of shapes does not depend on the seed, so that runs of different seeds meet the same shapes at the same steps and can
run together.
"""

import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

from jaxformer.data.corpus import Corpus
from jaxformer.data.splits import Batch, Bucket, PairSplit, Split
from jaxformer.errors import UserError
from jaxformer.schema import Config

if TYPE_CHECKING:
    import grain

Buckets = tuple[Bucket, ...]

_EXAMPLE_ORDER, _SHAPE_ORDER = 0, 1  # what a permutation is for: the first word of its key


def train_iterator(cfg: Config, corpus: Corpus, rows: np.ndarray | None = None) -> 'grain.DatasetIterator[Batch]':
    """The endless training batches, prepared ahead by threads.

    `get_state()` is {'next_index': number of batches taken}; `set_state` goes on from any such state, of any process
    count.

    Args:
      rows: int [b], those of each global batch that this process takes; all without it.

    Raises:
      UserError: no example fits the buckets.
    """
    import grain

    batches = TrainBatches(
        corpus.split('train'),
        cfg.data.buckets,
        cfg.train.batch_size,
        seed=cfg.seed,
        shuffle=cfg.data.shuffle,
        rows=rows,
    )
    dataset = grain.MapDataset.range(sys.maxsize).map(batches.__getitem__)
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)))


class TrainBatches:
    """Training batch n by `[n]`, for every n ≥ 0.

    In each epoch every example that fits comes once. Within a bucket the order of the examples is shuffled by (seed,
    epoch, bucket), or that of the file with `shuffle` off. Those left over after the last whole batch of a bucket join
    the next larger one, so that at most one batch of an epoch, its last, has padding rows.
    """

    def __init__(
        self,
        split: Split,
        buckets: Buckets,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        rows: np.ndarray | None = None,
    ):
        self._split = split
        self._buckets = buckets
        self._rows = slice(None) if rows is None else rows
        assigned = assign_buckets(split, buckets)
        self.num_examples = int(np.sum(assigned >= 0))
        self.skipped = len(assigned) - self.num_examples
        if not self.num_examples:
            raise UserError(
                f'config.data.buckets={buckets}: none of the {len(assigned)} training examples fits; add a larger one'
            )
        self.batches_per_epoch = -(-self.num_examples // batch_size)
        # Two epochs: threads that prepare ahead are in the next one while this one ends.
        self._epoch = functools.lru_cache(maxsize=2)(
            lambda epoch: plan_epoch(assigned, len(buckets), batch_size, seed=seed, epoch=epoch, shuffle=shuffle)
        )

    def __getitem__(self, index: int) -> Batch:
        epoch, position = divmod(index, self.batches_per_epoch)
        bucket, rows_B = self._epoch(epoch)[position]
        return self._split.batch(rows_B[self._rows], self._buckets[bucket])


class EvalBatches:
    """Every example of `split` once, bucket after bucket, in the order of the file; see `eval_batches`."""

    def __init__(self, split: Split, buckets: Buckets, batch_size: int, rows: np.ndarray | None = None):
        self._split = split
        self._rows = slice(None) if rows is None else rows
        assigned = assign_buckets(split, buckets)
        self.skipped = int(np.sum(assigned < 0))
        self.num_examples = len(assigned) - self.skipped
        self._plan = [
            (shape, rows_B)
            for bucket, shape in enumerate(buckets)
            for rows_B in _rows_of_batches(np.flatnonzero(assigned == bucket), batch_size)
        ]

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[Batch]:
        for shape, rows_B in self._plan:
            yield self._split.batch(rows_B[self._rows], shape)


def eval_batches(split: Split, buckets: Buckets, batch_size: int, rows: np.ndarray | None = None) -> EvalBatches:
    """Batches in which every example of `split` that fits `buckets` comes once; iterable any number of times.

    The last batch of each bucket is filled up with padding rows, so that the shapes are those of the buckets.
    `.skipped` examples are too long. `rows` (int [b]): those of each batch that this process takes; all without it.
    """
    return EvalBatches(split, buckets, batch_size, rows)


def padding_share(split: PairSplit, buckets: Buckets) -> float:
    """Share of PAD among the positions, source and target, of the examples that fit, each padded to its bucket."""
    assigned = assign_buckets(split, buckets)
    fits = assigned >= 0
    tokens = split.source.lengths[fits].sum() + split.target.lengths[fits].sum()
    positions = np.asarray(buckets).sum(axis=1)[assigned[fits]].sum()
    return float(1 - tokens / positions)


@functools.lru_cache(maxsize=16)
def assign_buckets(split: Split, buckets: Buckets) -> np.ndarray:
    """int [examples]: the first bucket that holds the example whole, −1 where none does.

    The first call for a split and its buckets warns of those that fit none.
    """
    fits = [split.fits(bucket) for bucket in buckets]
    assigned = np.where(np.any(fits, axis=0), np.argmax(fits, axis=0), -1)
    if skipped := int(np.sum(assigned < 0)):
        logging.warning(
            '%s: %d of %d examples are longer than the largest of data.buckets %s and are left out',
            split.name,
            skipped,
            len(assigned),
            buckets[-1],
        )
    return assigned


def plan_epoch(
    assigned: np.ndarray, num_buckets: int, batch_size: int, *, seed: int, epoch: int, shuffle: bool
) -> list[tuple[int, np.ndarray]]:
    """(bucket, example numbers [B] with −1 for a padding row) of each batch of an epoch; a pure function.

    The sequence of buckets depends on how many examples each bucket has, the batch size and the epoch alone.
    """
    batches: list[tuple[int, np.ndarray]] = []
    left_over = np.zeros(0, np.int64)
    for bucket in range(num_buckets):
        pool = np.sort(np.concatenate([left_over, np.flatnonzero(assigned == bucket)]))
        if shuffle:
            pool = pool[_permutation(len(pool), _EXAMPLE_ORDER, seed, epoch, bucket)]
        whole = len(pool) - len(pool) % batch_size
        batches += [(bucket, rows_B) for rows_B in _rows_of_batches(pool[:whole], batch_size)]
        left_over = pool[whole:]
    # Shapes are permuted, and the batches of one bucket stay in their order.
    order = _permutation(len(batches), _SHAPE_ORDER, epoch)
    shapes = np.array([bucket for bucket, _ in batches], np.int64)[order]
    place = np.empty(len(batches), np.int64)
    place[np.argsort(shapes, kind='stable')] = np.arange(len(batches))
    return [batches[i] for i in place] + [
        (num_buckets - 1, rows_B) for rows_B in _rows_of_batches(left_over, batch_size)
    ]


def _rows_of_batches(examples: np.ndarray, batch_size: int) -> np.ndarray:
    """int [batches, B]: `examples` in turn, the last row filled up with −1."""
    missing = -len(examples) % batch_size
    return np.pad(examples, (0, missing), constant_values=-1).reshape(-1, batch_size)


def _permutation(size: int, *key: int) -> np.ndarray:
    """A permutation of `size` numbers by `key`, the same on every platform and with every NumPy.

    NumPy promises that the raw bits of Philox never change, and makes no such promise for `Generator.permutation`.
    """
    return np.argsort(np.random.Philox(np.random.SeedSequence(key)).random_raw(size), kind='stable')
