"""Files of tensors are whole or absent, and readable for whoever may read the directory."""

import os
import resource

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxformer.inspection import tensors


def test_a_file_has_the_rights_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        tensors.write(tmp_path / 'x', {'a': np.arange(3)})
    finally:
        os.umask(before)
    assert (tmp_path / 'x').stat().st_mode & 0o777 == 0o640
    np.testing.assert_array_equal(load_file(tmp_path / 'x')['a'], [0, 1, 2])
    assert os.listdir(tmp_path) == ['x']


def test_what_cannot_be_written_is_an_os_error_and_leaves_the_old(tmp_path):
    tensors.write(tmp_path / 'x', {'a': np.arange(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match='File too large.*x'):
            tensors.write(tmp_path / 'x', {'a': np.arange(3000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(load_file(tmp_path / 'x')['a']) == 3
    assert os.listdir(tmp_path) == ['x']
    with pytest.raises(FileNotFoundError, match='gone'):
        tensors.write(tmp_path / 'gone' / 'x', {'a': np.arange(3)})
