import pytest

from jaxformer.data import synthetic

FIELDS = {'min_length': 2, 'max_length': 5, 'num_symbols': 13}


@pytest.mark.parametrize(
    ('task', 'expected'), [('copy', [3, 1, 2, 1]), ('reverse', [1, 2, 1, 3]), ('sort', [1, 1, 2, 3])]
)
def test_tasks(task, expected):
    assert synthetic.TASKS[task]([3, 1, 2, 1]) == expected


def test_numbers_are_sorted_as_numbers_and_not_as_text():
    pairs = [synthetic.example('sort', i, **FIELDS) for i in range(50)]
    assert all([int(s) for s in p['target'].split()] == sorted(int(s) for s in p['source'].split()) for p in pairs)
    assert any(p['target'].split() != sorted(p['source'].split()) for p in pairs)


def test_an_example_never_changes():
    assert synthetic.example('reverse', 7, **FIELDS) == {
        'source': '10 3 4 10',
        'target': '10 4 3 10',
        'references': ['10 4 3 10'],
    }


def test_all_lengths_and_symbols_occur():
    sources = [synthetic.example('copy', i, **FIELDS)['source'].split() for i in range(300)]
    assert {len(source) for source in sources} == {2, 3, 4, 5}
    assert {symbol for source in sources for symbol in source} == {str(i) for i in range(13)}


def test_splits_are_disjoint_where_there_are_enough_sources(make_data):
    splits = synthetic.splits(make_data('', num_examples=100, max_length=3, num_symbols=5))  # 155 sources
    train, dev, test = ({pair['source'] for pair in splits[name]} for name in ('train', 'dev', 'test'))
    assert [len(splits[name]) for name in ('train', 'dev', 'test')] == [100, 10, 10]
    assert not (train & dev or train & test or dev & test)


def test_too_few_sources_still_give_whole_splits(make_data):
    splits = synthetic.splits(make_data('', num_examples=30, max_length=1, num_symbols=2))
    assert [len(splits[name]) for name in ('train', 'dev', 'test')] == [30, 3, 3]
