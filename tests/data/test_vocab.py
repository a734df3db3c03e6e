import json
import subprocess
import sys

import pytest

from jaxformer.data.vocab import BOS, EOS, MASK, PAD, SPECIALS, UNK, Vocabulary
from jaxformer.errors import UserError


def test_symbols_follow_the_specials_and_round_trip():
    vocab = Vocabulary.of(['b', 'AA', 'b', '-'])
    assert vocab.symbols == (*SPECIALS, 'b', 'AA', '-')
    assert len(vocab) == 7
    assert vocab.encode(['-', 'b', 'AA']) == [6, 4, 5]
    assert vocab.decode([6, 4, 5]) == ['-', 'b', 'AA']


def test_decoding_stops_at_eos_and_passes_over_pad_and_bos():
    vocab = Vocabulary.of('ab')
    assert vocab.decode([BOS, 4, PAD, 5, EOS, 4, 4]) == ['a', 'b']
    assert vocab.decode([EOS, 4]) == []
    assert vocab.decode([]) == []


def test_unseen_symbols_become_unk_and_stay_visible():
    vocab = Vocabulary.of('ab')
    assert vocab.encode(['a', '\N{GRINNING FACE}', 'ő']) == [4, UNK, UNK]
    assert vocab.decode([4, UNK]) == ['a', '<unk>']


@pytest.mark.parametrize('special', SPECIALS)
def test_the_spelling_of_a_special_in_a_text_never_becomes_its_id(special):
    assert Vocabulary.of('ab').encode([special]) == [UNK]
    seen = Vocabulary.of(['a', special])
    assert seen.encode(['a', special]) == [4, 5]
    assert seen.decode([5, 4]) == [special, 'a']


@pytest.mark.parametrize('id_', [-1, 6])
def test_an_id_outside_the_table_is_refused(id_):
    with pytest.raises(IndexError, match=str(id_)):
        Vocabulary.of('ab').decode([4, id_])


def test_json_round_trip():
    vocab = Vocabulary.of(['a', '<pad>', '\u2028', 'ő'])
    assert Vocabulary.from_json(json.loads(json.dumps(vocab.to_json()))) == vocab


@pytest.mark.parametrize(
    'value', [None, [], {}, {'symbols': 'ab'}, {'symbols': ['a', 'b']}, {'symbols': [*SPECIALS, 'a', 'a']}]
)
def test_a_damaged_table_is_refused(value):
    with pytest.raises(UserError, match='vocabulary'):
        Vocabulary.from_json(value)


HARD = (  # B50
    'plain words, and  two blanks',
    '\N{GRINNING FACE} \N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL} {} {0} %s',
    '\u0151\u0171 \t\ttab\r\nline\n\n\x00 \x85 \u2028\u2029 \ufeff \ufffd',
    '<pad><s></s><unk><mask> <pad>',
    ' ',
    '',
)


TEXTS = ('def low(self):\n    return lower </s>\n' * 9, 'newest widest <pad>' * 7, '<mask> if else' * 5)


@pytest.fixture(scope='module')
def bpe():
    return Vocabulary.learn('bpe', TEXTS, 300)


def round_trip(vocab, text):
    (ids,) = vocab.encode_texts([text])
    return vocab.join(vocab.decode([*ids, EOS, PAD]))


@pytest.mark.parametrize('text', HARD)
def test_bytes_and_merged_bytes_come_back_exactly(bpe, text):
    for vocab in (bpe, Vocabulary.learn('bytes', [], 0)):
        (ids,) = vocab.encode_texts([text])
        assert all(id_ > MASK for id_ in ids)  # no special id, whatever the spelling
        assert round_trip(vocab, text) == text
        assert vocab.encode(vocab.split(text)) == ids


def test_bytes_are_their_values_behind_five_special_symbols():
    vocab = Vocabulary.learn('bytes', ['no matter what'], 0)
    assert len(vocab) == 5 + 256 and vocab.symbols[MASK] == '<mask>'
    (ids,) = vocab.encode_texts(['aé'])
    assert ids == [5 + 0x61, 5 + 0xC3, 5 + 0xA9]


