"""Claims, held and lost by real processes: killed, stopped, racing, and on a machine that only the file names."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxformer import claims
from jaxformer.errors import RunError, UserError

ROOT = Path(__file__).parents[1]

HOLDER = """
import sys, time
from jaxformer import claims
with claims.hold(sys.argv[1], stale=1.0, heartbeat=0.1) as claim:
    print('held', flush=True)
    sys.stdin.readline()
    claim.check()
    open(sys.argv[1] + '/written', 'w').close()
"""

RACER = """
import os, sys, time
from jaxformer import claims
from jaxformer.errors import UserError
directory, refused = sys.argv[1], sys.argv[2:] == ['refused']
print('ready', flush=True)
sys.stdin.readline()
wins, until = 0, time.time() + 3
while time.time() < until:
    try:
        with claims.hold(directory) as claim:
            file = os.open(directory + '/alone', os.O_CREAT | os.O_EXCL)  # fails where two hold the claim
            os.close(file)
            claim.check()
            os.unlink(directory + '/alone')
            wins += 1
            if refused:
                raise UserError('a mistake')
    except UserError:  # another one's claim, or the mistake
        continue
print(wins)
"""

EACH = """
import sys
from jaxformer import claims
print('ready', flush=True)
for line in sys.stdin:
    try:
        with claims.hold(line.strip()):
            print('won', flush=True)
            sys.stdin.readline()
    except claims.BusyError as error:
        print('busy', flush=True)
        sys.stdin.readline()
