"""The vocabulary of a model in Hugging Face's layout: its tokenizer.json, or what else says how its ids are called."""

from pathlib import Path
from typing import Any

from jaxformer import files
from jaxformer.data.ids import Ids
from jaxformer.data.named_ids import SETTINGS, of_settings, resolved
from jaxformer.data.tokenizer_file import NAMES, TokenizerFile
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.inspection.layout import Fields, Settings
from jaxformer.schema import Config

TOKENIZER = 'tokenizer.json'


def tokenizer(directory: Path, size: int) -> TokenizerFile | None:
    """The tokenizer of a model whose vocabulary has `size` rows; None where there is no tokenizer.json.

    Raises:
      UserError: tokenizer.json or a file beside it cannot be read, or it has more symbols than the model has rows.
    """
    if not (path := directory / TOKENIZER).exists():
        return None
    try:
        file = TokenizerFile.read(path)
    except UserError as error:
        own = str(error).startswith(f'{path}:')  # not of a file beside it
        raise UserError(f'{error}{", or remove it to import the parameters alone" if own else ""}') from error
    if len(file.symbols) > size:
        raise UserError(
            f'{path}: {len(file.symbols)} symbols, and the model has vocab_size={size}; '
            'remove it to import the parameters alone'
        )
    return file


def vocabulary(directory: Path, settings: Settings, cfg: Config, file: TokenizerFile | None = None) -> Vocabulary:
    """The symbols of a model, with its tokenizer where there is one, and the names of its classes.

    Args:
      settings: the content of the model's config.json. file: its tokenizer.
    """
    labels = settings.get('id2label') or {}
    numbers = range(cfg.model.head.num_classes if cfg.model.family == 'classifier' else 0)
    classes = tuple(str(labels.get(str(number), f'LABEL_{number}')) for number in numbers)
    if file:
        return Vocabulary.of_file(file, classes)
    known = symbols(directory, cfg.model.vocab_size)
    ids = _ids_alone(directory, settings, known, cfg.model.ids.pad)
    return Vocabulary(tuple(known), 'file', classes=classes, ids=ids)


def symbols(directory: Path, size: int) -> list[str]:
    """The symbol of each of `size` ids as an older vocab.json says, '<7>' where it has none for 7."""
    ids = files.read_json(path) if (path := directory / 'vocab.json').exists() else {}
    if not isinstance(ids, dict) or not all(isinstance(id_, int) for id_ in ids.values()):
        raise UserError(f'{path}: gives no id for each symbol; put back a copy of the file, or remove it')
    by_id = {id_: symbol for symbol, id_ in ids.items()}
    return [by_id.get(id_, f'<{id_}>') for id_ in range(size)]


def with_tokenizer(path: Path, family: str) -> dict[str, Any]:
    """Fields of data with the tokenizer of the model; the files of pairs are the reader's."""
    changes = {'data.tokenizer': 'file', 'data.tokenizer_file': str(path.expanduser().resolve())}
    if family == 'seq2seq':
        changes |= {'data.name': 'parallel', 'data.source': '{split}.source', 'data.target': '{split}.target'}
    return changes


def model_ids(directory: Path, settings: Settings, fields: Fields, file: TokenizerFile | None) -> Fields:
    """The fields model.ids: those of the vocabulary, so that its data is accepted, and those of the model elsewhere."""
    size = fields['model.vocab_size']
    known = [] if file else symbols(directory, size)
    ids = file.ids if file else _ids_alone(directory, settings, known, fields['model.ids.pad'])
    found: Fields = {'model.ids.pad': ids.pad}
    if fields['model.family'] == 'lm' and ids.bos >= 0:
        found['model.ids.start'] = ids.bos
    if fields['model.family'] == 'mlm':  # without a mask one that is in the vocabulary and no padding
        named = [ids.mask, *(known.index(name) for name in NAMES['mask'] if name in known)]
        other = 4 if ids.pad != 4 and size > 4 else size - 1
        found['model.ids.mask'] = next((id_ for id_ in named if id_ >= 0), other)
    return found


def _ids_alone(directory: Path, settings: Settings, known: list[str], pad: int) -> Ids:
    """The special ids of a model without a tokenizer, of which config.json says some."""
    said = of_settings(settings, directory / SETTINGS)
    said.pop('pad', None)  # is a field of the model, with a default
    return resolved({SETTINGS: said}, known, Ids(pad=pad, bos=-1, eos=-1, unk=-1, mask=-1))
