"""What a data set gives before anything is a number."""

import dataclasses
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from absl import logging


class Pair(TypedDict):
    """A source and a target with every output that counts as right, `references`; the first of them is the target.

    Symbols of native targets and references are separated by blanks.
    """

    source: str
    target: str
    references: list[str]


def without_empty(pairs: Sequence[Pair], name: str) -> list[Pair]:
    """The pairs of which neither side is blank. Both sides go together; a warning says from what, and how many."""
    kept = [pair for pair in pairs if pair['source'].strip() and pair['target'].strip()]
    if dropped := len(pairs) - len(kept):
        what = '1 pair with an empty side is' if dropped == 1 else f'{dropped} pairs with an empty side are'
        logging.warning('%s: %s left out', name, what)
    return kept


@dataclasses.dataclass(frozen=True, eq=False)
class Labelled:
    """A text with the name of its class, or with the number of the class of each of its characters."""

    text: str
    label: str | np.ndarray
