"""A data set, prepared once as token arrays on disk and mapped into memory by every later run.

Everything is made in a directory `….partial` that is renamed when it is whole, under a lock, so that a half-made data
set never counts, one left by a kill is made anew, and of several processes one works while the others wait. The
directory is named after all that its content depends on, so that other settings never read it.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import logging
from etils import epath

from jaxformer import files
from jaxformer.data import sources, text
from jaxformer.data.held_out import SPLITS
from jaxformer.data.prepare import TEXT_SIZES, prepare
from jaxformer.data.ragged import Ragged
from jaxformer.data.sources import SOURCES
from jaxformer.data.splits import LabelledSplit, PairSplit, Split, TextSplit
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

__all__ = ['SOURCES', 'SPLITS', 'Split']  # re-exported

_FORMAT = 5
"""Raised with every change of a source or of the files, so that what an older version prepared is not read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared data set."""

    data: DataConfig
    directory: epath.Path
    vocab: Vocabulary

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def kind(self) -> str:
        """pairs | text | labelled: what an example is."""
        return sources.find(self.name).kind

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of labelled data, none for others."""
        return self.vocab.classes

    def split(self, name: str) -> Split:
        """The split 'train', 'dev' or 'test': a PairSplit, TextSplit or LabelledSplit, by the kind.

        Raises:
          UserError: there is no such split, or a file of it is damaged.
        """
        if name not in SPLITS:
            raise UserError(f'split {name!r}: data set {self.name} has {", ".join(SPLITS)}')
        with _damage_named(self.directory):
            return {'pairs': self._pairs, 'text': self._text, 'labelled': self._labelled}[self.kind](name)

    def _pairs(self, split: str) -> PairSplit:
        columns = ('source', 'target', 'text', 'reference_text')
        rows = {column: self._rows(split, column) for column in columns}
        return PairSplit(split, **rows, symbols=self.vocab.split, fill=self.vocab.ids.pad)

    def _text(self, split: str) -> TextSplit:
        num_bytes = files.read_json(self.directory / TEXT_SIZES)[split]
        return TextSplit(split, self._rows(split, 'documents'), self.data.packing, self.vocab.ids.pad, num_bytes)

    def _labelled(self, split: str) -> LabelledSplit:
        tokens, labels = self._rows(split, 'tokens'), self._rows(split, 'labels')
        return LabelledSplit(split, tokens, labels, sources.per_token(self.data), self.vocab.ids.pad)

    def _rows(self, split: str, column: str) -> Ragged:
        return Ragged.load(self.directory, f'{split}.{column}')

    def source_symbols(self, line: str) -> list[str]:
        """The symbols of a source text; none for a blank one."""
        return sources.source_symbols(self.name, self.vocab, line)

    def encode(self, line: str) -> list[int]:
        """The ids of a source text, without BOS and EOS; none for a blank one."""
        return self.vocab.encode(self.source_symbols(line))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an output's ids: up to its EOS, and as it is written."""
        return self.vocab.join(self.vocab.decode(ids))

    def target_text(self, symbols: Iterable[str]) -> str:
        """Symbols of an output as a text."""
        return self.vocab.join(symbols)


def load(data: DataConfig) -> Corpus:
    """Opens the data set `data.name` in `data.dir`, after preparing it there if it is not there yet.

    Raises:
      UserError: there is no such data set, what it is made of cannot be read, or `data.dir` cannot be written.
    """
    directory = prepared_directory(data)
    if not directory.exists():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with files.lock(directory.parent / f'.{directory.name}.lock', wait=True):
                if not directory.exists():
                    _prepare(data, directory)
        except OSError as error:
            raise UserError(
                f'config.data.dir={data.dir}: {data.name} cannot be prepared there ({error}); '
                'choose a writable directory'
            ) from error
    with _damage_named(directory):
        vocab = Vocabulary.from_json(files.read_json(directory / 'vocab.json'))
    return Corpus(data, directory, vocab)


def load_for(data: DataConfig, split: str) -> Corpus:
    """`load` for the sake of one split: of others than train `data.targets` says nothing, and need not be there."""
    return load(data if split == 'train' else untaught(data))


def untaught(data: DataConfig) -> DataConfig:
    """The data without what another model wrote for train."""
    return dataclasses.replace(data, targets='')


@contextlib.contextmanager
def _damage_named(directory: epath.Path) -> Iterator[None]:
    """Turns what reading a damaged file raises into a UserError."""
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f'{directory}: damaged ({error}); remove it and it is prepared anew') from None


def identity(data: DataConfig) -> dict[str, Any]:
    """All that the examples depend on, down to the contents of files and the versions of packages, as plain values."""
    settings = {'name': data.name, **sources.find(data.name).settings(data)}
    if data.targets:
        settings['targets'] = text.fingerprint(text.find('config.data.targets', data.targets, several=False))
    return json.loads(json.dumps(settings))


def prepared_directory(data: DataConfig) -> epath.Path:
    """Where `load` keeps a data set: named after `data`, the format, and the files or packages it is made of.

    Raises:
      UserError: there is no such data set, or such a file or package.
    """
    if '://' in data.dir:
        raise UserError(f'config.data.dir={data.dir}: its files are mapped into memory; choose a local directory')
    settings = {'format': _FORMAT, **identity(data)}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r'[^\w.-]', '-', data.name)  # of a TFDS set: with / and :
    return epath.Path(data.dir).expanduser() / f'{name}-{key}'


def _prepare(data: DataConfig, directory: epath.Path) -> None:
    """Makes `directory`; the caller holds the lock."""
    logging.info('Preparing %s in %s (once)', data.name, directory)
    partial = directory.parent / f'{directory.name}.partial'
    if partial.exists():
        partial.rmtree()
    partial.mkdir()
    try:
        prepare(data, partial)
    except Exception:
        partial.rmtree()
        raise
    partial.rename(directory)
