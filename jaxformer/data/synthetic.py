"""Synthetic tasks for tests and sanity checks: copy, reverse and sort a sequence of numbers.

Importing this module imports tensorflow_datasets; reading a prepared corpus does not need it.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from etils import epath

from jaxformer.data import pairs
from jaxformer.data.examples import Pair
from jaxformer.data.pairs import PairsBuilder
from jaxformer.schema import DataConfig

TASKS: Mapping[str, Callable[[list[int]], list[int]]] = {
    'copy': list,
    'reverse': lambda symbols: symbols[::-1],
    'sort': sorted,
}
"""data.name -> source symbols -> target symbols."""


def example(task: str, index: int, *, min_length: int, max_length: int, num_symbols: int) -> Pair:
    """Example `index` of the endless sequence of a task: a pure function, the same in every process."""
    # Raw bits only: NumPy promises that these never change, and makes no such promise for its distributions.
    raw = np.random.Philox(np.random.SeedSequence(index)).random_raw(1 + max_length)
    length = min_length + int(raw[0]) % (max_length - min_length + 1)
    source = [int(bits) % num_symbols for bits in raw[1 : 1 + length]]
    target = ' '.join(map(str, TASKS[task](source)))
    return {'source': ' '.join(map(str, source)), 'target': target, 'references': [target]}


def splits(data: DataConfig) -> dict[str, list[Pair]]:
    """`num_examples` examples for train, a tenth as many (at least one) for dev and for test, in this order.

    No source of a split occurs in an earlier one while there are enough different sources: a split that has passed
    over ten times its size takes what comes.
    """
    fields = {'min_length': data.min_length, 'max_length': data.max_length, 'num_symbols': data.num_symbols}
    sequence = (example(data.name, index, **fields) for index in itertools.count())
    held_out = max(1, data.num_examples // 10)
    taken: dict[str, list[Pair]] = {}
    for name, size in (('train', data.num_examples), ('dev', held_out), ('test', held_out)):
        earlier = {row['source'] for rows in taken.values() for row in rows}
        rows: list[Pair] = []
        passed_over = 0
        while len(rows) < size:
            row = next(sequence)
            if row['source'] in earlier and passed_over < 10 * size:
                passed_over += 1
            else:
                rows.append(row)
        taken[name] = rows
    return taken


class Synthetic(PairsBuilder):
    """Sequences of numbers to copy, reverse or sort."""

    def __init__(self, data: DataConfig, **options: Any):
        self._data = data
        super().__init__(**options)

    def pairs(self) -> dict[str, list[Pair]]:
        return splits(self._data)


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Pair]]:
    """The pairs of each split of the task `data.name`, by way of `directory`."""
    return pairs.read(Synthetic(data, data_dir=directory, file_format='array_record'))
