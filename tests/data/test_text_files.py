"""Data sets out of files of the user's: parallel lines, texts, labels (B50, B52, B53)."""

import numpy as np
import pytest

from jaxformer.data import corpus as corpus_lib
from jaxformer.data import labelled, parallel, plain_text, too_few
from jaxformer.data.examples import without_empty
from jaxformer.data.held_out import SPLITS, split_of
from jaxformer.data.vocab import BOS, EOS, MASK, UNK
from jaxformer.errors import UserError

HARD = '\N{GRINNING FACE} \N{WOMAN}\u200d\N{GIRL} {} \u0151\tx <pad></s><mask>'
SEPARATORS = '\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e'


def write(directory, **files):
    for name, content in files.items():
        (directory / name).write_bytes(content.encode())


def parallel_data(make_data, directory, **fields):
    names = {'source': f'{directory}/{{split}}.en', 'target': f'{directory}/{{split}}.de'}
    return make_data(directory / 'data', 'parallel', **{**names, **fields})


@pytest.fixture
def six(tmp_path):
    """Files for each split of two languages; the training split has three pairs with a blank side."""
    for split in SPLITS:
        write(
            tmp_path,
            **{
                f'{split}.en': f'one {split}\n\nthree\n   \nfive {HARD}\nsix',
                f'{split}.de': 'eins\nzwei\n\nvier\nf\u00fcnf sechs\nsechs\n',
            },
        )
    return tmp_path


def test_lines_stay_beside_each_other_and_empty_ones_go_together(make_data, six, caplog):
    corpus = corpus_lib.load(parallel_data(make_data, six))
    assert corpus.kind == 'pairs' and corpus.classes == ()
    train, dev = corpus.split('train'), corpus.split('dev')
    assert [train.source_text(i) for i in range(len(train))] == ['one train', f'five {HARD}', 'six']
    assert [train.reference_texts(i) for i in range(len(train))] == [['eins'], ['f\u00fcnf sechs'], ['sechs']]
    assert 'train: 3 pairs with an empty side' in caplog.text
    assert len(dev) == 6 and dev.source_text(3) == '   ' and dev.source[3].tolist() == [EOS]
    assert dev.references(2) == [[]] and dev.references(4) == [['f\u00fcnf', 'sechs']]
    assert corpus.vocab.encode(['train', 'dev', 'sechs'])[1] == UNK
    assert 'dev.source: 2 symbols' in caplog.text  # the unknown ones are reported: dev, three
    assert corpus.decode(dev.target[4].tolist()) == 'f\u00fcnf sechs'


@pytest.mark.parametrize('tokenizer', ['characters', 'bytes', 'bpe'])
def test_other_tokenizers_give_texts_back(make_data, six, tokenizer):
    corpus = corpus_lib.load(parallel_data(make_data, six, tokenizer=tokenizer))
    train, dev = corpus.split('train'), corpus.split('dev')
    for i in range(len(train)):
        assert corpus.decode(train.source[i].tolist()) == train.source_text(i)
        assert corpus.decode(train.target[i].tolist()) == train.reference_texts(i)[0]
        assert min(train.source[i][:-1]) > MASK and train.source[i][-1] == EOS
    assert corpus.encode('one') + [EOS] == corpus.vocab.encode(corpus.vocab.split('one')) + [EOS]
    assert corpus.encode('  ') == []
    assert corpus.vocab.join(dev.references(4)[0]) == 'f\u00fcnf sechs'
    unseen = corpus.decode(corpus.encode('\u0416'))
    assert unseen == ('<unk>' if tokenizer == 'characters' else '\u0416')


def test_the_share_of_unknown_characters_is_reported(make_data, six, caplog):
    write(six, **{'dev.en': 'onX Xne\nb\n\n\n\n\n'})
    corpus_lib.load(parallel_data(make_data, six, tokenizer='characters'))
    assert 'dev.source: 3 symbols (21.4 %)' in caplog.text  # X, X and b of 7 + 1 characters and 6 ends
    assert 'test.source' not in caplog.text and 'train.source' not in caplog.text


@pytest.mark.parametrize('separator', SEPARATORS)
def test_only_a_newline_separates_pairs(tmp_path, separator):
    source = ''.join(f's{i}{separator}x\n' for i in range(100))
    write(tmp_path, a=source, b=''.join(f't{i}\r\n' for i in range(100)).removesuffix('\r\n'))
    pairs = parallel.aligned(f'{tmp_path}/a', f'{tmp_path}/b')
    assert [(pair['source'], pair['target']) for pair in pairs] == [(f's{i}{separator}x', f't{i}') for i in range(100)]


