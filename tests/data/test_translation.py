"""Translation data sets of TFDS, without a network: its own mock, and a builder that cannot download."""

import pytest
import tensorflow_datasets as tfds

from jaxformer.data import corpus as corpus_lib
from jaxformer.data.held_out import SPLITS, split_of
from jaxformer.errors import UserError

NAME = 'wmt14_translate/de-en'


class Records(list):
    """A TFDS data source: `tfds.testing.mock_data` makes one whose __getitems__ fails."""

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


def records(split, count, as_bytes):
    texts = [{'en': f'{split} {i}\u2028one', 'de': f'{split} {i}\neins  '} for i in range(count)]
    return Records({name: text.encode() if as_bytes else text for name, text in row.items()} for row in texts)


def mocked(sizes, as_bytes=True):
    source = {split: records(split, count, as_bytes) for split, count in sizes.items()}
    return tfds.testing.mock_data(as_data_source_fn=lambda builder, split: source if split is None else source[split])


def pairs(make_data, directory, **fields):
    corpus = corpus_lib.load(make_data(directory, NAME, **{'source': 'en', 'target': 'de', **fields}))
    splits = {name: corpus.split(name) for name in SPLITS}
    return {
        name: [(split.source_text(i), split.reference_texts(i)) for i in range(len(split))]
        for name, split in splits.items()
    }


@pytest.mark.parametrize('as_bytes', [True, False])  # from the disk, and from mocks
def test_features_become_sides_and_validation_is_dev(make_data, tmp_path, as_bytes):
    sizes = {'train': 5000, 'validation': 3, 'test': 4}  # more than one read
    with mocked(sizes, as_bytes):
        found = pairs(make_data, tmp_path)
    assert {name: len(rows) for name, rows in found.items()} == {'train': 5000, 'dev': 3, 'test': 4}
    assert found['train'][4321] == ('train 4321\u2028one', ['train 4321 eins  '])  # one line each
    assert found['dev'][2] == ('validation 2\u2028one', ['validation 2 eins  '])
    assert pairs(make_data, tmp_path) == found  # prepared: TFDS is not asked again


class Local(tfds.core.GeneratorBasedBuilder):
    """A translation data set that needs no network."""

    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(['de', 'en']))

    def _split_generators(self, dl_manager):
        return {split: enumerate(records(split, 7, False)) for split in ('train', 'validation', 'test')}

    def _generate_examples(self):
        raise NotImplementedError


def test_what_tfds_has_written(make_data, tmp_path, monkeypatch):
    made = []

    def builder(name, file_format):
        made.append(name)
        return Local(data_dir=tmp_path / 'tfds', file_format=file_format)

    monkeypatch.setattr(tfds, 'builder', builder)
    found = pairs(make_data, tmp_path / 'data')
    assert made == [NAME] and {name: len(rows) for name, rows in found.items()} == dict.fromkeys(SPLITS, 7)
    for name, rows in found.items():
        tfds_name = 'validation' if name == 'dev' else name
        assert sorted(rows) == [(f'{tfds_name} {i}\u2028one', [f'{tfds_name} {i} eins  ']) for i in range(7)]


def test_splits_that_are_not_there_are_taken_from_train(make_data, tmp_path):
    with mocked({'train': 400}):
        found = pairs(make_data, tmp_path / 'a')
    assert all(split_of(text) == name for name, rows in found.items() for text, _ in rows)
    assert sum(map(len, found.values())) == 400 and all(found.values())
    with mocked({'train': 400, 'validation': 3, 'dev_other': 2}):
        found = pairs(make_data, tmp_path / 'b')
    assert len(found['dev']) == 3 and {split_of(text) for text, _ in found['test']} == {'test'}
    assert {split_of(text) for text, _ in found['train']} == {'train', 'dev'}


def test_another_direction_or_tokenizer_is_prepared_anew(make_data):
    changes = [{}, {'source': 'de', 'target': 'en'}, {'tokenizer': 'bytes'}, {'tokenizer': 'bpe'}]
    fields = [{'source': 'en', 'target': 'de', **change} for change in changes]
    directories = {corpus_lib.prepared_directory(make_data('/nowhere', NAME, **these)) for these in fields}
    assert len(directories) == 4 and all(path.name.startswith('wmt14_translate-de-en-') for path in directories)


def test_mistakes_are_named_with_what_there_is(make_data, tmp_path):
    with mocked({'train': 4}):
        with pytest.raises(UserError, match=f"data.name={NAME}: has no feature 'fr'.*de, en"):
            pairs(make_data, tmp_path, target='fr')
        with pytest.raises(UserError, match='data.name=wmt14_translate/xx-en: TFDS'):
            corpus_lib.load(make_data(tmp_path, 'wmt14_translate/xx-en', source='en', target='xx'))
        with pytest.raises(UserError, match='data.name=wmt_no/de-en: TFDS has no such data set'):
            corpus_lib.load(make_data(tmp_path, 'wmt_no/de-en', source='en', target='de'))


def test_without_a_network_it_is_one_line(make_data, tmp_path, monkeypatch, capfd):
    def download_and_prepare(self, **options):
        print('downloading')
        raise ConnectionError('no route to host\nand forty lines more')

    monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', download_and_prepare)
    with pytest.raises(
        UserError, match='TFDS cannot prepare it .ConnectionError: no route to host.; it needs'
    ) as caught:
        pairs(make_data, tmp_path)
    assert '\n' not in str(caught.value) and capfd.readouterr().out == ''
