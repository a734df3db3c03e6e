"""From the examples of a data set to arrays of ids and a vocabulary, on disk."""

import collections
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from jaxformer import files
from jaxformer.data import hypotheses, sources, special_ids, syntax, too_few
from jaxformer.data.examples import Labelled, without_empty
from jaxformer.data.held_out import SPLITS
from jaxformer.data.ragged import Ragged
from jaxformer.data.tokenizer_file import TokenizerFile
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

Examples = Mapping[str, Sequence[Any]]

TEXT_SIZES = 'bytes.json'
"""Of text: {split: bytes of its documents, 0 where the tokenizer loses some of them}."""


def prepare(data: DataConfig, directory: epath.Path) -> None:
    """Writes the arrays of every split and vocab.json into `directory`.

    Raises:
      UserError: what the data set needs cannot be read, or it has no training examples.
    """
    source = sources.find(data.name)
    examples: Examples = importlib.import_module(source.module).read(data, directory / 'tfds')
    vocab = {'pairs': _pairs, 'text': _text, 'labelled': _labelled}[source.kind](data, examples, directory)
    files.write_json(directory / 'vocab.json', vocab.to_json())


def _pairs(data: DataConfig, examples: Examples, directory: epath.Path) -> Vocabulary:
    source = sources.find(data.name)
    own = source.source_symbols
    # A pair with an empty side teaches nothing. Other splits keep theirs, since each of their lines counts.
    pairs = {**examples, 'train': without_empty(examples['train'], 'train')}
    too_few.refuse(data, 'train', len(pairs['train']))
    texts = (
        text
        for row in pairs['train']
        for text in (' '.join(own(row['source'])) if own else row['source'], row['target'])
    )
    vocab = _vocabulary(data, texts, alphabet=source.alphabet(data))  # whatever data.targets holds: a teacher's own
    if data.targets:
        pairs['train'] = without_empty(
            hypotheses.in_place(pairs['train'], data.targets), f'config.data.targets={data.targets}'
        )
        too_few.refuse(data, 'train', len(pairs['train']))
    for split in SPLITS:
        rows = pairs[split]
        written, targets = (row['source'] for row in rows), (row['target'] for row in rows)
        ids = (vocab.encode(own(text)) for text in written) if own else vocab.encode_texts(written)
        _save(directory, f'{split}.source', vocab, _ended(vocab, ids))
        _save(directory, f'{split}.target', vocab, _ended(vocab, vocab.encode_texts(targets)))
        Ragged.of((row['source'].encode() for row in rows), np.uint8).save(directory, f'{split}.text')
        references = ('\n'.join(row['references']).encode() for row in rows)
        Ragged.of(references, np.uint8).save(directory, f'{split}.reference_text')
    return vocab


def _text(data: DataConfig, examples: Examples, directory: epath.Path) -> Vocabulary:
    documents = {split: [document for document in examples[split] if document] for split in SPLITS}
    too_few.refuse(data, 'train', sum(map(bool, map(str.strip, documents['train']))))
    vocab = _vocabulary(data, documents['train'])
    for split in SPLITS:
        _save(directory, f'{split}.documents', vocab, _ended(vocab, vocab.encode_texts(documents[split])))
    sizes = {split: _bytes_kept(vocab, documents[split]) for split in SPLITS}
    files.write_json(directory / TEXT_SIZES, sizes)
    return vocab


def _bytes_kept(vocab: Vocabulary, documents: Sequence[str]) -> int:
    """Bytes of the documents as UTF-8; 0 where their ids do not give every one of them back (case, blanks, unknowns).

    Of what is lost nobody has to guess anything: bits per byte of the whole would be too few.
    """
    if vocab.tokenizer not in ('bytes', 'bpe'):
        read = (vocab.join(vocab.decode(ids)) for ids in vocab.encode_texts(documents))
        if any(text != document for text, document in zip(read, documents, strict=True)):
            return 0
    return sum(len(document.encode()) for document in documents)


