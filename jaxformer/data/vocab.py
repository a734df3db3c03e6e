"""The table of symbols that source and target share, and how text becomes symbols and symbols text again."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxformer.data import byte_level
from jaxformer.data.ids import BOS, EOS, MASK, PAD, UNK, Ids
from jaxformer.data.tokenizer_file import TokenizerFile
from jaxformer.errors import UserError

__all__ = ['BOS', 'EOS', 'MASK', 'PAD', 'UNK']  # re-exported

SPECIALS = ('<pad>', '<s>', '</s>', '<unk>')
"""How the first ids are written. No text encodes to them by its spelling: a '<pad>' in it is a symbol like others."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A choice of data.tokenizer."""

    specials: tuple[str, ...]
    split: Callable[[str], list[str]]  # text → symbols (of bpe: before they are merged)
    join: Callable[[Iterable[str]], str]  # symbols → text


def _refuse(text: str) -> list[str]:
    raise UserError(
        'vocabulary (vocab.json): only ids, without a tokenizer that reads a text; '
        'import the model again from a directory with its tokenizer.json'
    )


_WITH_MASK = (*SPECIALS, '<mask>')

TOKENIZERS: Mapping[str, Tokenizer] = {
    'native': Tokenizer(SPECIALS, str.split, ' '.join),
    'characters': Tokenizer(_WITH_MASK, list, ''.join),
    'bytes': Tokenizer(_WITH_MASK, byte_level.spell, byte_level.read),
    'bpe': Tokenizer(_WITH_MASK, byte_level.spell, byte_level.read),
    'file': Tokenizer((), _refuse, ' '.join),  # of a vocabulary without a definition
}
"""data.tokenizer → its parts."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """V symbols by id; a symbol that is not among them encodes to ids.unk.

    The special ones come first, but for the tokenizer 'file', where all ids are those of another model.
    """

    symbols: tuple[str, ...]
    tokenizer: str = 'native'
    merges: tuple[str, ...] = ()  # bpe: pairs of symbols, 'left right', the most frequent first
    classes: tuple[str, ...] = ()  # of labelled data: names, by number
    ids: Ids = Ids()
    definition: str = ''  # file: the content of its tokenizer.json; '' where the symbols are all that is known

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise UserError(f'vocabulary: tokenizer {self.tokenizer!r}; it has to be one of {", ".join(TOKENIZERS)}')
        specials, first = TOKENIZERS[self.tokenizer].specials, self.symbols[: self._num_specials]
        if first != specials:
            raise UserError(f'vocabulary: begins with {first}; it has to begin with {specials}')
        if self.tokenizer != 'file' and len(self._ids) != len(self.symbols) - len(specials):
            raise UserError('vocabulary: a symbol occurs twice; each symbol has one id')
        if self.merges and self.tokenizer != 'bpe':
            raise UserError(f'vocabulary: merges with tokenizer {self.tokenizer!r}; only bpe has some')
        if self.tokenizer != 'file' and (self.definition or self.ids != Ids()):
            raise UserError(f'vocabulary: ids of its own with tokenizer {self.tokenizer!r}; only file has some')
        if max(dataclasses.astuple(self.ids)) >= len(self.symbols) and self.tokenizer == 'file':
            raise UserError(f'vocabulary: {self.ids} with {len(self.symbols)} symbols; each id has to be below')

    @classmethod
    def of(
        cls,
        symbols: Iterable[str],
        tokenizer: str = 'native',
        merges: tuple[str, ...] = (),
        classes: tuple[str, ...] = (),
    ) -> 'Vocabulary':
        """The vocabulary of the distinct `symbols`, in the order of their first occurrence."""
        return cls(TOKENIZERS[tokenizer].specials + tuple(dict.fromkeys(symbols)), tokenizer, merges, classes)

    @classmethod
    def learn(
        cls,
        tokenizer: str,
        texts: Iterable[str],
        size: int,
        alphabet: Sequence[str] = (),
        classes: tuple[str, ...] = (),
    ) -> 'Vocabulary':
        """The vocabulary of `texts`, those of the training split.

        Args:
          size: rows at most, for bpe. alphabet: symbols that come first, whether or not they occur.
        """
        if tokenizer == 'bpe':
            symbols, merges = byte_level.train(texts, size - len(TOKENIZERS['bpe'].specials))
            return cls.of(symbols, 'bpe', merges, classes)
        if tokenizer == 'bytes':
            return cls.of(byte_level.BYTES, 'bytes', (), classes)
        seen: set[str] = set()
        for text in texts:
            seen.update(TOKENIZERS[tokenizer].split(text))
        return cls.of((*alphabet, *sorted(seen)), tokenizer, (), classes)

    @classmethod
    def of_file(cls, file: TokenizerFile, classes: tuple[str, ...] = ()) -> 'Vocabulary':
        """The vocabulary of another model's tokenizer."""
        return cls(file.symbols, 'file', classes=classes, ids=file.ids, definition=file.definition)

    @property
    def _num_specials(self) -> int:
        return len(TOKENIZERS[self.tokenizer].specials)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        special = self._file.special if self.definition else range(self._num_specials)
        return {symbol: id_ for id_, symbol in enumerate(self.symbols) if id_ not in special}

    @functools.cached_property
    def _file(self) -> TokenizerFile:
        return TokenizerFile(self.definition, self.ids)

    @functools.cached_property
    def _merger(self) -> Any:
        try:
            return byte_level.merger(self.symbols[self._num_specials :], self.merges)
        except ValueError as error:
            raise UserError(f'vocabulary (vocab.json): merges of other symbols ({error}); put back a copy') from None

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """The id of each symbol, ids.unk for an unseen one. No BOS or EOS is added."""
        return [self._ids.get(symbol, self.ids.unk) for symbol in symbols]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The symbols before the first EOS (or all of them without one), PAD and BOS left out; UNK stays visible.

        Raises:
          IndexError: an id is not in [0, V).
        """
        symbols = []
        for id_ in ids:
            if id_ == self.ids.eos:
                break
            if id_ in (self.ids.pad, self.ids.bos):
                continue
            if not 0 <= id_ < len(self.symbols):
                raise IndexError(f'id {id_} is not in a vocabulary of {len(self.symbols)}')
            symbols.append(self.symbols[id_])
        return symbols

    def encode_texts(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """The ids of each text. No BOS or EOS is added."""
        if self.definition:
            yield from self._file.encode_texts(texts)
        elif self.tokenizer == 'bpe':
            for ids in byte_level.merged(self._merger, texts):
                yield [id_ + self._num_specials for id_ in ids]
        elif self.tokenizer == 'bytes':
            for text in texts:
                yield [byte + self._num_specials for byte in text.encode()]
        else:
            for text in texts:
                yield self.encode(TOKENIZERS[self.tokenizer].split(text))

    def split(self, text: str) -> list[str]:
        """The symbols of a text, as `encode` takes them."""
        if self.tokenizer == 'bpe' or self.definition:
            return [self.symbols[id_] for ids in self.encode_texts([text]) for id_ in ids]
        return TOKENIZERS[self.tokenizer].split(text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(first, end) of the characters of a text that each of its tokens stands for; of the tokenizer 'file'."""
        return self._file.spans(text)

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols that `decode` gave: separated by blanks if native, as it was written otherwise."""
        if self.definition:
            return self._file.join(list(symbols))
        return TOKENIZERS[self.tokenizer].join(symbols)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` restores the vocabulary."""
        value: dict[str, Any] = {'symbols': list(self.symbols)}
        if self.tokenizer != 'native':
            value['tokenizer'] = self.tokenizer
        if self.tokenizer == 'file':
            value['ids'] = dataclasses.asdict(self.ids)
        if self.definition:
            value['definition'] = json.loads(self.definition)
        return value | {name: list(part) for name in ('merges', 'classes') if (part := getattr(self, name))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> 'Vocabulary':
        """Restores what `to_json` gave. Raises UserError where it is something else."""
        if not isinstance(value, Mapping) or not isinstance(value.get('symbols'), list):
            raise UserError('vocabulary (vocab.json): no object with a list "symbols"; put back a copy of it')
        lists = {name: value.get(name, []) for name in ('symbols', 'merges', 'classes')}
        for name, part in lists.items():
            if not isinstance(part, list) or not all(isinstance(symbol, str) for symbol in part):
                raise UserError(f'vocabulary (vocab.json): an entry of {name} is not text; put back a copy of the file')
        parts: dict[str, Any] = {name: tuple(part) for name, part in lists.items()}
        if value.get('tokenizer') == 'file':
            parts |= _of_another_model(value)
        return cls(tokenizer=value.get('tokenizer', 'native'), **parts)


def _of_another_model(value: Mapping[str, Any]) -> dict[str, Any]:
    """ids and definition of a vocab.json, checked."""
    ids, definition = value.get('ids'), value.get('definition')
    names = {field.name for field in dataclasses.fields(Ids)}
    if not isinstance(ids, dict) or set(ids) != names or not all(type(id_) is int for id_ in ids.values()):
        raise UserError('vocabulary (vocab.json): ids is no object of the special ids; put back a copy of the file')
    if definition is None:
        return {'ids': Ids(**ids)}
    file = TokenizerFile(json.dumps(definition, ensure_ascii=False, separators=(',', ':')))
    try:
        matches = list(file.symbols) == value['symbols']
    except ValueError as error:
        raise UserError(f'vocabulary (vocab.json): definition of no tokenizer ({error}); put back a copy') from None
    if not matches:
        raise UserError('vocabulary (vocab.json): symbols are not those of its definition; put back a copy of the file')
    return {'ids': Ids(**ids), 'definition': file.definition}
