"""Text as bytes, each written as one printable character, and pairs of them merged into longer symbols (BPE).

The characters are those of GPT-2 (Radford et al. 2019; `bytes_to_unicode`): printable bytes of Latin-1 are themselves,
the others follow from U+0100 on, so that a blank is Ġ and a newline is Ċ. Every text has such a spelling and comes back
from it exactly. Byte-pair encoding: Sennrich et al. 2016, by the library `tokenizers`, which is imported only where a
text is merged.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

_AT_ONCE = 1 << 20  # characters given to the library in one call: it keeps some hundred bytes about each symbol


def _alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTES = _alphabet()
"""The character that stands for each byte."""

_VALUE = {character: byte for byte, character in enumerate(BYTES)}


def spell(text: str) -> list[str]:
    """The UTF-8 bytes of `text`, each as its character."""
    return [BYTES[byte] for byte in text.encode()]


def read(symbols: Iterable[str]) -> str:
    """The text that `symbols` of one or more bytes spell; U+FFFD for bytes that are not UTF-8.

    Raises:
      KeyError: a character stands for no byte.
    """
    return bytes(_VALUE[character] for symbol in symbols for character in symbol).decode(errors='replace')


def train(texts: Iterable[str], size: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Learns at most `size` symbols: the 256 bytes and the pairs that are most frequent in `texts`, within words.

    Returns:
      (symbols, merges): each merge as 'left right', in the order of their rank. The same for the same texts.
    """
    import json

    import tokenizers

    learned = _pieces(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[], initial_alphabet=sorted(BYTES), show_progress=False
    )
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())['model']
    symbols = sorted(model['vocab'], key=model['vocab'].__getitem__)
    return tuple(symbols), tuple(' '.join(merge) for merge in model['merges'])


def merger(symbols: Sequence[str], merges: Sequence[str]) -> 'tokenizers.Tokenizer':
    """The library's tokenizer of what `train` gave; its ids are places in `symbols`. It knows no special symbol.

    Raises:
      ValueError: a merge is of symbols that are not there.
    """
    import tokenizers

    pairs = [tuple(merge.split(' ')) for merge in merges]
    try:
        return _pieces(tokenizers.models.BPE({symbol: id_ for id_, symbol in enumerate(symbols)}, pairs))  # type: ignore[arg-type]
    except Exception as error:  # the library raises bare ones
        raise ValueError(error) from None


def merged(tokenizer: 'tokenizers.Tokenizer', texts: Iterable[str]) -> Iterator[list[int]]:
    """The ids of each text."""
    for group in _groups(texts):
        for encoding in tokenizer.encode_batch_fast(group, add_special_tokens=False):
            yield encoding.ids


def _groups(texts: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text) + 1
        if size > _AT_ONCE:
            yield group
            group, size = [], 0
    yield group


def _pieces(model: 'tokenizers.models.Model') -> 'tokenizers.Tokenizer':
    """A tokenizer that cuts texts as GPT-2 does (words with the blank before them) and merges within the pieces."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer
