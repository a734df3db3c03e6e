"""The file of results per example: what is written is read, whole or not at all."""

import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.train import per_example

ARRAYS = {
    'example_id': np.array([0, 2, 3]),
    'nll': np.array([0.5, 2.25, 1e-9]),
    'wrong': np.array([True, False, True]),
}


def test_what_is_written_is_read(tmp_path):
    assert per_example.read(tmp_path, 'dev') is None
    per_example.write(tmp_path, 'dev', ARRAYS)
    per_example.write(tmp_path, 'test', {'example_id': np.arange(2)})
    found = per_example.read(tmp_path, 'dev')
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].tolist() == array.tolist()
    assert [path.name for path in sorted((tmp_path / 'examples').iterdir())] == ['dev.npz', 'test.npz']
    before = (tmp_path / 'examples' / 'dev.npz').read_bytes()
    per_example.write(tmp_path, 'dev', ARRAYS)
    assert (tmp_path / 'examples' / 'dev.npz').read_bytes() == before


@pytest.mark.parametrize('arrays', [{**ARRAYS, 'nll': np.ones(2)}, {'nll': np.ones(2)}])
def test_arrays_of_other_examples_are_not_written(tmp_path, arrays):
    with pytest.raises(ValueError, match='one entry per example'):
        per_example.write(tmp_path, 'dev', arrays)
    assert not (tmp_path / 'examples').exists()


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04torn', b'\x80\x04cposix\nsystem\n.'])
def test_a_damaged_file_is_named(tmp_path, content):
    per_example.write(tmp_path, 'dev', ARRAYS)
    (tmp_path / 'examples' / 'dev.npz').write_bytes(content)
    with pytest.raises(UserError, match='examples/dev.npz: not results per example .*; remove the file'):
        per_example.read(tmp_path, 'dev')
    with (tmp_path / 'examples' / 'dev.npz').open('wb') as file:
        np.save(file, np.arange(3))
    with pytest.raises(UserError, match='examples/dev.npz'):
        per_example.read(tmp_path, 'dev')
    np.savez(tmp_path / 'examples' / 'dev.npz', example_id=np.arange(3), nll=np.ones(2))
    with pytest.raises(UserError, match='examples/dev.npz'):
        per_example.read(tmp_path, 'dev')


def test_a_flipped_byte_anywhere_is_a_damaged_file_or_none(tmp_path):
    arrays = {'example_id': np.arange(40), 'nll': np.random.default_rng(0).random(40)}
    per_example.write(tmp_path, 'dev', arrays)
    path = tmp_path / 'examples' / 'dev.npz'
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            per_example.read(tmp_path, 'dev')
        except UserError as error:
            assert 'dev.npz' in str(error)
            refused += 1
    assert refused > len(whole) // 4