def test_different_line_counts_are_refused_with_files_and_counts(make_data, tmp_path):
    write(tmp_path, a='x\n' * 100, b='y\n' * 101)
    data = make_data(tmp_path / 'data', 'parallel', source=f'{tmp_path}/a', target=f'{tmp_path}/b')
    with pytest.raises(UserError, match=f'{tmp_path}/a has 100 lines.*{tmp_path}/b has 101'):
        corpus_lib.load(data)
    assert not list((tmp_path / 'data').glob('parallel*'))  # nothing half-made is left
    with pytest.raises(UserError, match='{split} in both names'):
        parallel.read(make_data(tmp_path, 'parallel', source='{split}.en', target=f'{tmp_path}/b'), tmp_path)


def test_files_without_a_split_are_split_by_the_source_line(make_data, tmp_path, caplog):
    lines = [f'word{i % 300}' for i in range(400)]
    write(
        tmp_path,
        a='\n'.join(lines) + '\n\n \nx',
        b='\n'.join(f'{line} {i}' for i, line in enumerate(lines)) + '\ny\nz\n ',
    )
    data = make_data(tmp_path / 'data', 'parallel', source=f'{tmp_path}/a', target=f'{tmp_path}/b')
    corpus = corpus_lib.load(data)
    assert f'{tmp_path}/a: 3 pairs with an empty side' in caplog.text  # left out of every split
    for name in SPLITS:
        split = corpus.split(name)
        texts = [split.source_text(i) for i in range(len(split))]
        assert texts == [line for line in lines if split_of(line) == name]
        assert all(split.reference_texts(i)[0].split()[0] == text for i, text in enumerate(texts))


def test_another_file_another_tokenizer_and_another_size_are_prepared_anew(make_data, six):
    directory = corpus_lib.prepared_directory
    data = parallel_data(make_data, six)
    before = directory(data)
    assert directory(parallel_data(make_data, six, tokenizer_size=400)) == before  # of no matter to words
    others = [{'tokenizer': 'bytes'}, {'tokenizer': 'bpe'}, {'tokenizer': 'bpe', 'tokenizer_size': 400}]
    assert len({before, *(directory(parallel_data(make_data, six, **other)) for other in others)}) == 4
    write(six, **{'test.de': 'eins\nzwei\n\n\n\n\n'})
    assert directory(data) != before
    (six / 'test.de').unlink()
    with pytest.raises(UserError, match=r'data.target=.*test.de'):
        corpus_lib.load(data)


def stream(split):
    return split.documents.values.tolist()


@pytest.mark.parametrize('tokenizer', ['characters', 'bytes', 'bpe'])
def test_a_text_file_is_a_document(make_data, tmp_path, tokenizer):
    texts = {split: f'{split}:\r\n\n {HARD}\n' for split in SPLITS}
    write(tmp_path, **{f'{split}.txt': text for split, text in texts.items()})
    data = make_data(tmp_path / 'data', 'text', source=f'{tmp_path}/{{split}}.txt', tokenizer=tokenizer)
    corpus = corpus_lib.load(data)
    assert corpus.kind == 'text' and corpus.split('train').packing == 'stream'
    for split, text in texts.items():
        ids = stream(corpus.split(split))
        assert ids.count(EOS) == 1 and ids[-1] == EOS and len(corpus.split(split).documents) == 1
        if split == 'train' or tokenizer != 'characters':
            assert corpus.decode(ids) == text and min(ids[:-1]) > MASK
        else:
            assert UNK in ids


def test_text_files_without_a_split_are_cut_and_lose_nothing(make_data, tmp_path):
    paragraphs = [f'paragraph {i}\n' + 'words ' * (i % 90) + '\n\n' for i in range(1500)]
    (tmp_path / 'texts').mkdir()
    write(tmp_path / 'texts', a=''.join(paragraphs[:700]), b=''.join(paragraphs[700:]), empty='')
    corpus = corpus_lib.load(make_data(tmp_path / 'data', 'text', source=f'{tmp_path}/texts', tokenizer='bytes'))
    found = set()
    for name in SPLITS:
        documents = corpus.split(name).documents
        texts = [corpus.decode(documents[i].tolist()) for i in range(len(documents))]
        assert texts and all(split_of(text.strip()) == name for text in texts)
        found.update(texts)
    assert sorted(''.join(found)) == sorted(''.join(paragraphs))
    assert sum(len(text) for text in found) / len(found) == pytest.approx(4096, rel=0.1)


