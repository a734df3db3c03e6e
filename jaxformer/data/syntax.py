"""The syntactic class of each character of Python code, and of each token of a text."""

import io
import keyword
import token
import tokenize

import numpy as np

from jaxformer.data import byte_level
from jaxformer.data.vocab import Vocabulary

CLASSES = ('keyword', 'name', 'number', 'string', 'comment', 'operator', 'whitespace')

_BLANK = byte_level.spell(' ')[0]

_OF_TYPE = {'NUMBER': 'number', 'STRING': 'string', 'COMMENT': 'comment', 'OP': 'operator', 'ERRORTOKEN': 'operator'}


def of_characters(code: str) -> np.ndarray:
    """uint8 [characters]: the class of each by this Python's `tokenize`; what that passes over is whitespace.

    Raises:
      SyntaxError, tokenize.TokenError: `code` cannot be cut.
    """
    lines = code.split('\n')
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    classes = np.full(len(code), CLASSES.index('whitespace'), np.uint8)
    for piece in tokenize.generate_tokens(io.StringIO(code).readline):
        if (name := _class(piece)) is not None:
            first, last = (int(starts[row - 1]) + column for row, column in (piece.start, piece.end))
            classes[first:last] = CLASSES.index(name)
    return classes


def _class(piece: tokenize.TokenInfo) -> str | None:
    if piece.type == token.NAME:
        return 'keyword' if keyword.iskeyword(piece.string) else 'name'
    name = token.tok_name[piece.type]
    return 'string' if name.startswith('FSTRING') or name.startswith('TSTRING') else _OF_TYPE.get(name)


def of_tokens(classes: np.ndarray, text: str, vocab: Vocabulary, ids: list[int]) -> np.ndarray:
    """[tokens]: the class of the first character of each token of `text`, after the blank that may begin a bpe token.

    Args:
      classes: of the characters of `text`. ids: its tokens.
    """
    if vocab.tokenizer == 'characters':
        return classes
    if vocab.tokenizer == 'file':
        return _of_spans(classes, text, vocab.spans(text))
    code_points = np.frombuffer(text.encode('utf-32-le'), '<u4')
    bytes_each = 1 + sum((code_points >= first).astype(int) for first in (0x80, 0x800, 0x10000))
    of_bytes = np.repeat(classes, bytes_each)
    symbols = [vocab.symbols[id_] for id_ in ids]
    sizes = np.array([len(symbol) for symbol in symbols], np.int64)  # a character stands for a byte
    blank = np.array([len(symbol) > 1 and symbol[0] == _BLANK for symbol in symbols], np.int64)
    return of_bytes[np.cumsum(sizes) - sizes + blank]


def _of_spans(classes: np.ndarray, text: str, spans: list[tuple[int, int]]) -> np.ndarray:
    first = np.array([start + (end > start + 1 and text[start] == ' ') for start, end in spans], np.int64)
    return classes[np.minimum(first, len(classes) - 1)]
