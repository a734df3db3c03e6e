"""The vocabulary of a model in Hugging Face's layout: its tokenizer.json, or what else says how its ids are called."""

import dataclasses
from pathlib import Path
from typing import Any

from jaxformer import files
from jaxformer.config import Config
from jaxformer.data.ids import Ids
from jaxformer.data.tokenizer_file import NAMES, TokenizerFile
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.inspection.layout import Settings

TOKENIZER = 'tokenizer.json'


def vocabulary(directory: Path, settings: Settings, cfg: Config) -> Vocabulary:
    """The symbols of a model, with its tokenizer where there is one, and the names of its classes.

    Args:
      settings: the content of the model's config.json.

    Raises:
      UserError: tokenizer.json cannot be read, or has more symbols than the model has rows.
    """
    labels = settings.get('id2label') or {}
    numbers = range(cfg.model.head.num_classes if cfg.model.family == 'classifier' else 0)
    classes = tuple(str(labels.get(str(number), f'LABEL_{number}')) for number in numbers)
    if file := _tokenizer(directory):
        vocab = Vocabulary.of_file(file, classes)
        if len(vocab) > (size := cfg.model.vocab_size):
            raise UserError(
                f'{directory / TOKENIZER}: {len(vocab)} symbols, and the model has vocab_size={size}; '
                'remove it to import the parameters alone'
            )
    else:
        ids = Ids(pad=cfg.model.ids.pad, bos=-1, eos=-1, unk=-1, mask=-1)
        vocab = Vocabulary(tuple(symbols(directory, cfg.model.vocab_size)), 'file', classes=classes, ids=ids)
    eos = settings.get('eos_token_id')
    if vocab.ids.eos < 0 and isinstance(eos, int) and 0 <= eos < len(vocab):
        vocab = dataclasses.replace(vocab, ids=dataclasses.replace(vocab.ids, eos=eos))
    return vocab


def symbols(directory: Path, size: int) -> list[str]:
    """The symbol of each of `size` ids as an older vocab.json says, '<7>' where it has none for 7."""
    ids = files.read_json(path) if (path := directory / 'vocab.json').exists() else {}
    if not isinstance(ids, dict) or not all(isinstance(id_, int) for id_ in ids.values()):
        raise UserError(f'{path}: gives no id for each symbol; put back a copy of the file, or remove it')
    by_id = {id_: symbol for symbol, id_ in ids.items()}
    return [by_id.get(id_, f'<{id_}>') for id_ in range(size)]


def _tokenizer(directory: Path) -> TokenizerFile | None:
    if not (path := directory / TOKENIZER).exists():
        return None
    try:
        return TokenizerFile.read(path)
    except UserError as error:
        raise UserError(f'{error}, or remove it to import the parameters alone') from error


def with_tokenizer(path: Path, family: str) -> dict[str, Any]:
    """Fields of data with the tokenizer of the model; the files of pairs are the reader's."""
    changes = {'data.tokenizer': 'file', 'data.tokenizer_file': str(path.expanduser().resolve())}
    if family == 'seq2seq':
        changes |= {'data.name': 'parallel', 'data.source': '{split}.source', 'data.target': '{split}.target'}
    return changes


def mask(directory: Path, size: int, pad: int) -> int:
    """The id of the tokenizer's mask; without one, one that is in the vocabulary and no padding."""
    if file := _tokenizer(directory):
        found = file.ids.mask
    else:
        known = symbols(directory, size)
        found = next((known.index(name) for name in NAMES['mask'] if name in known), -1)
    return found if found >= 0 else 4 if pad != 4 and size > 4 else size - 1
