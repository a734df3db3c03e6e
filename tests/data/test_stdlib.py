"""The standard library as text and as labelled code. Expected classes are written out by hand."""

import ast
import pathlib
import sys
import sysconfig

import numpy as np
import pytest

from jaxformer.data import corpus as corpus_lib
from jaxformer.data import stdlib, syntax
from jaxformer.data.held_out import SPLITS, split_of
from jaxformer.data.vocab import BOS, EOS, MASK, Vocabulary
from jaxformer.errors import UserError


def load(make_data, directory, name='stdlib', **fields):
    return corpus_lib.load(make_data(directory, name, **{'tokenizer': 'bytes', 'buckets': ((66,),), **fields}))


@pytest.fixture(scope='module')
def library(tmp_path_factory):
    """A small library: packages of 1 to 15 modules, tests, site-packages."""
    root = tmp_path_factory.mktemp('lib')
    for package in range(1, 16):
        for module in range(package):
            path = root / f'p{package:02}' / f'm{module}.py'
            path.parent.mkdir(exist_ok=True)
            path.write_text(f'import x\n# of {package} \u0151\n' + 'value = 1\n' * (2 * module) + f'{package}\n')
    for left_out in ('test/t.py', 'site-packages/s.py', 'p15/tests/t.py', 'config-3.11-x/c.py', '_sysconfigdata_l.py'):
        (root / left_out).parent.mkdir(exist_ok=True)
        (root / left_out).write_text('LEFT_OUT')
    (root / 'empty.py').touch()
    (root / 'latin.py').write_bytes('# -*- coding: latin-1 -*-\nname = "\u00e9"\n'.encode('latin-1'))
    (root / 'broken.py').write_text('"""never ends\n')
    (root / 'bytes.py').write_bytes(b'# \xff\n')
    (root / 'notes.txt').write_text('LEFT_OUT')
    return root


@pytest.fixture
def small(library, monkeypatch):
    monkeypatch.setattr(stdlib, 'library', lambda: pathlib.Path(library))
    return library


def test_each_module_is_a_document_of_its_split(small, make_data, tmp_path):
    corpus = load(make_data, tmp_path)
    assert corpus.kind == 'text' and len(corpus.vocab) == 261
    seen = 0
    for name in SPLITS:
        documents = corpus.split(name).documents
        modules = [module for module in stdlib.texts() if split_of(module) == name]
        assert len(documents) == len(modules)
        for module, row in zip(modules, (documents[i].tolist() for i in range(len(documents))), strict=True):
            coding = 'latin-1' if module == 'latin.py' else 'utf-8'
            assert corpus.decode(row) == (small / module).read_text(coding) and row[-1] == EOS and min(row[:-1]) > MASK
        seen += len(modules)
    assert seen == 15 * 16 // 2 + 2  # without what is empty, left out, or cannot be read


def test_a_changed_library_is_prepared_anew(small, make_data, tmp_path):
    before = corpus_lib.prepared_directory(make_data(tmp_path, 'stdlib'))
    (small / 'more.py').write_text('x')
    assert corpus_lib.prepared_directory(make_data(tmp_path, 'stdlib')) != before
    (small / 'more.py').unlink()
    assert corpus_lib.prepared_directory(make_data(tmp_path, 'stdlib')) == before


def test_a_library_without_sources_is_named(make_data, tmp_path, monkeypatch):
    monkeypatch.setattr(stdlib, 'library', lambda: tmp_path)
    with pytest.raises(UserError, match=f'data.name=stdlib: {tmp_path} holds no source'):
        load(make_data, tmp_path / 'data')


def test_pieces_of_packages(small, make_data, tmp_path):
    """The classes are the twelve packages with the most modules, and each occurs in every split."""
    corpus = load(make_data, tmp_path, 'stdlib_labels')
    assert corpus.classes == tuple(f'p{number:02}' for number in range(4, 16))
    lengths = []
    whole: dict[int, str] = {}
    for name in SPLITS:
        split = corpus.split(name)
        assert set(split.labels.values) == set(range(12)) and not split.per_token
        for i in range(len(split)):
            row = split.tokens[i].tolist()
            assert row[0] == BOS and row[-1] == EOS and len(row) <= 66
            lengths.append(len(row) - 2)
            label = int(split.labels[i][0])
            whole[label] = whole.get(label, '') + corpus.decode(row)
    modules = {label: stdlib.texts()[f'p{label + 4:02}/m0.py'] for label in range(12)}
    assert all(modules[label] in text for label, text in whole.items())  # the pieces of a module in their order
    total = sum(len(text.encode()) for module, text in stdlib.texts().items() if module[:3] in corpus.classes)
    assert sum(lengths) == total and min(lengths) >= 32 // 2 and max(lengths) <= 64  # equal pieces, no stubs


