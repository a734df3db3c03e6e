import hashlib

import pytest

from jaxformer.data.held_out import SPLITS, divided, split_of


def test_a_key_has_its_split_by_its_hash():
    for key in map(str, range(500)):
        bucket = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 100
        assert split_of(key) == ('train' if bucket < 88 else 'dev' if bucket < 90 else 'test')


def test_items_keep_their_order_and_equal_keys_stay_together():
    items = [(i, str(i % 400)) for i in range(1000)]
    splits = divided(items, (key for _, key in items))
    assert sorted(sum(splits.values(), [])) == items and tuple(splits) == SPLITS
    for name, rows in splits.items():
        assert rows == sorted(rows) and {split_of(key) for _, key in rows} == {name}


@pytest.mark.parametrize('count', [3, 4, 7, 20])
def test_no_split_is_empty_while_there_are_keys_enough(count):
    for start in range(0, 500, 50):
        keys = [f'{i}' for i in range(start, start + count)]
        splits = divided(keys, keys)
        assert all(splits.values()) and sorted(sum(splits.values(), [])) == sorted(keys)
        assert divided(keys[::-1], keys[::-1])['test'] == splits['test'][::-1]  # not by the order of the keys


def test_one_key_stays_in_one_split():
    assert sum(bool(rows) for rows in divided('aaa', 'aaa').values()) == 1
    assert divided([], []) == {'train': [], 'dev': [], 'test': []}
