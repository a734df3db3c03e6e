"""What a data set gives before anything is a number."""

import dataclasses
from typing import TypedDict

import numpy as np


class Pair(TypedDict):
    """A source and a target with every output that counts as right, `references`; the first of them is the target.

    Symbols of native targets and references are separated by blanks.
    """

    source: str
    target: str
    references: list[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Labelled:
    """A text with the name of its class, or with the number of the class of each of its characters."""

    text: str
    label: str | np.ndarray
