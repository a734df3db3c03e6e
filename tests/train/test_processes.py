"""Several real processes train one run: one is killed, one is stopped, and the run goes on on other devices.

What happens to the run, four steps at a time: 8 devices of one process → 4 processes, of which one is killed after step
8 → 2 processes that share each matrix, of which one is sent SIGTERM → one device → 8 devices again (B38).
"""

import re
import signal
import socket
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import small

from jaxformer import main, sharding
from jaxformer.train import directory, loop, program

CHANGES = {
    **{'model.d_model': 16, 'model.num_heads': 8, 'model.d_k': 3, 'model.d_v': 5, 'model.d_ff': 24},
    **{'model.vocab_size': 24, 'data.buckets': ((9, 9),), 'train.batch_size': 8, 'eval.batch_size': 8},
    **{'optim.schedule': 'constant', 'optim.learning_rate': 0.01, 'optim.warmup_steps': 0},
    **{'optim.weight_decay': 0.1, 'optim.clip_norm': 0.5, 'optim.epsilon': 1e-4},
    **{'train.num_steps': 20, 'train.checkpoint_every': 4, 'train.keep_checkpoints': 9},
}
LEGS = {
    'eight': {'mesh.strategy': 'fsdp', 'train.num_steps': 4},
    'four': {'mesh.data': 2, 'mesh.fsdp': 2, 'train.num_steps': 999},
    'two': {'mesh.data': 1, 'mesh.model': 2, 'train.num_steps': 999},
    'one': {'train.num_steps': 16},
    'eight again': {'mesh.strategy': 'tp'},
    'begun': {'train.num_steps': 2, 'mesh.data': 1},
    'apart': {'train.num_steps': 2, 'mesh.data': 2},
}


class NoDecoder(small.NoEvaluator):
    """Takes the place of the decoder: says nothing."""

    def examples(self, params, split):
        return {}

    def totals(self, examples):
        return {}


def command(workdir, leg, *flags):
    """What a process of a leg does; those that somebody stops take their time over a step."""
    program.Decoder = NoDecoder
    directory.VISIBLE = 1.0
    if leg in ('four', 'two'):
        put = sharding.put_batch
        sharding.put_batch = lambda *args: (time.sleep(0.3), put(*args))[1]
    return main.main([*small.arguments(workdir, CHANGES | LEGS[leg]), *flags])


def free_port():
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


def start(workdir, leg, number, *flags):
    """The processes of a leg."""
    at = f'--coordinator=127.0.0.1:{free_port()}'
    return [
        small.process(__file__, str(workdir), leg, at, f'--processes={number}', f'--process={i}', *flags)
        for i in range(number)
    ]


