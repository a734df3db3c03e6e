"""The Slurm launcher on a real Slurm, which this file starts (local_slurm.py) and stops again.

Two grids are under way all the time: one is stopped by hand, one comes to its time limit; a grid of eight runs beside
them. As long as a file `slow` lies beside its grid file, a run waits before each line of metrics, so that there is time
to do something to it however fast or busy the machine is.
"""

import itertools
import json
import re
import subprocess
import sys
import time

import local_slurm
import numpy as np
import pytest

from jaxformer.ablate import ledger, plan, slurm
from jaxformer.errors import UserError
from jaxformer.main import main
from jaxformer.train import loop

STEPS = 700
GRID = '''"""Runs that take their time.

Question: do they come through?
"""
import os
import time
from pathlib import Path

from configs import tiny
from jaxformer.ablate.grid import product
from jaxformer.train import writer

SLOW = Path(__file__).with_name('slow')
write = writer.MetricWriter.write


def paced(self, step, *args, **kwargs):
    if SLOW.exists():
        time.sleep({pause} if step < 100 else 1)
    write(self, step, *args, **kwargs)


if 'SUBMITIT_EXECUTOR' in os.environ:  # in a task, not where the grid is looked at
    writer.MetricWriter.write = paced


def get_config():
    config = tiny.get_config()
    config.model.d_model = 12
    config.model.d_ff = 10
    config.model.num_layers = 1
    config.train.num_steps = {steps}
    config.train.batch_size = 6
    config.train.log_every = 1
    config.train.checkpoint_every = {every}
    config.train.keep_checkpoints = 9
    config.eval.every = 0
    config.eval.max_decode_length = 7
    config.data.num_examples = 53
    config.data.buckets = ((9, 9),)
    return config


def grid():
    return product({cells})
'''


class Grid:
    """A grid file, its directory, and its job."""

    def __init__(self, directory, cells, steps, every=10_000, pause=0.1):
        self.file, self.workdir, self.slow = (directory / name for name in ('paced.py', 'grid', 'slow'))
        self.steps = steps
        self.file.write_text(
            GRID.replace('{cells}', cells)
            .replace('{steps}', f'{steps}')
            .replace('{every}', f'{every}')
            .replace('{pause}', f'{pause}')
        )
        self.slow.touch()

    def command(self, options, *more):
        flags = [f'--grid={self.file}', f'--workdir={self.workdir}', '--launcher=slurm', f'--slurm={options}']
        return main(['ablate', *flags, *more])

    @property
    def jobs(self):
        return [entry['job'] for entry in json.loads((self.workdir / 'slurm' / 'jobs.json').read_text())]

    @property
    def log(self):
        """Of the first task, where there are several."""
        return next(iter(sorted((self.workdir / 'slurm').glob('*_log.out'))), None)

    @property
    def run(self):
        """The directory of the first task's run, in a grid of one cell."""
        return next(self.workdir.glob('cells/*/seed-0'))

    def lines(self):
        """Of its metrics, about the training."""
        found = list(self.workdir.glob('cells/*/seed-0/metrics.jsonl'))
        rows = found[0].read_bytes().split(b'\n')[:-1] if found else []
        return [line for line in map(json.loads, rows) if 'train/loss' in line]

    def running(self):
        """The processes that train now."""
        found = [json.loads(path.read_text()) for path in self.workdir.glob('cells/*/*/status.json')]
        return {status['pid'] for status in found if status['status'] == 'running'}

    def last_step(self):
        return max((line['step'] for line in self.lines()), default=0)

    def restarts(self):
        """The numbers that the task wrote to its log as it began."""
        return [int(number) for number in re.findall(r'^restart (\d+): jaxformer ablate ', self.log.read_text(), re.M)]

    def is_over(self):
        """Not in the queue, and not on its way back into it either."""
        for pause in (3, 0):
            if set(self.jobs) & slurm.queue().keys():
                return False
            time.sleep(pause)
        return True


def until(happened, seconds=300):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, happened
        time.sleep(0.05)


def do(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope='module')
def cluster():
    try:
        with local_slurm.running() as directory:
            yield directory
    except local_slurm.UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope='module')
