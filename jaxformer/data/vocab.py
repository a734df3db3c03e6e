"""The table of symbols that source and target share."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxformer.errors import UserError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ('<pad>', '<s>', '</s>', '<unk>')
"""How the four special ids are written. Text never encodes to them by its spelling: a '<pad>' in a text is a symbol."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """V symbols by id, the four specials first; a symbol that is not among them encodes to UNK."""

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.symbols[: len(SPECIALS)] != SPECIALS:
            raise UserError(f'vocabulary: begins with {self.symbols[:4]}; it has to begin with {SPECIALS}')
        if len(self._ids) != len(self.symbols) - len(SPECIALS):
            raise UserError('vocabulary: a symbol occurs twice; each symbol has one id')

    @classmethod
    def of(cls, symbols: Iterable[str]) -> 'Vocabulary':
        """The vocabulary of the distinct `symbols`, in the order of their first occurrence."""
        return cls(SPECIALS + tuple(dict.fromkeys(symbols)))

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: id_ for id_, symbol in enumerate(self.symbols) if id_ >= len(SPECIALS)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """The id of each symbol, UNK for an unseen one. No BOS or EOS is added."""
        return [self._ids.get(symbol, UNK) for symbol in symbols]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """The symbols before the first EOS (or all of them without one), PAD and BOS left out; UNK stays visible.

        Raises:
          IndexError: an id is not in [0, V).
        """
        symbols = []
        for id_ in ids:
            if id_ == EOS:
                break
            if not 0 <= id_ < len(self.symbols):
                raise IndexError(f'id {id_} is not in a vocabulary of {len(self.symbols)}')
            if id_ not in (PAD, BOS):
                symbols.append(self.symbols[id_])
        return symbols

    def to_json(self) -> dict[str, list[str]]:
        """A JSON object from which `from_json` restores the vocabulary."""
        return {'symbols': list(self.symbols)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> 'Vocabulary':
        """Restores what `to_json` gave. Raises UserError where it is something else."""
        if not isinstance(value, Mapping) or not isinstance(value.get('symbols'), list):
            raise UserError('vocabulary (vocab.json): no object with a list "symbols"; put back a copy of it')
        if not all(isinstance(symbol, str) for symbol in value['symbols']):
            raise UserError('vocabulary (vocab.json): a symbol is not text; put back a copy of the file')
        return cls(tuple(value['symbols']))
