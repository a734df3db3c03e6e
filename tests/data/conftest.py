import os
import pathlib
from types import SimpleNamespace

import pytest

from jaxformer.data import corpus as corpus_lib

BUCKETS = ((4, 4), (7, 7), (9, 9))


@pytest.fixture(scope='session')
def make_data():
    """Gives a stand-in for `cfg.data`, so that these tests do not hang on configs/."""

    def make(directory, name='reverse', **fields):
        defaults = {
            'source': '',
            'target': '',
            'targets': '',
            'tokenizer': 'native',
            'tokenizer_size': 300,
            'packing': 'stream',
            'labels': 'package',
            'buckets': BUCKETS,
            'shuffle': True,
            'num_examples': 53,
            'min_length': 1,
            'max_length': 8,
            'num_symbols': 11,
        }
        return SimpleNamespace(name=name, dir=str(directory), **{**defaults, **fields})

    return make


@pytest.fixture(scope='session')
def data(make_data, tmp_path_factory):
    """The config of a small reversal task: 53 examples of 1 to 8 symbols."""
    return make_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='session')
def corpus(data):
    return corpus_lib.load(data)


@pytest.fixture(scope='session')
def cache():
    """A directory that all test runs of this user share, for what takes seconds to prepare."""
    return os.environ.get('JAXFORMER_TEST_CACHE') or pathlib.Path('~/.cache/jaxformer/test-data').expanduser()


@pytest.fixture(scope='session')
def cmudict(make_data, cache):
    """The whole dictionary."""
    return corpus_lib.load(make_data(cache, 'cmudict'))
