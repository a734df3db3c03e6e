"""The files that a run leaves behind stay readable and true after a kill at any moment."""

import io
import json
import math
import os
import struct
import subprocess
import sys

import jax
import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog

from jaxformer.errors import RunError, UserError
from jaxformer.train import writer
from jaxformer.train.writer import MetricWriter, Progress, read_metrics, read_status, write_status


def events(workdir):
    """Every TensorBoard event of the directory, read from the record format (length, crc, data, crc)."""
    found = []
    for path in sorted(p for p in epath.Path(workdir).iterdir() if p.name.startswith('events.')):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack('Q', content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return found


def scalars(workdir):
    return [(e.step, v.tag, v.simple_value) for e in events(workdir) for v in e.summary.value]


def test_lines_and_events_are_there_at_once(tmp_path):
    with MetricWriter(tmp_path) as metrics:
        metrics.write(3, {'train/loss': 0.5, 'train/grad_norm': 2}, example_ids=[4, 9])
        (line,) = read_metrics(tmp_path / 'metrics.jsonl')  # before any close: a kill loses nothing
        assert scalars(tmp_path) == [(3, 'train/loss', 0.5), (3, 'train/grad_norm', 2.0)]
    assert line.pop('time') > 1e9
    assert line == {'step': 3, 'train/loss': 0.5, 'train/grad_norm': 2.0, 'example_ids': [4, 9]}


def test_not_finite_stays_valid_json_and_visible(tmp_path):
    values = {'a': math.nan, 'b': math.inf, 'c': -math.inf, 'd': 1e-30}
    with MetricWriter(tmp_path) as metrics:
        metrics.write(1, values)

    def refuse(name):
        raise AssertionError(f'{name} is not JSON')

    raw = json.loads((tmp_path / 'metrics.jsonl').read_text(), parse_constant=refuse)
    assert (raw['a'], raw['b'], raw['c']) == ('nan', 'inf', '-inf')
    (line,) = read_metrics(tmp_path / 'metrics.jsonl')
    assert math.isnan(line['a']) and (line['b'], line['c'], line['d']) == (math.inf, -math.inf, 1e-30)


def test_resume_drops_what_lies_beyond_and_no_series_meets_a_step_twice(tmp_path):
    path = tmp_path / 'metrics.jsonl'
    with MetricWriter(tmp_path) as metrics:
        for step in (5, 10, 15):
            metrics.write(step, {'train/loss': step})
        metrics.write(10, {'dev/loss': 10.5})
    with path.open('a') as file:
        file.write('{"step": 20, "train/lo')  # torn by a kill
    assert [line['step'] for line in read_metrics(path)] == [5, 10, 15, 10]
    with MetricWriter(tmp_path, step=10) as metrics:
        assert [line['step'] for line in read_metrics(path)] == [5, 10, 10]
        metrics.write(10, {'train/loss': 99.0, 'train/new': 1.0})  # the loop repeats what it does after a checkpoint
        metrics.write(10, {'dev/loss': 99.0})
        metrics.write(15, {'train/loss': 16.0})
    series = [(line['step'], line['train/loss']) for line in read_metrics(path) if 'train/loss' in line]
    assert series == [(5, 5.0), (10, 10.0), (15, 16.0)]
    assert [line['step'] for line in read_metrics(path)] == [5, 10, 10, 10, 15]
    assert read_metrics(path)[3]['train/new'] == 1.0
    purges = [e.step for e in events(tmp_path) if e.session_log.status == SessionLog.START]
    assert purges == [11]
    assert [s for s in scalars(tmp_path) if s[2] == 99.0] == []


def test_a_new_run_over_an_unsaved_one_starts_empty(tmp_path):
    with MetricWriter(tmp_path) as metrics:
        metrics.write(1, {'train/loss': 1.0})
    with MetricWriter(tmp_path, step=0) as metrics:
        assert read_metrics(tmp_path / 'metrics.jsonl') == []
        metrics.write(1, {'train/loss': 1.0})
    assert len(read_metrics(tmp_path / 'metrics.jsonl')) == 1
    assert [p for p in os.listdir(tmp_path) if p.endswith('.tmp')] == []


def test_torn_tail_is_tolerated_and_a_broken_middle_is_named(tmp_path):
    path = tmp_path / 'metrics.jsonl'
    good = '{"step": 1, "a": 1}\n'
    for tail in ('{"step": 2, "a": 12', '{"step": 2, "a": 12}', '{"st', '\0\0\0', '\0\0\n', ''):
        path.write_text(good + tail)
        assert read_metrics(path) == [{'step': 1, 'a': 1}], tail
    path.write_text(good + 'oops\n' + good)
    with pytest.raises(UserError, match=r'metrics\.jsonl: line 2 '):
        read_metrics(path)


def test_full_disk_is_one_line(tmp_path):
    with MetricWriter(tmp_path) as metrics:
        metrics._file.close()
        metrics._file = open('/dev/full', 'w')  # noqa: SIM115, PTH123
        with pytest.raises(RunError, match=r'metrics\.jsonl: .*No space left'):
            metrics.write(1, {'a': 1.0})
        metrics._file = (tmp_path / 'metrics.jsonl').open('a')
    (tmp_path / 'file').write_text('')
    with pytest.raises(RunError, match='could not be written'):
        MetricWriter(tmp_path / 'file')


def test_status_keeps_its_start_and_its_metrics(tmp_path, monkeypatch):
    assert read_status(tmp_path) is None
    monkeypatch.setattr(writer.time, 'time', lambda: 1000.0)
    write_status(tmp_path, 'running', 0, 50)
    first = read_status(tmp_path)
    assert first['metrics'] == {} and first['reason'] is None and first['started'] == first['updated'] == 1000.0
    monkeypatch.setattr(writer.time, 'time', lambda: 1060.0)
    write_status(tmp_path, 'running', 20, 50, metrics={'dev/loss': math.nan})
    write_status(tmp_path, 'failed', 30, 50, reason='loss is nan at step 30')
    status = read_status(tmp_path)
    assert (status['started'], status['updated'], status['step'], status['num_steps']) == (1000.0, 1060.0, 30, 50)
    assert (status['status'], status['reason'], status['pid']) == ('failed', 'loss is nan at step 30', os.getpid())
    assert math.isnan(status['metrics']['dev/loss'])
    with pytest.raises(ValueError, match='finished'):
        write_status(tmp_path, 'finished', 50, 50)


def test_environment_gets_one_record_per_start(tmp_path, monkeypatch):
    monkeypatch.setenv('XLA_FLAGS', '--xla_some_flag=3')
    writer.write_environment(tmp_path, {'data': 1, 'model': 1}, False)
    writer.write_environment(tmp_path, {'data': 1, 'model': 1}, True)
    first, second = json.loads((tmp_path / 'environment.json').read_text())
    assert (first['deterministic'], second['deterministic']) == (False, True)
    assert second['flags']['XLA_FLAGS'] == '--xla_some_flag=3' and second['mesh'] == {'data': 1, 'model': 1}
    assert set(second['versions']) == {
        *('python', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy', 'jaxformer')
    }
    assert second['versions']['jax'] == jax.__version__
    assert (second['backend'], second['devices']['count'], second['processes']) == ('cpu', jax.device_count(), 1)


def test_git_revision_only_of_the_checkout_that_tracks_the_package(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ['-c', 'user.name=a', '-c', 'user.email=a@b']
        subprocess.run(['git', '-C', tmp_path, *identity, *arguments], check=True, capture_output=True)

    package = tmp_path / 'package'
    package.mkdir()
    (package / '__init__.py').write_text('')
    monkeypatch.setattr(writer.jaxformer, '__file__', str(package / '__init__.py'))
    assert writer.git_revision() is None
    git('init')
    assert writer.git_revision() is None  # installed into somebody's checkout, not tracked by it
    git('add', '.')
    git('commit', '-m', 'x')
    assert not writer.git_revision()['dirty'] and len(writer.git_revision()['revision']) == 40
    (package / '__init__.py').write_text('# changed')
    assert writer.git_revision()['dirty']


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_redraws_on_a_terminal_and_prints_plain_lines_elsewhere(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(writer.time, 'monotonic', lambda: next(clock))
    terminal, plain = Terminal(), io.StringIO()
    with Progress(100, stream=terminal) as progress:
        progress.compiling(9)
        for step in (10, 20, 30):
            progress.update(step, 1.2345678, 5120.4)
    lines = terminal.getvalue().split('\r')[1:]
    assert lines.pop(0) == 'step 9/100  compiling\x1b[K'
    assert len(lines) == 3 and terminal.getvalue().count('\n') == 1 and terminal.getvalue().endswith('\n')
    assert lines[0] == 'step 10/100  loss 1.235\x1b[K'  # it held the compilation: neither a speed nor an end
    assert lines[1].startswith('step 20/100  loss 1.235  5,120 tokens/s  ETA 0:00:08')
    assert 'ETA 0:00:07' in lines[2]  # 20 steps in 2 s, 70 to go
    with Progress(6, 'labels', stream=plain, every=4) as progress:
        progress.compiling(0)
        for step in range(1, 7):
            progress.update(step, math.nan, 1.0)
    assert [line.split()[1] for line in plain.getvalue().splitlines()] == ['0/6', '1/6', '5/6', '6/6']
    assert '  1 labels/s  ' in plain.getvalue() and 'tokens' not in plain.getvalue()
    assert '\r' not in plain.getvalue() and 'loss nan' in plain.getvalue()


def test_importing_starts_no_device():
    code = 'import jaxformer.train.writer, jaxformer.checkpoint, jax._src.xla_bridge as b; assert not b._backends'
    subprocess.run([sys.executable, '-c', code], check=True)