def by_hand(cluster, tmp_path_factory):
    """An array of two runs, without a time limit."""
    grid = Grid(tmp_path_factory.mktemp('hand'), "{'model.d_k': (4,)}", STEPS)
    options = 'wait=false,mem_gb=0.5,cpus_per_task=2,sbatch.comment=by hand, not by clock'
    assert grid.command(options, '--seeds=2') == 0
    return grid


@pytest.fixture(scope='module')
def by_clock(cluster, tmp_path_factory):
    """A run that may take a minute; Slurm asks twice a minute who is that near to the end."""
    grid = Grid(tmp_path_factory.mktemp('clock'), "{'model.d_k': (4,)}", STEPS)
    assert grid.command('wait=false,timeout_min=1,signal_s=55') == 0
    return grid


@pytest.fixture(scope='module')
def straight(cluster, tmp_path_factory):
    """(final metrics, losses of the steps) of the same run in this process, in one go."""
    directory = tmp_path_factory.mktemp('straight')
    grid = Grid(directory, "{'model.d_k': (4,)}", STEPS)
    grid.slow.unlink()
    planned = plan.resolve(plan.read(grid.file), count=lambda cfg: None)
    metrics = loop.train(planned.cells[0].config, ledger.run_dir(grid.workdir, 'straight', 0))
    return metrics, [line['train/loss'] for line in grid.lines()]


def assert_went_on_in_place(grid, straight, restarts, runs=1):
    """One directory, one log, one series of metrics, and the numbers of a run that nothing happened to."""
    assert sorted(path.name for path in grid.workdir.glob('cells/*/*')) == [f'seed-{seed}' for seed in range(runs)]
    assert len([*(grid.workdir / 'slurm').glob('*_log.out')]) == runs
    assert grid.restarts() == list(range(restarts + 1))
    lines = grid.lines()
    assert [line['step'] for line in lines] == list(range(1, STEPS + 1))
    # Slurm waits for seconds before it starts a task again, and nothing that was saved is done again after that.
    pauses = [a['step'] for a, b in itertools.pairwise(lines) if b['time'] - a['time'] > 4]
    assert sorted(int(path.name) for path in (grid.run / 'checkpoints').iterdir()) == [*pauses, STEPS]
    # On a machine that is busy a task can be put back before its first step: then there was nothing to save.
    early = grid.log.read_text().count('before the first step')
    assert len(pauses) == restarts - early and restarts > early
    assert restarts + 1 - early <= len(json.loads((grid.run / 'environment.json').read_text())) <= restarts + 1
    metrics, losses = straight
    np.testing.assert_allclose([line['train/loss'] for line in lines], losses, rtol=1e-5)
    status = json.loads((grid.run / 'status.json').read_text())
    assert status['status'] == 'done'
    assert status['metrics'] == pytest.approx(metrics, rel=1e-5)


def test_an_array_does_a_grid_and_outlives_a_task(by_hand, by_clock, tmp_path, capsys):
    grid = Grid(tmp_path, "{'model.d_k': (4, 6), 'optim.learning_rate': (3e-3, 1e-3)}", 40, pause=2)
    options = ('partition=debug,account=nobody,parallel=7', '--seeds=2', '--workers=3')
    assert grid.command(f'{options[0]},wait=false', *options[1:]) == 0
    until(lambda: len(grid.running()) == 3)
    do('scancel', '--signal=KILL', f'{grid.jobs[0]}_1')
    grid.slow.unlink()
    assert grid.command(*options) == 0  # the same command waits for what it submitted
    out = capsys.readouterr().out
    assert f'Job {grid.jobs[0]} of this grid is in the queue already' in out
    assert '8 runs: 8 done' in out
    assert len(grid.jobs) == 1
    assert re.search('JobState=(FAILED|CANCELLED)', do('scontrol', 'show', 'job', f'{grid.jobs[0]}_1'))
    assert len([*(grid.workdir / 'slurm').glob('*_log.out')]) == 3
    runs = [*grid.workdir.glob('cells/*/seed-*')]
    assert len(runs) == 8
    starts = [len(json.loads((run / 'environment.json').read_text())) for run in runs]
    assert set(starts) == {1, 2}  # those of the killed task were taken up again
    for run in runs:
        lines = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
        assert [line['step'] for line in lines if 'train/loss' in line] == list(range(1, 41))
    assert (grid.workdir / 'report.html').exists()
    assert grid.command(*options) == 0
    assert 'Nothing is left to run' in capsys.readouterr().out
    assert len(grid.jobs) == 1


