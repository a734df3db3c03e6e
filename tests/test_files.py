"""Files are whole or absent, and a directory has one writer."""

import fcntl
import hashlib
import subprocess
import sys
import threading

import pytest

from jaxformer import files
from jaxformer.errors import UserError


def test_what_was_there_stays_when_a_write_fails(tmp_path):
    path = tmp_path / 'value.json'
    files.write_json(path, {'a': 1})
    with pytest.raises(ValueError, match='JSON compliant'):
        files.write_json(path, {'a': float('nan')})
    assert files.read_json(path) == {'a': 1}
    assert [found.name for found in tmp_path.iterdir()] == ['value.json']


@pytest.mark.parametrize('content', [b'{"a": ', b'\xff\xfe'])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, content):
    (tmp_path / 'value.json').write_bytes(content)
    with pytest.raises(UserError, match='value.json'):
        files.read_json(tmp_path / 'value.json')


def test_a_directory_in_the_place_of_a_file_is_named_and_an_absent_file_is_absent(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        files.read_json(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / 'nope.json')


def test_the_hash_is_that_of_the_bytes(tmp_path):
    content = bytes(range(256)) * 5000  # more than one block
    (tmp_path / 'blob').write_bytes(content)
    assert files.sha256(tmp_path / 'blob') == hashlib.sha256(content).hexdigest()


def test_a_second_process_is_refused_by_the_pid_of_the_first_and_a_kill_frees_the_lock(tmp_path):
    code = f'from jaxformer import files, errors; import time\nwith files.lock({str(tmp_path / ".lock")!r}):\n'
    code += '    print("held", flush=True); time.sleep(60)'
    with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b'held\n'
        with pytest.raises(UserError, match=f'pid {holder.pid}'), files.lock(tmp_path / '.lock'):
            pass
        holder.kill()
        holder.wait()
        with files.lock(tmp_path / '.lock'):
            pass


def test_someone_who_only_looks_at_a_lock_takes_it_from_nobody(tmp_path):
    path = tmp_path / '.lock'
    path.touch()
    with path.open('rb') as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(reader, fcntl.LOCK_UN)).start()
        with files.lock(path):
            taken = path.read_text()
    assert taken.startswith('pid ')