# Lines of code, and below each the class of each of its characters, the newline included: k keyword, n name, # number,
# s string, c comment, o operator, w whitespace.
CODE = (
    ('if x1 >= 0b10:  # \u0151 no', 'kkwnnwoow####owwccccccw'),
    ("\ty = 'a' + '''q", 'wnwowssswowsssss'),
    ("r''' \\", 'sssswww'),
    ('  @ lambda_', 'wwownnnnnnnw'),
    ('return None', 'kkkkkkwkkkkw'),
)


def code_and_classes():
    assert [name[0] for name in syntax.CLASSES] == list('knnscow')
    text = ''.join(line + '\n' for line, _ in CODE)
    return text, np.array(['kn#scow'.index(letter) for _, letters in CODE for letter in letters])


def test_the_class_of_each_character():
    text, expected = code_and_classes()
    assert len(set(expected)) == 7
    assert syntax.of_characters(text).tolist() == expected.tolist()
    assert syntax.of_characters('').tolist() == []
    assert set(syntax.of_characters('x = 1')[-1:]) == {syntax.CLASSES.index('number')}  # no newline at the end


def test_strings_with_fields_are_strings_outside_the_fields():
    classes = [syntax.CLASSES[i] for i in syntax.of_characters("f'ab{x}c'\n")]
    assert classes[:4] == ['string'] * 4 and classes[7:9] == ['string'] * 2
    assert classes[5] == ('name' if sys.version_info >= (3, 12) else 'string')


@pytest.mark.parametrize('tokenizer', ['characters', 'bytes', 'bpe'])
def test_the_class_of_each_token_is_that_of_its_first_character(tokenizer):
    text, expected = code_and_classes()
    vocab = Vocabulary.learn(tokenizer, [text, ' + x1 >= return ' * 20], 300)
    (ids,) = vocab.encode_texts([text])
    found = syntax.of_tokens(syntax.of_characters(text), text, vocab, ids)
    assert len(found) == len(ids)
    if tokenizer == 'characters':
        assert found.tolist() == expected.tolist()
        return
    start, merged = 0, 0
    place = [i for i, character in enumerate(text) for _ in character.encode()]  # of each byte
    for id_, label in zip(ids, found, strict=True):
        symbol = vocab.symbols[id_]
        begins = start + (symbol.startswith('\u0120') and len(symbol) > 1)  # after the blank before a word
        assert label == expected[place[begins]], symbol
        start += len(symbol)
        merged += begins > start - len(symbol)
    assert start == len(text.encode()) and (merged > 2) == (tokenizer == 'bpe')


@pytest.mark.parametrize('tokenizer', ['characters', 'bytes', 'bpe'])
def test_pieces_with_a_class_for_each_token(small, make_data, tmp_path, tokenizer, caplog):
    corpus = load(make_data, tmp_path, 'stdlib_labels', labels='syntax', tokenizer=tokenizer)
    assert corpus.classes == syntax.CLASSES and 'stdlib_labels: 1 modules' in caplog.text  # the broken one
    for name in SPLITS:
        split = corpus.split(name)
        assert split.per_token and np.array_equal(split.labels.offsets, split.tokens.offsets)
        for i in range(len(split)):
            labels, row = split.labels[i], split.tokens[i].tolist()
            assert labels[0] == labels[-1] == -1 and min(labels[1:-1], default=0) >= 0 and len(row) <= 66
            if tokenizer != 'bpe':
                text = corpus.decode(row)
                assert all(
                    labels[1 + place] == syntax.CLASSES.index('number')
                    for place in range(len(text.encode()))
                    if text.isascii() and text[place].isdigit() and text[:place].endswith('= ')
                )


def test_another_longest_bucket_and_another_label_are_prepared_anew(small, make_data, tmp_path):
    directory = lambda **fields: corpus_lib.prepared_directory(make_data(tmp_path, 'stdlib_labels', **fields))  # noqa: E731
    fields = [{}, {'labels': 'syntax'}, {'tokenizer': 'bytes'}, {'buckets': ((9,), (10,))}, {'buckets': ((10,),)}]
    assert len({directory(**changed) for changed in fields}) == 4
    assert directory(buckets=((9,), (10,))) == directory(buckets=((10,),))


@pytest.fixture(scope='module')
def whole(make_data, cache):
    """The library of the Python that runs."""
    return load(make_data, cache)


def test_the_running_library(whole):
    """Every module in one split each, and the size is that of the files."""
    texts = stdlib.texts()
    root = pathlib.Path(sysconfig.get_path('stdlib'))
    assert (
        'ast.py' in texts and 'asyncio/tasks.py' in texts and texts['ast.py'] == pathlib.Path(ast.__file__).read_text()
    )
    assert not any({'test', 'tests', 'site-packages'} & set(pathlib.PurePath(module).parts) for module in texts)
    assert all((root / module).is_file() for module in texts)
    sizes = {name: whole.split(name).num_tokens for name in SPLITS}
    assert sum(sizes.values()) == sum(len(text.encode()) + 1 for text in texts.values())
    assert sum(sizes.values()) > 5e6 and sizes['train'] > 0.8 * sum(sizes.values()) and min(sizes.values()) > 1e4
