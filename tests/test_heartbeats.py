"""Real processes that wait for one another while one of them hangs, is killed, or stops by itself."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxformer import heartbeats, processes
from jaxformer.errors import UserError

ROOT = Path(__file__).parents[1]
REMEDY = 'start all processes again with the same command: they go on from the newest checkpoint'


def wait(address, process):
    """What each process does: it waits for the others for ever. Process 1 gives up where it is told to."""
    heartbeats.BEAT, heartbeats.SILENT, heartbeats.GRACE = 0.5, 4.0, 1.0
    with processes.joined(address, 2, int(process)):
        assert processes.on_first(lambda: [1, {'a': 'b'}]) == [1, {'a': 'b'}]
        with processes.last_words(lambda error: print('last words:', type(error).__name__, flush=True)):
            print('met', flush=True)
            for line in sys.stdin:
                raise UserError(line)


@pytest.fixture
def pair():
    """Two processes that have met."""
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        port = found.getsockname()[1]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
    command = [sys.executable, __file__, f'127.0.0.1:{port}']
    both = [subprocess.Popen([*command, str(number)], env=env, **pipes) for number in (0, 1)]
    try:
        assert [process.stdout.readline() for process in both] == ['met\n', 'met\n'], [p.stderr.read() for p in both]
        yield both
    finally:
        for process in both:
            process.kill()
            process.communicate()


def end(process, seconds):
    """(exit status, what it says on standard output, its last line on standard error), within some seconds."""
    begun = time.monotonic()
    while process.poll() is None:
        assert time.monotonic() - begun < seconds, 'still there'
        time.sleep(0.05)
    return process.returncode, process.stdout.read(), process.stderr.read().strip().splitlines()[-1]


@pytest.mark.parametrize('other', [0, 1])
def test_one_that_hangs_is_named_by_the_other(pair, other):
    pair[other].send_signal(signal.SIGSTOP)
    status, out, line = end(pair[1 - other], 12)
    assert (status, out) == (1, 'last words: LostError\n')
    assert line == f'jaxformer: process {other} of 2 gave no sign of life for 4 seconds; {REMEDY}'


def test_where_process_0_is_killed_the_other_says_so(pair):
    pair[0].kill()
    status, _, line = end(pair[1], 12)
    assert status == 1 and line == f'jaxformer: process 0 has gone or is out of reach; {REMEDY}'


@pytest.mark.parametrize('number', [0, 1])
def test_why_one_stopped_is_known_to_the_other(pair, number):
    pair[number].stdin.write('there is no such thing\n')
    pair[number].stdin.flush()
    assert end(pair[number], 12)[0] == 2
    status, _, line = end(pair[1 - number], 12)
    assert status == 1
    assert line == f'jaxformer: process {number} on {socket.gethostname()} stopped: there is no such thing; {REMEDY}'


def test_alone_nothing_is_asked_of_anybody():
    with processes.joined('none'), processes.last_words(pytest.fail):
        assert processes.number() == 1 and processes.index() == 0
        assert processes.on_first(lambda: 'here') == 'here'
        error = RuntimeError('UNAVAILABLE: of another kind')
        assert processes.explained(error) is error


if __name__ == '__main__':
    try:
        wait(*sys.argv[1:])
    except UserError as error:
        print(error, file=sys.stderr)
        processes.leave(2)