def test_a_time_limit_saves_and_the_task_goes_on_in_place(by_clock, straight):
    until(lambda: re.search(r'step \d+ is saved', by_clock.log.read_text()))  # not stopped before the first one
    by_clock.slow.unlink()
    until(by_clock.is_over)
    assert_went_on_in_place(by_clock, straight, by_clock.restarts()[-1])  # 1, or more on a machine that is busy


def test_signals_and_requeues_go_on_in_place(by_hand, straight):
    """The script of a job runs three times, with the same index in the array and a count of restarts."""
    task = f'{by_hand.jobs[0]}_0'
    until(lambda: by_hand.last_step() > 2)
    do('scancel', '--signal=USR2', task)
    until(lambda: by_hand.restarts() == [0, 1])
    reached = by_hand.last_step()
    until(lambda: by_hand.last_step() > reached + 2)
    do('scontrol', 'requeue', task)
    until(lambda: by_hand.restarts() == [0, 1, 2])
    by_hand.slow.unlink()
    until(by_hand.is_over)
    assert 'before the first step' not in by_hand.log.read_text()
    assert_went_on_in_place(by_hand, straight, restarts=2, runs=2)
    shown = do('scontrol', 'show', 'job', task)
    expected = {'JobState=COMPLETED', 'ArrayTaskId=0', 'Restarts=2', 'CPUs/Task=2', 'MinMemoryNode=512M'}
    assert expected <= set(shown.split())
    assert 'Comment=by hand, not by clock' in shown
    assert 'Restarts=0' in do('scontrol', 'show', 'job', f'{by_hand.jobs[0]}_1')  # nobody told it anything
    report = by_hand.workdir / 'report.md'  # nobody waited who would have written it
    assert report.stat().st_mtime >= (by_hand.run / 'status.json').stat().st_mtime


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ('partiton=gpu', r'--slurm=partiton=gpu: no such option; name=value,… of partition, .*sbatch\.NAME'),
        ('wait', '--slurm=wait: no such option'),
        ('timeout_min=soon', '--slurm=timeout_min=soon: must be an integer'),
        ('mem_gb=0', '--slurm=mem_gb=0: must be more than 0'),
        ('mem_gb=1e400', '--slurm=mem_gb=1e400: must be more than 0, and finite'),
        ('sbatch.=3', '--slurm=sbatch.=3: no such option'),
        ('wait=perhaps', '--slurm=wait=perhaps: must be true or false'),
    ],
)
def test_an_option_that_cannot_be_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        slurm.parse(options)


def test_values_of_options_may_have_commas():
    parameters, wait = slurm.parse('exclude=n[1,3],n7,qos=high,sbatch.mail-type=END,FAIL,mem_gb=1.5,wait=false')
    assert (parameters['exclude'], parameters['qos'], parameters['mem'], wait) == ('n[1,3],n7', 'high', '1536M', False)
    assert parameters['additional_parameters'] == {'mail-type': 'END,FAIL'}
    assert slurm.parse('')[1] is True


def test_what_is_missing_is_named(cluster, tmp_path, monkeypatch, capsys):
    grid = Grid(tmp_path, "{'model.d_k': (4,)}", 1)
    assert grid.command('partition=nowhere') == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r'jaxformer: .* did not take the job \(.*partition.*\)\n', error)
    assert not [*(grid.workdir / 'slurm').iterdir()]
    monkeypatch.setitem(sys.modules, 'submitit', None)
    assert grid.command('') == 2
    assert 'pip install submitit' in capsys.readouterr().err
    monkeypatch.setenv('PATH', str(tmp_path))
    assert grid.command('') == 2
    assert 'no sbatch here' in capsys.readouterr().err


def test_little_memory_is_not_all_of_it():
    assert slurm.parse('mem_gb=0.0001')[0]['mem'] == '1M'  # 0 means the whole node to Slurm