def test_no_text_at_all_is_refused(make_data, tmp_path):
    write(tmp_path, nothing='')
    with pytest.raises(UserError, match='data.source=.*/nothing: no example for train; .*give more text'):
        corpus_lib.load(make_data(tmp_path / 'data', 'text', source=f'{tmp_path}/nothing', tokenizer='bytes'))
    write(tmp_path, **{f'{split}.txt': '' if split == 'train' else 'text' for split in SPLITS})
    with pytest.raises(UserError, match='data.source=.*: no example for train; write more into .*train.txt'):
        corpus_lib.load(make_data(tmp_path / 'data', 'text', source=f'{tmp_path}/{{split}}.txt', tokenizer='bytes'))
    with pytest.raises(UserError, match='data.source=.*absent'):
        corpus_lib.load(make_data(tmp_path / 'data', 'text', source=f'{tmp_path}/absent', tokenizer='bytes'))


def test_labels_and_their_texts(make_data, tmp_path):
    for split in SPLITS:
        write(tmp_path, **{f'{split}.tsv': f'yes\tof {split}\n\n no \ta\tb{SEPARATORS}\nyes\t\n'})
    data = make_data(tmp_path / 'data', 'labelled', source=f'{tmp_path}/{{split}}.tsv', tokenizer='bytes')
    corpus = corpus_lib.load(data)
    assert corpus.kind == 'labelled' and corpus.classes == ('no', 'yes')
    dev = corpus.split('dev')
    assert not dev.per_token and dev.labels.values.tolist() == [1, 0, 1]
    texts = [dev.tokens[i].tolist() for i in range(3)]
    assert [corpus.decode(row) for row in texts] == ['of dev', f'a\tb{SEPARATORS}', '']
    assert {row[0] for row in texts} == {BOS} and {row[-1] for row in texts} == {EOS}


def test_a_line_without_a_label_is_named(tmp_path):
    write(tmp_path, a='yes\tx\nno tab here\n', b='\tx\n')
    with pytest.raises(UserError, match=f'{tmp_path}/a, line 2'):
        labelled.parse(f'{tmp_path}/a')
    with pytest.raises(UserError, match=f'{tmp_path}/b, line 1'):
        labelled.parse(f'{tmp_path}/b')


def test_a_file_of_labels_is_split_by_its_texts(make_data, tmp_path):
    write(tmp_path, a=''.join(f'{i % 3}\ttext {i // 2}\n' for i in range(400)))
    corpus = corpus_lib.load(make_data(tmp_path / 'data', 'labelled', source=f'{tmp_path}/a', tokenizer='bytes'))
    assert corpus.classes == ('0', '1', '2')
    rows = {name: corpus.split(name) for name in SPLITS}
    assert sum(map(len, rows.values())) == 400
    for name, split in rows.items():
        texts = [corpus.decode(split.tokens[i].tolist()) for i in range(len(split))]
        assert {split_of(text) for text in texts} == {name} and np.isin(split.labels.values, (0, 1, 2)).all()


@pytest.mark.parametrize('ending', ['', '\n', '\r\n', '\n\n'])
@pytest.mark.parametrize('mark', ['', '\ufeff'])
def test_marks_and_ends_of_a_file_move_nothing_to_another_split(make_data, tmp_path, mark, ending):
    """The last piece has the split that it has with a newline behind it."""
    lines = [f'{i} the quick brown fox jumps over the lazy dog number {i}' for i in range(500)]
    write(tmp_path, a='\n'.join(lines) + '\n', b=mark + '\n'.join(lines) + ending)
    splits = []
    for name in 'ab':
        examples = plain_text.read(make_data(tmp_path, 'text', source=f'{tmp_path}/{name}'), tmp_path)
        splits.append({split: [text.rstrip() for text in examples[split]] for split in SPLITS})
    assert splits[0] == splits[1] and not any('\ufeff' in text for text in splits[1]['train'])
    write(tmp_path, c=f'{mark}yes\tone\nno\ttwo' + ending)
    assert [row.label for row in labelled.parse(f'{tmp_path}/c')] == ['yes', 'no']
    assert parallel.aligned(f'{tmp_path}/b', f'{tmp_path}/b')[0]['source'] == lines[0]


ONE = {
    'text': ('a line', {'tokenizer': 'bytes'}, 'pieces of about 4,096 characters'),
    'parallel': ('a line', {}, 'lines'),
    'labelled': ('yes\ta\nno\ta', {'tokenizer': 'bytes'}, 'lines'),
}


