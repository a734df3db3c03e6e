"""Tokenizers of other models: a `tokenizer.json` as the library `tokenizers` writes it (the fast ones of transformers).

The library is imported only where a text is read or written.

Special ids are those that files beside it name (`named_ids`). Of what these do not say they are found by the names that
are usual (`NAMES`, the first that is there), among the tokens that the file marks as special; the unknown one is that
which the file's model says. No text encodes to a special id by its spelling:
the library's `encode_special_tokens` would leave those to the model, whose table may have '</s>' for a piece, too, so
that they are called otherwise while a text is read. What the file says of cutting and padding texts is passed over.
"""

import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from absl import logging
from etils import epath

from jaxformer import files
from jaxformer.data import byte_level, named_ids
from jaxformer.data.ids import Ids
from jaxformer.errors import UserError

if TYPE_CHECKING:
    import tokenizers

NAMES = {
    'pad': ('[PAD]', '<pad>', '<|padding|>', '<|finetune_right_pad_id|>'),
    'bos': ('[CLS]', '<s>', '<|begin_of_text|>', '<bos>', '<|endoftext|>'),
    'eos': ('[SEP]', '</s>', '<|end_of_text|>', '<eos>', '<|endoftext|>'),
    'mask': ('[MASK]', '<mask>'),
}
"""What special tokens are called: BERT's and T5's names first."""

_ELSEWHERE = '\ufdd0\ufdd1\ufdd0'  # noncharacters: put before a special token, so that no text spells it


@dataclasses.dataclass(frozen=True)
class TokenizerFile:
    """What `definition`, the content of a tokenizer.json, says."""

    definition: str
    told: Ids | None = None  # the special ids; None: found by their names

    @classmethod
    def read(cls, path: epath.PathLike) -> 'TokenizerFile':
        """Reads a file, and what those beside it say of special ids.

        Raises:
          UserError: a file is damaged (it is named), or `tokenizers` does not understand the tokenizer.json.
        """
        path = epath.Path(path).expanduser()
        try:
            made = cls(json.dumps(files.read_json(path), ensure_ascii=False, separators=(',', ':')))
        except FileNotFoundError:
            raise UserError(f'{path}: no such file; give the tokenizer.json of a model') from None
        beside = named_ids.beside(path)
        try:
            if beside:
                made = cls(made.definition, named_ids.resolved(beside, made.symbols, made.ids))
            _ = made.symbols, made._reader
        except ValueError as error:
            raise UserError(f'{path}: not a tokenizer.json that `tokenizers` reads ({error}); copy it anew') from None
        for id_ in sorted(made.special - cls(made.definition).special):
            logging.warning('%s: %r is special by what lies beside it: no text encodes to it', path, made.symbols[id_])
        return made

    @functools.cached_property
    def _writer(self) -> 'tokenizers.Tokenizer':
        return _loaded(self.definition)

    @functools.cached_property
    def _reader(self) -> 'tokenizers.Tokenizer':
        """The tokenizer that texts are read with: as the file's, its special tokens called by what no text holds."""
        value = copy.deepcopy(json.loads(self.definition))
        special = {self.symbols[id_] for id_ in self.special}
        model = value['model']
        if isinstance(model.get('unk_token'), str):
            model['unk_token'] = _ELSEWHERE + model['unk_token']
        renamed = lambda symbol: _ELSEWHERE + symbol if symbol in special else symbol  # noqa: E731
        if isinstance(model['vocab'], dict):
            model['vocab'] = {renamed(symbol): id_ for symbol, id_ in model['vocab'].items()}
        else:
            model['vocab'] = [[renamed(symbol), score] for symbol, score in model['vocab']]
        if 'merges' in model:
            model['merges'] = [merge for merge in model['merges'] if not special & _involved(merge)]
        for token in value.get('added_tokens') or ():
            token['content'] = renamed(token['content'])
        value |= {'truncation': None, 'padding': None, 'post_processor': None}
        tokenizer = _loaded(json.dumps(value))
        tokenizer.encode_special_tokens = True
        return tokenizer

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbol of each id, '<7>' where 7 has none."""
        by_id = {id_: symbol for symbol, id_ in self._writer.get_vocab(with_added_tokens=True).items()}
        return tuple(by_id.get(id_, f'<{id_}>') for id_ in range(max(by_id, default=-1) + 1))

    @functools.cached_property
    def ids(self) -> Ids:
        """The special ids, −1 for those that there are not."""
        if self.told is not None:
            return self.told
        added = json.loads(self.definition).get('added_tokens') or ()
        special = {token['content']: token['id'] for token in added if token.get('special')}
        found = {role: next((special[name] for name in names if name in special), -1) for role, names in NAMES.items()}
        model = json.loads(self.definition)['model']
        unk = self._writer.token_to_id(model['unk_token']) if isinstance(model.get('unk_token'), str) else None
        unk = model.get('unk_id') if unk is None else unk
        return Ids(unk=-1 if unk is None else unk, **found)

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """The ids that no text encodes to, the unknown one included."""
        added = json.loads(self.definition).get('added_tokens') or ()
        marked = frozenset(token['id'] for token in added if token.get('special'))
        return marked | set(dataclasses.astuple(self.ids)) - {-1}

    def encode_texts(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """The ids of each text, none of them special but that of the unknown."""
        yield from byte_level.merged(self._reader, map(_without_our_mark, texts))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(first, end) of the characters of `text` that each of its tokens stands for."""
        return self._reader.encode(_without_our_mark(text), add_special_tokens=False).offsets

    def join(self, symbols: Sequence[str]) -> str:
        """Symbols as a text, as the file's decoder puts them together (separated by blanks where it has none)."""
        decoder = self._writer.decoder
        return ' '.join(symbols) if decoder is None else decoder.decode(list(symbols))


def digest(path: epath.PathLike) -> str:
    """Hex digits of all that a TokenizerFile depends on. Raises OSError, UserError as `TokenizerFile.read`."""
    own, beside = files.sha256(path), named_ids.beside(path)
    return hashlib.sha256((own + json.dumps(beside)).encode()).hexdigest() if beside else own


def _loaded(definition: str) -> 'tokenizers.Tokenizer':
    """The library's tokenizer. Raises ValueError where it cannot make one."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare ones
        raise ValueError(error) from None


def _involved(merge: str | Sequence[str]) -> set[str]:
    """The two parts of a merge and what it makes."""
    left, right = merge.split(' ') if isinstance(merge, str) else merge
    return {left, right, left + right}


def _without_our_mark(text: str) -> str:
    return text.replace(_ELSEWHERE, '\ufffd' * len(_ELSEWHERE)) if _ELSEWHERE in text else text
