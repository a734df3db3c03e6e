"""Which split an example belongs to where the data set does not say: by a hash, so that it never changes."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

SHARES = {'train': 88, 'dev': 2, 'test': 10}
"""Of a hundred keys."""

SPLITS = tuple(SHARES)

Item = TypeVar('Item')


def split_of(key: str) -> str:
    """'train', 'dev' or 'test' (88, 2 and 10 in a hundred), by the key alone, so that it never changes."""
    bucket = _hash(key) % 100
    return next(
        split for split, bound in zip(SPLITS, itertools.accumulate(SHARES.values()), strict=True) if bucket < bound
    )


def divided(items: Sequence[Item], keys: Iterable[str]) -> dict[str, list[Item]]:
    """Split name → its items, in their order; items of one key stay together.

    A split that the hash leaves empty, as happens with few keys, takes the training key of the least hash, while more
    than one is left.
    """
    keys = list(keys)
    home = {key: split_of(key) for key in keys}
    for split in SPLITS[1:]:
        training = sorted((key for key in home if home[key] == 'train'), key=_hash)
        if split not in home.values() and len(training) > 1:
            home[training[0]] = split
    taken: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for item, key in zip(items, keys, strict=True):
        taken[home[key]].append(item)
    return taken


def _hash(key: str) -> int:
    return int(hashlib.sha256(key.encode()).hexdigest(), 16)
