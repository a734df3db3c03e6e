"""Rows of text and of labelled data, alone and as batches of the pipeline (B07, the data half)."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.data import pipeline
from jaxformer.data.ragged import Ragged
from jaxformer.data.splits import LabelledSplit, TextSplit
from jaxformer.data.vocab import EOS
from jaxformer.errors import UserError

LENGTHS = (3, 5, 4, 1, 17, 2, 9)  # of documents, EOS included
DOCUMENTS = [[*(10 * number + place for place in range(1, length)), EOS] for number, length in enumerate(LENGTHS, 1)]
STREAM = sum(DOCUMENTS, [])


def text(packing='stream'):
    return TextSplit('train', Ragged.of(DOCUMENTS, np.uint16), packing)


def in_order(batches):
    """(all real rows of the batches, in the order of their numbers, by name)."""
    ids = np.concatenate([batch['example_id'] for batch in batches])
    order = [i for i in np.argsort(ids, kind='stable') if ids[i] >= 0]
    return {name: np.concatenate([batch[name] for batch in batches])[order] for name in batches[0]}


def train_batches(split, bucket, batch_size, epochs=1, **options):
    batches = pipeline.TrainBatches(split, (bucket,), batch_size, **{'seed': 3, 'shuffle': True, **options})
    return [batches[i] for i in range(epochs * batches.batches_per_epoch)]


@pytest.mark.parametrize('T', [1, 4, 7, 41, 50])
@pytest.mark.parametrize('batch_size', [1, 3, 8])
def test_windows_lose_no_token(T, batch_size):
    """Rows one after the other are the stream, and only the last one has padding."""
    for batches in (train_batches(text(), (T,), batch_size), list(pipeline.eval_batches(text(), ((T,),), batch_size))):
        rows = in_order(batches)
        assert rows['example_id'].tolist() == list(range(-(-len(STREAM) // T)))
        assert rows['tokens'].ravel()[: len(STREAM)].tolist() == STREAM
        assert not rows['tokens'].ravel()[len(STREAM) :].any()
        assert {batch['tokens'].shape for batch in batches} == {(batch_size, T)}
        assert {array.dtype for batch in batches for array in batch.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize('T', [1, 4, 7, 41, 50])
def test_segments_mark_the_documents(T):
    rows = in_order(train_batches(text('documents'), (T,), 3))
    assert np.array_equal(rows['tokens'], in_order(train_batches(text(), (T,), 3))['tokens'])
    document = np.concatenate([np.full(length, number) for number, length in enumerate(LENGTHS)])
    for i, (tokens, segment) in enumerate(zip(rows['tokens'], rows['segment'], strict=True)):
        real = document[i * T : (i + 1) * T]
        assert segment[: len(real)].tolist() == (real - real[0] + 1).tolist()  # one more at each boundary, from 1
        assert not segment[len(real) :].any() and (tokens == 0).tolist() == (segment == 0).tolist()
        ends = [place for place in range(len(real) - 1) if segment[place + 1] != segment[place]]
        assert all(tokens[place] == EOS for place in ends)  # EOS belongs to the document that it ends
        assert ends == [place for place in range(len(real) - 1) if tokens[place] == EOS]


def test_rows_that_fill_up_a_batch_are_padding():
    (batch,) = train_batches(text('documents'), (7,), 8)
    filling = batch['example_id'] < 0
    assert filling.sum() == 2 and not batch['tokens'][filling].any() and not batch['segment'][filling].any()


def test_windows_are_shuffled_by_seed_and_epoch_and_shapes_are_not():
    ids = lambda batches: [batch['example_id'].tolist() for batch in batches]  # noqa: E731
    first, second = (train_batches(text(), (3,), 2, 2, seed=seed) for seed in (1, 2))
    assert ids(first) == ids(train_batches(text(), (3,), 2, 2, seed=1)) != ids(second)
    assert ids(first[:7]) != ids(first[7:])
    assert [batch['tokens'].shape for batch in first] == [batch['tokens'].shape for batch in second]
    straight = train_batches(text(), (3,), 2, 2, shuffle=False)
    assert sum(ids(straight[:7]), []) == list(range(14))


def test_processes_take_rows_of_the_same_batch():
    whole = train_batches(text('documents'), (4,), 6)
    parts = [train_batches(text('documents'), (4,), 6, rows=np.arange(3) + 3 * p) for p in range(2)]
    for i, batch in enumerate(whole):
        for name in batch:
            np.testing.assert_array_equal(np.concatenate([part[i][name] for part in parts]), batch[name])


def test_an_iterator_of_text_resumes_by_its_index():
    cfg = SimpleNamespace(
        data=SimpleNamespace(buckets=((4,),), shuffle=True), train=SimpleNamespace(batch_size=3), seed=0
    )
    corpus = SimpleNamespace(split=lambda name: text('documents'))
    straight = pipeline.train_iterator(cfg, corpus)
    batches = [next(straight) for _ in range(9)]
    fresh = pipeline.train_iterator(cfg, corpus)
    fresh.set_state({'next_index': 5})
    for expected in batches[5:]:
        batch = next(fresh)
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)
    assert fresh.get_state() == {'next_index': 9}


def test_no_text_is_refused():
    with pytest.raises(UserError, match='data.buckets.*none of the 0'):
        train_batches(TextSplit('train', Ragged.of([], np.uint16), 'stream'), (4,), 2)


TOKENS = [[1, *range(5, 5 + length), 2] for length in (3, 1, 6, 0, 2)]


@pytest.mark.parametrize('per_token', [False, True])
def test_labels_stand_beside_their_tokens(per_token):
    labels = [[-1, *(token % 3 for token in row[1:-1]), -1] if per_token else [i % 4] for i, row in enumerate(TOKENS)]
    split = LabelledSplit('train', Ragged.of(TOKENS, np.uint16), Ragged.of(labels, np.int16), per_token)
    buckets = ((4,), (7,))
    batches = pipeline.TrainBatches(split, buckets, 3, seed=0, shuffle=True)
    assert (batches.num_examples, batches.skipped) == (4, 1)  # 6 symbols, BOS and EOS are more than 7
    seen = []
    for source in ([batches[i] for i in range(2)], pipeline.eval_batches(split, buckets, 3)):
        for batch in source:
            T = batch['tokens'].shape[1]
            assert (T,) in buckets and batch['label'].shape == ((3, T) if per_token else (3,))
            assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
            for i, tokens, label in zip(batch['example_id'], batch['tokens'], batch['label'], strict=True):
                row, expected = (TOKENS[i], labels[i]) if i >= 0 else ([], [])
                assert tokens.tolist() == row + [0] * (T - len(row))
                fill = [-1] * (T - len(expected) if per_token else 1 - len(expected))
                assert np.ravel(label).tolist() == expected + fill
                seen.append(int(i))
    assert sorted(i for i in seen if i >= 0) == [0, 0, 1, 1, 3, 3, 4, 4]