"""


@contextlib.contextmanager
def python(code, *arguments, before=()):
    env = {**os.environ, 'PYTHONPATH': str(ROOT)}
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    process = subprocess.Popen([*before, sys.executable, '-c', code, *map(str, arguments)], env=env, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def holding(directory):
    with python(HOLDER, directory) as process:
        assert process.stdout.readline() == 'held\n', process.stderr.read()
        yield process


def current(directory):
    return max((directory / '.claim').glob('*.json'), key=lambda path: int(path.stem))


def elsewhere(directory):
    """Makes the claim one of another machine, as far as anyone can see; its age stays."""
    path = current(directory)
    times = path.stat()
    path.write_text(json.dumps({**json.loads(path.read_text()), 'node': 'another', 'host': 'far'}))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_one_holder_at_a_time_who_is_named_and_gives_it_back(tmp_path):
    assert claims.holder(tmp_path) is None and not list(tmp_path.iterdir())  # looking leaves nothing
    with holding(tmp_path) as process:
        found = claims.holder(tmp_path)
        assert found and found.pid == process.pid and found.age < 2
        with (
            pytest.raises(claims.BusyError, match=f'another live process .pid {process.pid} on '),
            claims.hold(tmp_path),
        ):
            pass
        process.stdin.write('\n')
        process.stdin.flush()
        assert process.wait(20) == 0 and (tmp_path / 'written').exists()
    assert claims.holder(tmp_path) is None
    for _ in range(3):
        with claims.hold(tmp_path) as claim:
            claim.check()
            assert claims.holder(tmp_path).pid == os.getpid()
            with pytest.raises(UserError), claims.hold(tmp_path):
                pass
        assert claims.holder(tmp_path) is None
    assert len(list((tmp_path / '.claim').iterdir())) <= 4  # and litter does not grow


def test_a_killed_holder_is_followed_at_once(tmp_path):
    with holding(tmp_path) as process:
        process.kill()  # nobody waits for it yet: it is there still, as one that ended
        deadline = time.monotonic() + 5
        while claims.holder(tmp_path):
            assert time.monotonic() < deadline
        with claims.hold(tmp_path) as claim:
            claim.check()


def test_a_pid_that_another_process_has_now_holds_nothing(tmp_path):
    with holding(tmp_path):
        path = current(tmp_path)
        path.write_text(json.dumps({**json.loads(path.read_text()), 'started': '17'}))
        assert claims.holder(tmp_path) is None


def test_a_holder_elsewhere_is_followed_after_stale_seconds_and_not_before(tmp_path):
    with claims.hold(tmp_path, heartbeat=99):
        elsewhere(tmp_path)
        begun = current(tmp_path).stat().st_mtime
        while True:
            try:
                with claims.hold(tmp_path, stale=1.5):
                    waited = claims.clock(tmp_path) - begun
                break
            except claims.BusyError as error:
                assert 'on far' in str(error)
                time.sleep(0.02)
        assert 1.5 <= waited < 1.5 + 5
    with claims.hold(tmp_path, heartbeat=0.05):  # one that lives is not, however long it takes
        elsewhere(tmp_path)
        for _ in range(25):
            time.sleep(0.1)
            with pytest.raises(claims.BusyError), claims.hold(tmp_path, stale=2.0):
                pass


def test_a_pid_of_another_container_means_nothing_here(tmp_path):
    """There it is 1 or 2, which live here as well; its heartbeat is what counts, and ends with it."""
    apart = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc']
    if os.getuid() or subprocess.run([*apart, 'true'], capture_output=True).returncode:
        pytest.skip('needs the right to make a namespace of processes')
    with python(HOLDER, tmp_path, before=apart) as process:
        assert process.stdout.readline() == 'held\n', process.stderr.read()
        assert claims.holder(tmp_path).pid < 9
        time.sleep(2.3)
        with pytest.raises(claims.BusyError), claims.hold(tmp_path, stale=2.0):  # it is touched ten times a second
            pass
        process.kill()
        process.wait()
        killed = time.monotonic()
        while True:
            try:
                with claims.hold(tmp_path, stale=2.0):
                    break
            except claims.BusyError:
                time.sleep(0.02)
        assert 0.5 < time.monotonic() - killed < 2.0 + 5


def test_clocks_that_differ_do_no_harm(tmp_path, monkeypatch):
    with claims.hold(tmp_path):
        elsewhere(tmp_path)
        monkeypatch.setattr(claims.time, 'time', lambda: 0.0)
        with pytest.raises(claims.BusyError), claims.hold(tmp_path):
            pass
        monkeypatch.setattr(claims.time, 'time', lambda: 1e11)
        with pytest.raises(claims.BusyError), claims.hold(tmp_path):
            pass
        assert claims.holder(tmp_path, now=claims.clock(tmp_path)) and not claims.holder(tmp_path)


def test_a_suspended_holder_whose_claim_was_taken_over_notices_and_writes_nothing(tmp_path):
    with holding(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        with (
            pytest.raises(claims.BusyError),
            claims.hold(tmp_path, stale=0.0),
        ):  # on this machine one sees that it lives
            pass
        elsewhere(tmp_path)
        time.sleep(1.1)
        with claims.hold(tmp_path, stale=1.0) as claim:
            process.send_signal(signal.SIGCONT)
            process.stdin.write('\n')
            process.stdin.flush()
            assert process.wait(20) == 1
            assert 'LostError' in process.stderr.read() and not (tmp_path / 'written').exists()
            claim.check()  # and the one that left has taken nothing along
            assert claims.holder(tmp_path).pid == os.getpid()


def test_a_claim_that_was_removed_is_lost_and_not_given_back_for_another_one(tmp_path):
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    with first, second:
        claim = first.enter_context(claims.hold(tmp_path))
        shutil.rmtree(tmp_path / '.claim')
        with pytest.raises(RunError, match='took this directory over'):
            claim.check()
        other = second.enter_context(claims.hold(tmp_path))  # of the same generation
        with pytest.raises(claims.LostError):
            claim.check()
        first.close()
        other.check()
        assert claims.holder(tmp_path)


def test_of_twenty_that_race_for_one_claim_exactly_one_wins(tmp_path):
    """Again and again: for a claim that nobody has, and for one that a killed process had."""
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(python(EACH)) for _ in range(20)]
        assert {racer.stdout.readline() for racer in racers} == {'ready\n'}
        for number in range(12):
            directory = tmp_path / str(number)
            directory.mkdir()
            if number % 2:
                with holding(directory):
                    pass
            for racer in racers:
                racer.stdin.write(f'{directory}\n')
                racer.stdin.flush()
            results = [racer.stdout.readline() for racer in racers]
            assert results.count('won\n') == 1 and results.count('busy\n') == 19, results
            assert claims.holder(directory).pid == racers[results.index('won\n')].pid
            for racer in racers:
                racer.stdin.write('\n')
                racer.stdin.flush()


def test_who_is_slow_between_looking_and_making_finds_out(tmp_path, monkeypatch):
    """Three others came and went in that moment, and a fourth is there: the first generation is free to make again."""
    look, held = claims._current, contextlib.ExitStack()

    def slow(*args):
        monkeypatch.setattr(claims, '_current', look)
        seen = look(*args)
        (aside,) = (tmp_path / '.claim').glob('.*.tmp')
        kept = aside.rename(tmp_path / 'kept')  # as if the others had not swept it away, which alone would tell
        for _ in range(3):
            with claims.hold(tmp_path):
                pass
        fourth = held.enter_context(claims.hold(tmp_path))
        assert not (tmp_path / '.claim' / '1.json').exists()
        held.callback(fourth.check)
        kept.rename(aside)
        return seen

    with held:
        monkeypatch.setattr(claims, '_current', slow)
        with pytest.raises(claims.BusyError), claims.hold(tmp_path):
            pass


@pytest.mark.parametrize('how', [(), ('refused',)])
def test_many_that_take_and_give_back_are_never_two(tmp_path, how):
    with contextlib.ExitStack() as stack:
        racers = [stack.enter_context(python(RACER, tmp_path, *how)) for _ in range(6)]
        assert {racer.stdout.readline() for racer in racers} == {'ready\n'}
        for racer in racers:
            racer.stdin.write('\n')
            racer.stdin.flush()
        results = [racer.communicate(timeout=60) for racer in racers]
    assert [error for _, error in results if error] == []
    assert sum(int(wins) for wins, _ in results) > 20


def refuse(directory):
    with pytest.raises(UserError, match='a mistake'), claims.hold(directory):
        raise UserError('a mistake')


def test_a_mistake_takes_the_first_claim_with_it_and_gives_back_a_later_one(tmp_path):
    refuse(tmp_path)
    assert not list(tmp_path.iterdir())
    with claims.hold(tmp_path) as claim:
        claim.check()
        with pytest.raises(claims.BusyError), claims.hold(tmp_path):
            pass
        claim.check()  # who is refused for it takes nothing along
    refuse(tmp_path)
    assert current(tmp_path).name == '2.json' and claims.holder(tmp_path) is None


def test_a_run_that_fails_keeps_its_claim_to_be_read_about(tmp_path):
    with pytest.raises(RunError), claims.hold(tmp_path):
        raise RunError('a full disk')
    assert current(tmp_path).name == '1.json' and claims.holder(tmp_path) is None


def test_what_cannot_be_taken_along_is_given_back(tmp_path, monkeypatch):
    """As with an open file on some file servers; the next one takes it, and sweeps what a killed process left."""

    def refuse_directories(path, target):
        assert path.name == '.claim'
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(claims.pathlib.Path, 'rename', refuse_directories)
        refuse(tmp_path)
    assert current(tmp_path).name == '1.json' and claims.holder(tmp_path) is None
    (tmp_path / '.claim-0').mkdir()
    with claims.hold(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ['.claim']


def test_a_directory_that_a_mistake_took_along_is_made_again(tmp_path):
    with claims.hold(tmp_path / 'run'):
        assert current(tmp_path / 'run').name == '1.json'


def test_a_claim_that_leads_nowhere_is_an_error(tmp_path):
    (tmp_path / '.claim').symlink_to(tmp_path / 'nowhere')
    with pytest.raises(FileExistsError), claims.hold(tmp_path):
        pass


@pytest.mark.parametrize('links', [True, False])
def test_who_is_slow_while_a_mistake_takes_its_claim_along_looks_again(tmp_path, monkeypatch, links):
    look, held = claims._current, contextlib.ExitStack()
    if not links:
        monkeypatch.setattr(claims.os, 'link', refuse_links)

    def slow(*args):
        monkeypatch.setattr(claims, '_current', look)
        seen = look(*args)
        refuse(tmp_path)
        held.enter_context(claims.hold(tmp_path))
        return seen

    def slow_again(*args):
        monkeypatch.setattr(claims, '_current', look)
        seen = look(*args)
        refuse(tmp_path)
        return seen

    with held:
        monkeypatch.setattr(claims, '_current', slow)
        with pytest.raises(claims.BusyError), claims.hold(tmp_path):
            pass
    shutil.rmtree(tmp_path / '.claim')
    monkeypatch.setattr(claims, '_current', slow_again)
    with claims.hold(tmp_path) as claim:
        claim.check()


def test_litter_and_damage_hold_nobody_back_for_long(tmp_path):
    (tmp_path / '.lock').write_text('pid 1')  # of an earlier version
    place = tmp_path / '.claim'
    place.mkdir()
    (place / '.0123.tmp').write_text('of a killed process')
    (place / '4.json').write_text('')  # a machine that went down may lose what was in it
    with pytest.raises(claims.BusyError, match='an unknown host'), claims.hold(tmp_path):
        pass
    os.utime(place / '4.json', (1e9, 1e9))
    with claims.hold(tmp_path):
        assert current(tmp_path).name == '5.json' and not list(place.glob('.*'))


def refuse_links(*args):
    raise PermissionError(1, 'Operation not permitted')


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    monkeypatch.setattr(claims.os, 'link', refuse_links)
    with claims.hold(tmp_path) as claim:
        claim.check()
        with pytest.raises(claims.BusyError), claims.hold(tmp_path):
            pass


def test_buckets_have_no_claims():
    with claims.hold('gs://bucket/run') as claim:
        claim.check()
    assert claims.holder('gs://bucket/run') is None
