import json

import pytest

from jaxformer.data.vocab import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
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
