import numpy as np
import pytest

from jaxformer.data.ragged import Ragged

ROWS = [[5, 6, 2], [2], [], [7, 2]]


def test_rows_survive_the_disk_as_a_memory_map(tmp_path):
    Ragged.of(ROWS, np.int32).save(tmp_path, 'x')
    ragged = Ragged.load(tmp_path, 'x')
    assert isinstance(ragged.values, np.memmap)
    assert len(ragged) == 4
    assert [ragged[i].tolist() for i in range(4)] == ROWS
    assert ragged.lengths.tolist() == [3, 1, 0, 2]


def test_no_rows_at_all(tmp_path):
    Ragged.of([], np.int32).save(tmp_path, 'x')
    assert len(Ragged.load(tmp_path, 'x')) == 0


@pytest.mark.parametrize('index', [-1, 4])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError):
        Ragged.of(ROWS, np.int32)[index]


def test_padding():
    padded = Ragged.of(ROWS, np.int32).pad(np.array([3, -1, 0, 1, 2]), 4)
    assert padded.dtype == np.int32
    assert padded.tolist() == [[7, 2, 0, 0], [0, 0, 0, 0], [5, 6, 2, 0], [2, 0, 0, 0], [0, 0, 0, 0]]


def test_a_row_is_never_cut():
    with pytest.raises(AssertionError, match='3 does not fit 2'):
        Ragged.of(ROWS, np.int32).pad(np.array([0]), 2)


def test_padding_with_something_else():
    padded = Ragged.of(ROWS, np.uint16).pad(np.array([3, -1]), 3, fill=-1)
    assert padded.dtype == np.int32 and padded.tolist() == [[7, 2, -1], [-1, -1, -1]]


def test_rows_may_come_one_by_one_and_as_bytes():
    ragged = Ragged.of(iter(ROWS), np.int32)
    assert [ragged[i].tolist() for i in range(4)] == ROWS
    assert Ragged.of([b'ab', b''], np.uint8)[0].tobytes() == b'ab'