def _labelled(data: DataConfig, examples: Examples, directory: epath.Path) -> Vocabulary:
    rows: Mapping[str, Sequence[Labelled]] = examples
    too_few.refuse(data, 'train', len(rows['train']))
    per_token, longest = sources.per_token(data), sources.piece_length(data)
    classes = syntax.CLASSES if per_token else _classes(data, rows)
    texts = [row.text for row in rows['train']]
    vocab = _vocabulary(data, texts, classes=classes)
    for split in SPLITS:
        tokens: list[np.ndarray] = []
        labels: list[np.ndarray] = []
        for row, ids in zip(rows[split], vocab.encode_texts(row.text for row in rows[split]), strict=True):
            pieces = _pieces(np.array(ids, np.int32), longest)
            tokens += [np.array([vocab.ids.bos, *piece, vocab.ids.eos]) for piece in pieces]
            if isinstance(row.label, np.ndarray):
                label = syntax.of_tokens(row.label, row.text, vocab, ids)
                labels += [np.array([-1, *piece, -1]) for piece in _pieces(label, longest)]
            else:
                labels += [np.array([classes.index(row.label)])] * len(pieces)
        _save(directory, f'{split}.tokens', vocab, tokens)
        Ragged.of(labels, np.int16).save(directory, f'{split}.labels')
    return vocab


def _vocabulary(
    data: DataConfig, texts: Iterable[str], alphabet: Sequence[str] = (), classes: tuple[str, ...] = ()
) -> Vocabulary:
    """The vocabulary of data.tokenizer, learnt from `texts` where it has to be.

    Raises:
      UserError: data.tokenizer_file cannot be read, or has no symbol for an end that the rows need.
    """
    if data.tokenizer != 'file':
        return Vocabulary.learn(data.tokenizer, texts, data.tokenizer_size, alphabet, classes)
    try:
        vocab = Vocabulary.of_file(TokenizerFile.read(data.tokenizer_file), classes)
    except UserError as error:
        raise UserError(
            f'config.data.tokenizer_file={data.tokenizer_file}: no tokenizer.json ({error}); give that file of a fast '
            'tokenizer, which `tokenizer.save_pretrained(directory)` of transformers writes'
        ) from error
    special_ids.refuse_missing(data, vocab.ids)
    return vocab


def _classes(data: DataConfig, rows: Mapping[str, Sequence[Labelled]]) -> tuple[str, ...]:
    """The labels of train, sorted. Raises UserError where there is one alone, or another in dev or test."""
    counts = {split: collections.Counter(str(row.label) for row in rows[split]) for split in SPLITS}
    classes = tuple(sorted(counts['train']))
    if len(classes) == 1:
        raise UserError(
            f'config.data.source={data.source}: only one label, {classes[0]!r}, in train; give lines of two or more'
        )
    for split in SPLITS[1:]:
        if strange := sorted(counts[split].keys() - counts['train'].keys()):
            label, number = strange[0], counts[split][strange[0]]
            raise UserError(
                f'config.data.source={data.source}: label {label!r} is in {split} ({number} '
                f'example{"s" * (number != 1)}) and not in train; give train lines of it, or take it out'
            )
    return classes


def _pieces(row: np.ndarray, longest: int | None) -> list[np.ndarray]:
    """A row in equal pieces of at most `longest`, whole for None."""
    return [row] if longest is None else np.array_split(row, -(-len(row) // longest))


def _ended(vocab: Vocabulary, rows: Iterable[list[int]]) -> Iterator[list[int]]:
    return ([*row, vocab.ids.eos] for row in rows)


def _save(directory: epath.Path, name: str, vocab: Vocabulary, rows: Iterable[Sequence[int] | np.ndarray]) -> None:
    """Writes rows of ids in as few bytes as the vocabulary allows; a warning says how many of them are unknown."""
    ids = Ragged.of(rows, np.uint16 if len(vocab) <= 1 << 16 else np.int32)
    ids.save(directory, name)
    if unknown := int(np.sum(ids.values == vocab.ids.unk)) if vocab.ids.unk >= 0 else 0:
        share = 100 * unknown / len(ids.values)
        logging.warning('%s: %d symbols (%.3g %%) are not in the vocabulary: read as unknown', name, unknown, share)