def ends(processes, seconds=120):
    """(exit status, last line on standard error) of each; none may be left after some seconds."""
    until = time.monotonic() + seconds
    try:
        said = [process.communicate(timeout=max(1, until - time.monotonic()))[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    lines = [(text.strip().splitlines() or [''])[-1] for text in said]
    return [(process.returncode, line) for process, line in zip(processes, lines, strict=True)]


def wait_for(path, processes, seconds=120):
    until = time.monotonic() + seconds
    while not path.exists():
        dead = [process for process in processes if process.poll() is not None]
        assert not dead and time.monotonic() < until, dead and dead[0].communicate()[1][-2000:]
        time.sleep(0.05)


@pytest.fixture(scope='module')
def travelled(tmp_path_factory):
    """(the run's directory, how the four and the two processes ended, the numbers of a run that stayed at home)."""
    root = tmp_path_factory.mktemp('processes')
    run, home = root / 'run', root / 'home'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, 'Decoder', NoDecoder)
        straight = loop.train(small.make(CHANGES), home)
        assert small.run_process(__file__, str(run), 'eight', devices=8).returncode == 0
        four = start(run, 'four', 4)
        wait_for(run / 'checkpoints' / '8', four)
        four[2].kill()
        killed = time.monotonic()
        four_ended = ends(four)
        seconds = time.monotonic() - killed
        failed = small.status(run)
        two = start(run, 'two', 2)
        wait_for(run / 'checkpoints' / '12', two)
        two[1].send_signal(signal.SIGTERM)
        two_ended = ends(two)
        stopped = small.status(run)
        loop.train(small.make(CHANGES | LEGS['one']), run)
    assert small.run_process(__file__, str(run), 'eight again', devices=8).returncode == 0
    return {
        **{'run': run, 'home': home, 'straight': straight, 'four': four_ended, 'seconds': seconds, 'two': two_ended},
        **{'failed': failed, 'stopped': stopped},
    }


def test_when_one_is_killed_the_others_name_it_and_end(travelled):
    assert travelled['seconds'] < 60
    assert [status for status, _ in travelled['four']] == [1, 1, -signal.SIGKILL, 1]
    for number in (0, 1, 3):
        line = travelled['four'][number][1]
        assert line.startswith('jaxformer: process 2 of 4 has gone or is out of reach; start all processes again'), line
    assert travelled['failed']['status'] == 'failed'
    assert 'process 2 of 4 has gone' in travelled['failed']['reason']


def test_a_signal_to_one_saves_and_ends_all_at_the_same_step(travelled):
    steps = [re.search(r'stopped by a signal; step (\d+) is saved', line).group(1) for _, line in travelled['two']]
    assert [status for status, _ in travelled['two']] == [143, 143] and len(set(steps)) == 1
    assert travelled['stopped']['status'] == 'preempted' and str(travelled['stopped']['step']) == steps[0]
    assert int(steps[0]) in small.checkpoints(travelled['run']) and 12 <= int(steps[0]) < 16


def test_examples_and_numbers_are_those_of_a_run_that_stayed_at_home(travelled):
    run, home = travelled['run'], travelled['home']
    assert small.lines(run, 'example_ids') == small.lines(home, 'example_ids')
    found, expected = small.lines(run, 'train/loss'), small.lines(home, 'train/loss')
    assert sorted(found) == list(range(1, 21))
    np.testing.assert_allclose([found[s] for s in sorted(found)], [expected[s] for s in sorted(found)], rtol=1e-5)
    assert small.status(run)['status'] == 'done'
    assert small.lines(run, 'dev/loss')[20] == pytest.approx(travelled['straight']['dev/loss'], rel=1e-5)
    environment = small.files.read_json(small.epath.Path(run) / 'environment.json')
    assert [(each['processes'], each['devices']['count']) for each in environment] == [
        (1, 8), (4, 4), (2, 2), (1, jax.device_count()), (1, 8),
    ]  # fmt: skip


def test_two_begin_with_the_parameters_of_another_run_and_are_done_when_asked_again(travelled, tmp_path):
    flags = [f'--config.train.start_from={travelled["home"]}', '--config.train.ema_decay=0.9', '--config.mesh.fsdp=2']
    begun = ends(start(tmp_path / 'run', 'begun', 2, *flags))
    assert [status for status, _ in begun] == [0, 0], begun
    first = small.lines(tmp_path / 'run', 'train/loss')[1]
    assert first < small.lines(travelled['home'], 'train/loss')[1] - 0.1  # not afresh
    before = small.snapshot(tmp_path / 'run')
    assert [status for status, _ in ends(start(tmp_path / 'run', 'begun', 2, *flags))] == [0, 0]
    assert small.snapshot(tmp_path / 'run') == before


def test_a_directory_that_is_another_one_to_a_process_is_refused_before_anything_is_trained(tmp_path):
    at = f'--coordinator=127.0.0.1:{free_port()}'
    both = [
        small.process(__file__, str(tmp_path / name), 'apart', at, '--processes=2', f'--process={i}')
        for i, name in enumerate(('run', 'elsewhere'))
    ]
    (first, line), (second, own) = ends(both)
    assert (first, second) == (2, 2)
    assert line.endswith('elsewhere: not the directory of process 0; give one that all share'), line
    assert own.startswith(f'jaxformer: --workdir={tmp_path}/elsewhere: not the directory'), own
    assert not (tmp_path / 'run').exists() and not (tmp_path / 'elsewhere').exists()


@pytest.mark.parametrize(
    ('flags', 'text'),
    [
        (
            '--config.optim.beta2=0.5',
            'process 1 on .*: config.optim.beta2 is 0.5 there and 0.98 on process 0; start all',
        ),
    ],
)
def test_who_was_started_otherwise_is_named(tmp_path, flags, text):
    at = f'--coordinator=127.0.0.1:{free_port()}'
    both = [
        small.process(__file__, str(tmp_path / 'run'), 'one', at, '--processes=2', f'--process={i}', *more)
        for i, more in enumerate([[], [flags]])
    ]
    for status, line in ends(both):
        assert status == 2 and re.search(text, line), line
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    ('flags', 'text'),
    [
        (['--coordinator=host'], '--coordinator=host: not HOST:PORT of process 0'),
        (['--coordinator=host:1'], '--processes=0 --process=-1: give the number of processes'),
        (['--coordinator=host:1', '--processes=2', '--process=2'], '--processes=2 --process=2: give the number'),
        (['--processes=2', '--process=0'], '--processes=2 --process=0: need --coordinator=HOST:PORT'),
    ],
)
def test_what_cannot_be_meant_is_refused(flags, text, tmp_path, capsys):
    assert main.main([*small.arguments(tmp_path / 'run'), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(text, line), line


def test_where_nothing_can_be_found_out_the_flags_are_named(tmp_path):
    alone = small.process(__file__, str(tmp_path / 'run'), 'one', '--coordinator=auto')
    ((status, line),) = ends([alone])
    assert status == 2 and re.search('--coordinator=auto: .*; give HOST:PORT of process 0, --processes=N', line), line


def test_an_address_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(('0.0.0.0', 0))
        taken.listen()
        at = f'--coordinator=127.0.0.1:{taken.getsockname()[1]}'
        alone = small.process(__file__, str(tmp_path / 'run'), 'one', at, '--processes=2', '--process=0')
        ((status, line),) = ends([alone])
    assert status == 2 and line == f'jaxformer: {at}: Address already in use; choose another port'


if __name__ == '__main__':
    sys.exit(command(Path(sys.argv[1]), *sys.argv[2:]))
