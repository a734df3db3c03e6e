"""What a model wrote in the place of the training targets: `data.targets`."""

import functools
import random
import re

import pytest

from jaxformer.data import corpus, hypotheses
from jaxformer.errors import UserError

PAIRS = [{'source': s, 'target': 'old', 'references': ['old', 'older']} for s in ('a', 'b', 'c')]


def written(tmp_path, text):
    (tmp_path / 'out').write_text(text)
    return hypotheses.in_place(PAIRS, str(tmp_path / 'out'))


def sides(pairs):
    assert all(pair['references'] == [pair['target']] for pair in pairs)
    return [(pair['source'], pair['target']) for pair in pairs]


def test_a_line_is_of_the_pair_of_its_number_also_where_it_looks_like_a_hypothesis(tmp_path):
    expected = [('a', 'X Y'), ('b', ''), ('c', '0 ||| Z ||| -1.000000')]
    assert sides(written(tmp_path, 'X Y\n\n0 ||| Z ||| -1.000000\n')) == expected


def test_of_n_best_each_hypothesis_is_a_pair(tmp_path):
    text = '0 ||| X ||| -0.500000\n0 ||| Y ||| Z ||| -1.250000\n1 |||  ||| 0.000000\n2 ||| W ||| -inf\n'
    assert sides(written(tmp_path, text)) == [('a', 'X'), ('a', 'Y ||| Z'), ('b', ''), ('c', 'W')]


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('X\nY\n', '2 outputs and 3 pairs in train'),
        ('', '0 outputs and 3 pairs in train'),
        ('X\n' * 4, '4 outputs and 3 pairs in train'),
        ('\n' * 3, 'every output is empty'),
        ('0 ||| X ||| -1.0\n0 ||| Y ||| -1.0\n1 ||| X ||| -1.0\n', '2 outputs and 3 pairs in train'),
    ],
)
def test_a_file_of_other_examples_is_refused(tmp_path, text, said):
    with pytest.raises(UserError, match=f'config.data.targets=.*out: {said}; let `jaxformer dec'):
        written(tmp_path, text)


@pytest.mark.parametrize(
    ('damaged', 'said'),
    [
        ('2 ||| Y', "'2 ||| Y' is not `number ||| text ||| score`"),
        ('', "'' is not `number ||| text ||| score`"),
        ('x ||| Y ||| -1.000000', "number 'x' is no count from 0"),
        ('-1 ||| Y ||| -1.000000', "number '-1' is no count from 0"),
        ('\u00b2 ||| Y ||| -1.000000', "number '\u00b2' is no count from 0"),
        ('1 ||| Y ||| good', "score 'good' is no number"),
        ('1 ||| Y ||| ', "score '' is no number"),
        ('0 ||| Y ||| -1.000000', 'number 0 comes after 1'),
        ('3 ||| Y ||| -1.000000', 'number 3 is beyond the 3 pairs of train, which are 0 to 2'),
        (f'1 ||| {"Y " * 99}||| good', "score 'good' is no number"),
        ('Y ' * 99, "'Y Y Y .*\u2026' is not `number.*"),
    ],
)
def test_a_damaged_line_of_n_best_is_named(tmp_path, damaged, said):
    """Lines around it are whole, so that it cannot be a file of outputs as they are."""
    text = f'0 ||| X ||| -0.5\n1 ||| X ||| -0.5\n{damaged}\n2 ||| X ||| -0.5\n'
    said = said if '.*' in said else re.escape(said)
    with pytest.raises(UserError, match=f'config.data.targets=.*out: line 3: {said}; let `jaxformer dec') as error:
        written(tmp_path, text)
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_a_gap_in_the_numbers_is_named(tmp_path):
    with pytest.raises(UserError, match='line 2: number 2 comes after 0; let `jaxformer decode'):
        written(tmp_path, '0 ||| X ||| -1.0\n2 ||| X ||| -1.0\n')
    with pytest.raises(UserError, match='line 1: number 1 is the first; let `jaxformer decode'):
        written(tmp_path, '1 ||| X ||| -1.0\n2 ||| X ||| -1.0\n')


def test_outputs_that_belong_to_other_pairs_are_warned_of(tmp_path, caplog):
    """As many lines, of other examples or moved by one: what is shared with the targets of other pairs is as much."""
    draw = random.Random(3)
    texts = [' '.join(draw.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ') for _ in range(6)) for _ in range(190)]
    pairs = [{'source': str(i), 'target': text, 'references': [text]} for i, text in enumerate(texts)]
    near = [text.replace('A', 'B').replace('C', '') for text in texts]  # what a teacher makes of them
    strange = [' '.join(draw.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ') for _ in range(6)) for _ in range(190)]
    for lines, warned in ((near, False), (near[1:] + near[:1], True), (near[::-1], True), (strange, True)):
        caplog.clear()
        (tmp_path / 'out').write_text(''.join(f'{line}\n' for line in lines))
        hypotheses.in_place(pairs, str(tmp_path / 'out'))
        assert ('share no more with the targets of their own pairs' in caplog.text) == warned, (lines[0], caplog.text)


FEW = [''.join(random.Random(i).choices('ab', k=30)) for i in range(200)]  # each has all pairs of its symbols
ALIKE = {'sorted': ['yes'] * 250 + ['no'] * 250, 'one': ['yes'] * 500, 'two': ['yes', 'no'], 'few symbols': FEW}


@pytest.mark.parametrize('texts', ALIKE.values(), ids=ALIKE)
def test_targets_that_are_alike_say_nothing_of_places(tmp_path, caplog, texts):
    pairs = [{'source': str(i), 'target': text, 'references': [text]} for i, text in enumerate(texts)]
    (tmp_path / 'out').write_text(''.join(f'{text}\n' for text in texts))
    hypotheses.in_place(pairs, str(tmp_path / 'out'))
    assert not caplog.text


def test_train_alone_changes_and_keeps_the_symbols_of_the_data(make_data, tmp_path):
    """Also those that no output has, so that a student has the symbols of its teacher; a new file is read anew."""
    for side in ('source', 'target'):
        (tmp_path / side).write_text(''.join(f'{side}{i}\n' for i in range(60)))
    both = {side: str(tmp_path / side) for side in ('source', 'target')}
    data = functools.partial(make_data, tmp_path / 'data', 'parallel', **both)
    plain = corpus.load(data())
    before = plain.split('train')
    (tmp_path / 'out').write_text('source3\n' + '\n' + 'source4 source4\n' * (len(before) - 2))
    changed = corpus.load(data(targets=str(tmp_path / 'out')))
    train = changed.split('train')
    assert changed.vocab.to_json() == plain.vocab.to_json()
    assert [train.source_text(i) for i in range(2)] == [before.source_text(i) for i in (0, 2)]  # the blank one is out
    assert [train.reference_texts(i) for i in range(3)] == [['source3'], *[['source4 source4']] * 2]
    assert [changed.decode(train.target[i]) for i in (0, 1)] == ['source3', 'source4 source4']
    dev = [[c.split('dev').reference_texts(i) for i in range(len(c.split('dev')))] for c in (plain, changed)]
    assert dev[0] == dev[1] and dev[0]
    (tmp_path / 'out').write_text('source2\n' * len(before))
    again = corpus.load(data(targets=str(tmp_path / 'out')))
    assert again.split('train').reference_texts(0) == ['source2'] and len(again.split('train')) == len(before)
    with pytest.raises(UserError, match='config.data.targets=.*: .*gone is no file'):
        corpus.load(data(targets=str(tmp_path / 'gone')))
