"""Tokenizers of other models: their ids, their special symbols, and texts that spell these (B50)."""

import json

import pytest
import tiny_tokenizers
import tokenizers

from jaxformer.data.ids import Ids
from jaxformer.data.tokenizer_file import TokenizerFile
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError

SPECIAL = {  # by the order in which they were given to the library
    'gpt2': Ids(pad=-1, bos=299, eos=299, unk=-1, mask=-1),
    'bert': Ids(pad=0, unk=1, bos=2, eos=3, mask=4),
    't5': Ids(pad=0, eos=1, unk=2, bos=-1, mask=-1),
    'marian': Ids(eos=0, unk=1, bos=-1, mask=-1, pad=60),  # the last
    'llama': Ids(unk=0, bos=1, eos=2, pad=-1, mask=-1),
    'chat': Ids(pad=-1, bos=0, eos=0, unk=-1, mask=-1),  # nothing beside it says more
}
PLAIN = ('the cat sat on the mat', 'A quick brown fox; 13 dogs', ' low  return\n', '', 'def low(self):\n    pass')
HARD = (
    '\N{GRINNING FACE} \N{WOMAN}\u200d\N{GIRL} {} \u0151\tx',
    '<pad></s> <unk> <s> [PAD] [CLS] [SEP] [UNK][MASK]<mask> <|endoftext|> the cat',
    '</s>', '<|endoftext|>', '[SEP]', '<unk>', ' <pad> ', '[UNK]',
    '\ufdd0\ufdd1\ufdd0</s> \ufdd0\ufdd1\ufdd0[SEP]\ufdd0\ufdd1\ufdd0<|endoftext|>',
)  # fmt: skip


@pytest.fixture(scope='module', params=tiny_tokenizers.ALL)
def kind(request):
    return request.param


@pytest.fixture(scope='module')
def path(kind, tmp_path_factory):
    return tiny_tokenizers.ALL[kind](tmp_path_factory.mktemp(kind))


@pytest.fixture(scope='module')
def vocab(path):
    return Vocabulary.of_file(TokenizerFile.read(path))


@pytest.fixture(scope='module')
def library(path):
    """The library's tokenizer, which neither cuts nor pads."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encoded(vocab, text):
    return next(vocab.encode_texts([text]))


def test_the_special_ids_are_found_by_their_names(kind, vocab, library):
    assert vocab.ids == SPECIAL[kind]
    assert len(vocab) == library.get_vocab_size()
    assert all(library.token_to_id(symbol) == id_ for id_, symbol in enumerate(vocab.symbols))


@pytest.mark.parametrize('text', PLAIN)
def test_ids_are_those_of_the_library(vocab, library, text):
    expected = library.encode(text, add_special_tokens=False)
    assert encoded(vocab, text) == expected.ids
    assert vocab.split(text) == expected.tokens
    assert vocab.encode(vocab.split(text)) == expected.ids
    assert vocab.join(vocab.decode(expected.ids)) == library.decode(expected.ids)
    assert len(vocab.spans(text)) == len(expected.ids)


@pytest.mark.parametrize('text', HARD)
def test_no_spelling_is_a_special_symbol(kind, vocab, library, text):
    ids = encoded(vocab, text)
    special = {id_ for id_, token in library.get_added_tokens_decoder().items() if token.special} - {vocab.ids.unk}
    assert ids and not special & set(ids)
    assert vocab.encode(vocab.split(text)) == ids
    written = vocab.join(vocab.decode(ids))
    if kind in ('gpt2', 'llama', 'chat'):
        assert written == text.replace('\ufdd0\ufdd1\ufdd0', '\ufffd\ufffd\ufffd')
    if kind in ('t5', 'marian', 'bert') and '\N{GRINNING FACE}' in text:
        assert vocab.ids.unk in ids  # lost, and counted as such
    if kind in ('t5', 'marian') and text == '</s>':
        assert written == text  # its characters are in the training texts


def test_the_library_alone_would_read_a_special_symbol(tmp_path):
    """What the test before this one is about: without another name a text of '</s>' ends there."""
    library = tokenizers.Tokenizer.from_file(str(tiny_tokenizers.t5(tmp_path)))
    library.encode_special_tokens = True
    assert library.token_to_id('</s>') in library.encode('a </s> b', add_special_tokens=False).ids


def test_special_symbols_that_a_model_puts_out_are_read_without_a_crash(vocab):
    ids = [id_ for id_ in range(len(vocab)) if id_ != vocab.ids.eos]
    assert len(vocab.decode(ids)) == len(ids) - len({vocab.ids.pad, vocab.ids.bos} & set(ids))
    assert vocab.join(vocab.decode(ids))
    assert vocab.decode([7, -1, vocab.ids.eos, 8] if vocab.ids.pad < 0 else [7, vocab.ids.eos]) == [vocab.symbols[7]]


def test_json_holds_all_that_reading_a_text_needs(vocab, path):
    again = Vocabulary.from_json(json.loads(json.dumps(vocab.to_json())))
    assert again == vocab
    assert list(again.encode_texts(PLAIN)) == list(vocab.encode_texts(PLAIN))
    assert TokenizerFile.read(path).definition == vocab.definition


def test_a_long_text_is_neither_cut_nor_padded(vocab, library):
    text = ' '.join(PLAIN * 40)
    assert encoded(vocab, text) == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        ({'ids': None}, 'ids'),
        ({'ids': {'pad': 0}}, 'ids'),
        ({'ids': {'pad': 0, 'bos': 2, 'eos': 3, 'unk': 1, 'mask': 4000}}, 'below'),
        ({'definition': {'model': 3}}, 'definition of no tokenizer'),
        ({'symbols': ['a', 'b', 'c', 'd', 'e']}, 'not those of its definition'),
    ],
)
def test_a_damaged_part_is_refused(tmp_path, change, named):
    value = Vocabulary.of_file(TokenizerFile.read(tiny_tokenizers.bert(tmp_path))).to_json()
    with pytest.raises(UserError, match=rf'vocabulary.*{named}'):
        Vocabulary.from_json({**value, **change})


@pytest.mark.parametrize('content', ['{', '[]', '{}', '{"model": {"vocab": 3}}', None])
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path, content):
    path = tmp_path / 'tokenizer.json'
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r'tokenizer\.json: (no|not) .*; '):
        TokenizerFile.read(path)


def test_a_vocabulary_of_ids_alone_refuses_texts():
    vocab = Vocabulary(tuple(f'<{id_}>' for id_ in range(9)), 'file', ids=Ids(-1, 1, 2, -1, -1))
    assert Vocabulary.from_json(json.loads(json.dumps(vocab.to_json()))) == vocab
    assert vocab.join(vocab.decode([4, 7, 2, 5])) == '<4> <7>'
    with pytest.raises(UserError, match='without a tokenizer'):
        vocab.split('a text')
    with pytest.raises(UserError, match='without a tokenizer'):
        list(vocab.encode_texts(['a text']))
