import pytest

from jaxformer.data.text import read_lines, split_lines
from jaxformer.errors import UserError


@pytest.mark.parametrize('separator', ['\u2028', '\u2029', '\x85', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\r'])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    path = tmp_path / 'lines.txt'
    path.write_bytes(f'one{separator}more\ntwo\n'.encode())
    assert read_lines(path) == [f'one{separator}more', 'two']


def test_empty_lines_and_a_missing_last_newline():
    assert split_lines('') == []
    assert split_lines('\n') == ['']
    assert split_lines('a\n\n  \nb') == ['a', '', '  ', 'b']
    assert split_lines('a\n\n  \nb\n') == ['a', '', '  ', 'b']
    assert split_lines('a\r\n\r\nb\r\n') == ['a', '', 'b']


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / 'lines.txt'
    path.write_bytes('\ufeffa\nb'.encode())
    assert read_lines(path) == ['a', 'b']


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / 'latin1.txt'
    path.write_bytes('naïve'.encode('latin-1'))
    with pytest.raises(UserError, match='latin1.txt.*UTF-8'):
        read_lines(path)
    with pytest.raises(UserError, match='absent.txt'):
        read_lines(tmp_path / 'absent.txt')
    with pytest.raises(UserError, match=str(tmp_path)):
        read_lines(tmp_path)
