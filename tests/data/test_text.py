import os
import re

import pytest

from jaxformer.data.text import find, find_all, fingerprint, pieces, read_lines, split_lines
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


def test_files_are_found_by_name_directory_and_pattern(tmp_path, monkeypatch):
    for name in ('b.txt', 'a.txt', 'deep/c.txt', '.hidden/d.txt', 'train.md', 'dev.md'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = lambda name, split=None: [str(p.relative_to(tmp_path)) for p in find('data.source', name, split)]  # noqa: E731
    assert names(f'{tmp_path}/a.txt') == ['a.txt']
    assert names(f'{tmp_path}/*.txt') == ['a.txt', 'b.txt']
    assert names(f'{tmp_path}/**/*.txt') == ['a.txt', 'b.txt', 'deep/c.txt']
    assert names(str(tmp_path)) == ['a.txt', 'b.txt', 'deep/c.txt', 'dev.md', 'train.md']
    assert names(f'{tmp_path}/{{split}}.md', 'dev') == ['dev.md']
    monkeypatch.chdir(tmp_path)
    assert [str(p) for p in find('data.source', '*.md')] == ['dev.md', 'train.md']
    monkeypatch.setenv('HOME', str(tmp_path))
    assert names('~/deep') == ['deep/c.txt']


@pytest.mark.parametrize('name', ['absent.txt', '*.nothing', 'absent/*', 'empty'])
def test_what_stands_for_no_file_is_refused(tmp_path, name):
    (tmp_path / 'empty').mkdir()
    with pytest.raises(UserError, match=rf'data.source=.*{re.escape(name)}'):
        find('data.source', f'{tmp_path}/{name}')


def test_a_fingerprint_changes_with_the_file(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('one')
    before = fingerprint(find_all('data.source', str(path)))
    assert before == fingerprint(find_all('data.source', str(path)))
    path.write_text('two')
    os.utime(path, ns=(0, before[0][2] + 1))
    assert fingerprint(find_all('data.source', str(path))) != before


def test_pieces_end_at_blank_lines_and_join_to_the_text():
    paragraphs = [f'{i} ' * (7 * i % 20) + '\nline two\n\n' for i in range(200)]
    cut = list(pieces(''.join(paragraphs), 100))
    assert ''.join(cut) == ''.join(paragraphs) and len(cut) > 50
    assert all(piece.endswith('\n\n') and 100 < len(piece) <= 200 for piece in cut[:-1])
    lines = 'a line of a poem without end\n' * 90
    assert ''.join(pieces(lines, 100)) == lines and all(piece.endswith('\n') for piece in pieces(lines, 100))
    assert [len(piece) for piece in pieces('x' * 250, 100)] == [100, 100, 50]  # no line end near
    assert list(pieces('', 100)) == []


@pytest.mark.parametrize('end', ['\n', '\n\n', ' \r\n\n\n', '\n' * 150])
def test_the_end_of_a_text_moves_no_cut(end):
    for text in (
        'a line of a poem without end\n' * 90 + 'x',
        'paragraph\n' * 9 + '\n' + 'x' * 205,
        'x' * 99,
        'x' * 100,
    ):
        bare, ended = list(pieces(text, 100)), list(pieces(text + end, 100))
        assert ended == [*bare[:-1], bare[-1] + end]
    assert list(pieces(end, 100)) == []
