from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.data import pipeline
from jaxformer.data.ragged import Ragged
from jaxformer.data.splits import PairSplit
from jaxformer.errors import UserError

BUCKETS = ((4, 4), (7, 7), (9, 9))
CMUDICT_BUCKETS = ((7, 6), (8, 7), (9, 8), (10, 9), (12, 11), (16, 14), (32, 32))


def config(batch_size=6, seed=0, shuffle=True, buckets=BUCKETS):
    return SimpleNamespace(
        data=SimpleNamespace(buckets=buckets, shuffle=shuffle), train=SimpleNamespace(batch_size=batch_size), seed=seed
    )


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def ids(batches):
    return [batch['example_id'].tolist() for batch in batches]


def shapes(batches):
    return [(batch['source'].shape, batch['target'].shape) for batch in batches]


def epochs(corpus, count, **fields):
    """The batches of the first `count` epochs, epoch by epoch."""
    cfg = config(**fields)
    per_epoch = -(-53 // cfg.train.batch_size)
    batches = take(pipeline.train_iterator(cfg, corpus), count * per_epoch)
    return [batches[i * per_epoch : (i + 1) * per_epoch] for i in range(count)]


@pytest.mark.parametrize('batch_size', [1, 4, 6, 53, 60])
@pytest.mark.parametrize('shuffle', [True, False])
def test_every_example_comes_once_per_epoch(corpus, batch_size, shuffle):
    for epoch in epochs(corpus, 3, batch_size=batch_size, shuffle=shuffle):
        rows = np.concatenate(ids(epoch))
        assert sorted(rows[rows >= 0]) == list(range(53))
        assert np.all(np.concatenate(ids(epoch[:-1]) or [[0]]) >= 0)  # only the last batch has padding rows
        assert len(rows) - 53 == -53 % batch_size


def test_rows_hold_their_example_and_eos_and_then_padding(corpus):
    split = corpus.split('train')
    for batch in epochs(corpus, 1)[0]:
        assert (batch['source'].shape[1], batch['target'].shape[1]) in BUCKETS
        assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
        for i, source, target in zip(batch['example_id'], batch['source'], batch['target'], strict=True):
            expected = (split.source[i].tolist(), split.target[i].tolist()) if i >= 0 else ([], [])
            assert source.tolist() == expected[0] + [0] * (len(source) - len(expected[0]))
            assert target.tolist() == expected[1] + [0] * (len(target) - len(expected[1]))


def test_order_differs_by_epoch_and_by_seed_and_is_repeatable(corpus):
    first, second = epochs(corpus, 2, seed=1)
    assert ids(first) != ids(second)
    assert ids(first) == ids(epochs(corpus, 1, seed=1)[0])
    assert ids(first) != ids(epochs(corpus, 1, seed=2)[0])


def test_shapes_do_not_depend_on_the_seed(corpus):
    a, b = (sum(epochs(corpus, 4, seed=seed), []) for seed in (1, 2))
    assert ids(a) != ids(b)
    assert shapes(a) == shapes(b)
    assert len(set(shapes(a))) == len(BUCKETS)
    assert shapes(a[:9]) != shapes(a[9:18])  # and they are not in the same order in each epoch


def test_without_shuffling_the_order_of_the_file_stays_within_a_bucket(corpus):
    for epoch in epochs(corpus, 2, shuffle=False, batch_size=4):
        for bucket in BUCKETS:
            rows = [row for batch in epoch if batch['source'].shape[1] == bucket[0] for row in batch['example_id']]
            rows = [row for row in rows if row >= 0]
            assert rows == sorted(rows)


def test_an_order_never_changes():
    """A run that was begun with another NumPy or on another machine resumes with the same examples."""
    assigned = np.array([0, 1, 1, 0, -1, 1, 0, 1, 0, 1, 0])
    plan = pipeline.plan_epoch(assigned, 2, 3, seed=5, epoch=2, shuffle=True)
    assert [(bucket, rows.tolist()) for bucket, rows in plan] == [
        (1, [10, 7, 5]),
        (0, [8, 6, 0]),
        (1, [3, 2, 9]),
        (1, [1, -1, -1]),
    ]


@pytest.mark.parametrize('stop', [7, 13, 18, 31])
def test_resuming_goes_on_with_the_same_examples(corpus, stop):
    straight = take(pipeline.train_iterator(config(), corpus), 40)  # 9 batches an epoch
    iterator = pipeline.train_iterator(config(), corpus)
    take(iterator, stop)
    state = iterator.get_state()
    assert state == {'next_index': stop}
    fresh = pipeline.train_iterator(config(), corpus)
    fresh.set_state(state)
    assert ids(take(fresh, 40 - stop)) == ids(straight[stop:])
    iterator.set_state({'next_index': 2})  # back, although later batches are prepared already
    assert ids(take(iterator, 5)) == ids(straight[2:7])


def test_epochs_are_endless_and_none_is_made_before_its_time(corpus):
    iterator = pipeline.train_iterator(config(), corpus)
    iterator.set_state({'next_index': 10**15})
    assert len(ids(take(iterator, 10))) == 10
    assert iterator.get_state() == {'next_index': 10**15 + 10}


def rows_of(process_index, process_count, batch_size):
    """The rows of a global batch that a process takes."""
    return np.split(np.arange(batch_size), process_count)[process_index]


@pytest.mark.parametrize('process_count', [2, 4])
def test_processes_take_rows_of_the_same_global_batches(corpus, process_count):
    cfg = config(batch_size=8)
    whole = take(pipeline.train_iterator(cfg, corpus), 15)
    parts = [take(pipeline.train_iterator(cfg, corpus, rows_of(p, process_count, 8)), 15) for p in range(process_count)]
    for i, batch in enumerate(whole):
        for name in batch:
            assert parts[0][i][name].shape[0] == 8 // process_count
            np.testing.assert_array_equal(np.concatenate([part[i][name] for part in parts]), batch[name])


@pytest.mark.parametrize('counts', [(1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 2)])
def test_a_state_moves_between_process_counts(corpus, counts):
    cfg = config(batch_size=8)  # seven batches an epoch: one goes on in the middle of it, into the next two
    before = [pipeline.train_iterator(cfg, corpus, rows_of(p, counts[0], 8)) for p in range(counts[0])]
    for iterator in before:
        take(iterator, 5)
        assert iterator.get_state() == {'next_index': 5}
    after = [pipeline.train_iterator(cfg, corpus, rows_of(p, counts[1], 8)) for p in range(counts[1])]
    for iterator in after:
        iterator.set_state(before[0].get_state())
    rows = [
        np.concatenate([batch['example_id'] for batch in step])
        for step in zip(*(take(i, 16) for i in after), strict=True)
    ]
    assert [row.tolist() for row in rows] == ids(take(pipeline.train_iterator(cfg, corpus), 21)[5:])
    for epoch in (ids(take(pipeline.train_iterator(cfg, corpus), 5)) + [row.tolist() for row in rows[:2]], rows[2:9]):
        assert sorted(i for row in epoch for i in row if i >= 0) == list(range(53))


@pytest.fixture(scope='module')
def ten():
    """Ten examples with 1 to 10 source ids and as many target ids."""
    rows = Ragged.of([[4] * i + [2] for i in (3, 0, 9, 1, 8, 2, 7, 4, 6, 5)], np.int32)
    return PairSplit('dev', source=rows, target=rows, text=rows, reference_text=rows)


@pytest.mark.parametrize(('batch_size', 'process_count'), [(1, 1), (3, 1), (4, 1), (10, 1), (4, 2), (10, 2), (12, 4)])
def test_eval_counts_each_example_once(ten, batch_size, process_count):
    buckets = ((4, 4), (7, 7), (10, 10))
    of = lambda p: rows_of(p, process_count, batch_size)  # noqa: E731
    parts = [pipeline.eval_batches(ten, buckets, batch_size, of(p)) for p in range(process_count)]
    for _ in range(2):  # as often as one likes
        rows = Counter(int(row) for part in parts for batch in part for row in batch['example_id'])
        assert {row: count for row, count in rows.items() if row >= 0} == dict.fromkeys(range(10), 1)
    assert all(len(list(part)) == len(part) and part.skipped == 0 for part in parts)
    for part in parts:
        assert {batch['source'].shape[0] for batch in part} == {batch_size // process_count}
        widths = [batch['source'].shape[1] for batch in part]
        assert widths == sorted(widths) and set(widths) == {4, 7, 10}
        for batch in part:
            assert np.array_equal(np.any(batch['source'] != 0, axis=1), batch['example_id'] >= 0)


def test_too_long_examples_are_left_out_counted_and_warned_of(ten, caplog):
    buckets = ((4, 4), (8, 8))
    batches = pipeline.eval_batches(ten, buckets, 3)
    assert batches.skipped == 2
    assert 'dev: 2 of 10 examples' in caplog.text
    assert sorted(row for batch in batches for row in batch['example_id'] if row >= 0) == [0, 1, 3, 5, 6, 7, 8, 9]
    train = pipeline.TrainBatches(ten, buckets, 3, seed=0, shuffle=True)
    assert (train.skipped, train.num_examples, train.batches_per_epoch) == (2, 8, 3)
    assert sorted(row for i in range(3) for row in train[i]['example_id'] if row >= 0) == [0, 1, 3, 5, 6, 7, 8, 9]


def test_buckets_that_hold_nothing_are_refused(corpus):
    with pytest.raises(UserError, match='data.buckets.*none of the 53 training examples'):
        pipeline.train_iterator(config(buckets=((1, 1),)), corpus)


def test_both_sides_have_to_fit():
    source, target = (Ragged.of([[4] * n for n in sizes], np.int32) for sizes in ([3, 3, 5, 6, 2], [2, 5, 2, 2, 7]))
    split = PairSplit('dev', source=source, target=target, text=source, reference_text=source)
    assert pipeline.assign_buckets(split, ((3, 2), (5, 6))).tolist() == [0, 1, 1, -1, -1]
    tokens, positions = (3 + 2) + (3 + 5) + (5 + 2), 5 + 11 + 11
    assert pipeline.padding_share(split, ((3, 2), (5, 6))) == pytest.approx(1 - tokens / positions)


def test_padding_on_the_dictionary_is_below_a_tenth(cmudict):
    split = cmudict.split('train')
    assert 0.05 < pipeline.padding_share(split, CMUDICT_BUCKETS) < 0.10
    train = pipeline.TrainBatches(split, CMUDICT_BUCKETS, 256, seed=0, shuffle=True)
    assert train.skipped == 0 and train.num_examples == 118_697
    padding = positions = 0
    for i in range(train.batches_per_epoch):  # and in the batches themselves, with those moved up and the last one
        batch = train[i]
        padding += sum(int(np.sum(batch[side] == 0)) for side in ('source', 'target'))
        positions += batch['source'].size + batch['target'].size
    assert padding / positions < 0.10