@pytest.mark.parametrize('name', ONE)
@pytest.mark.parametrize('content', ['', '\n', ' \n\n', None])
def test_too_little_to_divide_is_said_with_the_shares_and_the_remedy(make_data, tmp_path, name, content):
    line, fields, unit = ONE[name]
    write(tmp_path, a=line if content is None else content)
    data = make_data(tmp_path / 'data', name, source=f'{tmp_path}/a', target=f'{tmp_path}/a', **fields)
    said = rf'data.source={tmp_path}/a: no example for (train|dev); .* its {unit} .*88 .* 2 .*10 .*{{split}}'
    with pytest.raises(UserError, match=said):
        too_few.refuse(data, 'dev', _size(corpus_lib.load(data).split('dev')))
    for split in SPLITS:
        write(tmp_path, **{f'{split}.x': '' if split == 'dev' else line})
    names = dict.fromkeys(('source', 'target'), f'{tmp_path}/{{split}}.x')
    data = make_data(tmp_path / 'data', name, **names, **fields)
    corpus = corpus_lib.load(data)
    with pytest.raises(UserError, match=rf'data.source=.*: no example for dev; .*{tmp_path}/dev.x'):
        too_few.refuse(data, 'dev', _size(corpus.split('dev')))
    too_few.refuse(data, 'test', _size(corpus.split('test')))


def _size(split):
    return len(split.fits((100,) * (1 + (split.kind == 'pairs'))))


def test_a_small_dev_is_warned_of(make_data, tmp_path, caplog):
    data = make_data(tmp_path, 'text', source='a')
    too_few.warn(data, 'dev', 30)
    assert not caplog.text
    too_few.warn(data, 'dev', 29)
    assert 'dev has only 29 examples' in caplog.text and '{split}' in caplog.text
    too_few.warn(make_data(tmp_path, 'copy'), 'dev', 5)
    assert 'data.name=copy: dev has only 5 examples' in caplog.text
    too_few.warn(data, 'test', 1)
    assert 'test has only 1 example;' in caplog.text


@pytest.mark.parametrize('name', ['parallel', 'labelled'])
def test_one_file_is_no_directory_and_no_pattern(make_data, six, name):
    for missing in (f'{six}/absent', f'{six}/*.en', f'{six}'):
        data = make_data(six / 'data', name, source=missing, target=f'{six}/dev.de', tokenizer='bytes')
        with pytest.raises(UserError) as error:
            corpus_lib.load(data)
        assert f'data.source={missing}: ' in str(error.value) and 'is no file; give one' in str(error.value)
        assert 'pattern' not in str(error.value)


def test_labels_that_cannot_be_learnt_are_refused(make_data, tmp_path):
    lines = {'train': 'yes\ta\nno\tb\n', 'dev': 'yes\ta\nso\tb\nso\tc\n', 'test': 'no\ta\n'}
    write(tmp_path, **{f'{split}.tsv': text for split, text in lines.items()})
    data = make_data(tmp_path / 'data', 'labelled', source=f'{tmp_path}/{{split}}.tsv', tokenizer='bytes')
    with pytest.raises(UserError, match=r"data.source=.*: label 'so' is in dev \(2 examples\) and not in train; "):
        corpus_lib.load(data)
    write(tmp_path, **{f'{split}.tsv': 'yes\ta\nyes\tb\n' for split in SPLITS})
    with pytest.raises(UserError, match=r"data.source=.*: only one label, 'yes', in train; "):
        corpus_lib.load(data)


def test_one_pair_is_one_pair(make_data, tmp_path, caplog):
    without_empty([{'source': '', 'target': 'b', 'references': ['b']}], 'train')
    assert 'train: 1 pair with an empty side is left out' in caplog.text


@pytest.mark.parametrize('content', ['{', 'hello', '[]', '{"a": 0}', '{"model": {"vocab": 3}}'])
def test_what_is_no_tokenizer_is_named_by_its_field(make_data, tmp_path, content):
    write(tmp_path, a='some text\n' * 2000, vocab=content)
    path = f'{tmp_path}/vocab'
    data = make_data(tmp_path / 'data', 'text', source=f'{tmp_path}/a', tokenizer='file', tokenizer_file=path)
    with pytest.raises(UserError, match=rf'data.tokenizer_file={path}: .*no tokenizer.json.*save_pretrained'):
        corpus_lib.load(data)