def test_bytes_that_are_no_text_and_special_symbols_read_without_a_crash():
    vocab = Vocabulary.learn('bytes', [], 0)
    assert vocab.join(vocab.decode([5 + 0xC3, MASK, UNK, 5 + 0x61])) == '\ufffd<mask><unk>a'


def test_merges_are_learnt_from_the_texts_and_no_more_than_asked_for(bpe):
    assert len(bpe) == 300 and len(bpe.merges) == 300 - 5 - 256
    assert {'</', 'Ġlow'} & set(bpe.symbols)
    assert len(bpe.split('low lower lowest')) < len('low lower lowest')
    assert len(Vocabulary.learn('bpe', ['ab\nab'], 5000)) == 5 + 256 + 1  # there is nothing else to merge


def test_training_is_the_same_in_every_process(bpe):
    code = (
        'import json; from jaxformer.data.vocab import Vocabulary\n'
        f"print(json.dumps(Vocabulary.learn('bpe', {TEXTS!r}, 300).to_json()))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert Vocabulary.from_json(json.loads(done.stdout)) == bpe


def test_merging_follows_the_order_of_the_merges():
    """Sennrich et al. 2016, algorithm 1, by hand: 'ab' is merged before 'bc', so that 'abc' is ab and c."""
    vocab = Vocabulary.of((*'abc', 'ab', 'bc'), 'bpe', ('a b', 'b c'))
    assert vocab.split('abc') == ['ab', 'c'] and vocab.split('bcab') == ['bc', 'ab']
    other = Vocabulary.of((*'abc', 'ab', 'bc'), 'bpe', ('b c', 'a b'))
    assert other.split('abc') == ['a', 'bc']


def test_characters_that_are_unseen_are_unknown(bpe):
    vocab = Vocabulary.learn('characters', ['tab\t', 'x<pad>'], 0)
    assert vocab.symbols[5:] == tuple(sorted(set('tab\tx<pad>')))
    (ids,) = vocab.encode_texts(['ta\u0151b <pad>'])
    assert [id_ == UNK for id_ in ids] == [False, False, True, False, True] + [False] * 5
    assert vocab.join(vocab.decode(ids)) == 'ta<unk>b<unk><pad>'


def test_words_are_native():
    vocab = Vocabulary.learn('native', ['b  a', 'c'], 0)
    assert vocab.symbols == (*SPECIALS, 'a', 'b', 'c')
    assert next(vocab.encode_texts([' c d\ta '])) == [6, UNK, 4]
    assert vocab.join(vocab.decode([6, UNK])) == 'c <unk>'


@pytest.mark.parametrize('tokenizer', ['characters', 'bytes', 'bpe'])
def test_json_holds_all_that_reading_a_text_needs(tokenizer):
    vocab = Vocabulary.learn(tokenizer, ['some text, some text'], 300, classes=('yes', 'no'))
    again = Vocabulary.from_json(json.loads(json.dumps(vocab.to_json())))
    assert again == vocab and again.classes == ('yes', 'no')
    assert list(again.encode_texts(['some text'])) == list(vocab.encode_texts(['some text']))


def test_a_native_table_is_written_as_it_always_was():
    assert Vocabulary.of('ab').to_json() == {'symbols': [*SPECIALS, 'a', 'b']}


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        ({'tokenizer': 'letters'}, "'letters'.*native, characters, bytes, bpe"),
        ({'tokenizer': 'native'}, 'merges'),
        ({'merges': ['a nowhere']}, 'merges'),
        ({'merges': [3]}, 'merges'),
        ({'classes': 'ab'}, 'classes'),
        ({'symbols': ['<pad>', '<s>', '</s>', '<unk>', 'x']}, '<mask>'),
    ],
)
def test_a_damaged_part_is_refused(bpe, change, named):
    with pytest.raises(UserError, match=f'vocabulary.*{named}'):
        next(Vocabulary.from_json({**bpe.to_json(), **change}).encode_texts(['a b']))
