"""What a task does about signals, without a Slurm: its command is a function here, `scontrol` a script."""

import os
import runpy
import signal

import pytest
import standin

from jaxformer.ablate import launch, slurm_task
from jaxformer.train.signals import Preempted, stop_signals
from jaxformer.train.writer import write_status

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def task(tmp_path, monkeypatch):
    """`task(command, restarts)` → (exit status, arguments that scontrol was given)."""
    notes, scontrol = tmp_path / 'notes', tmp_path / 'bin' / 'scontrol'
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n')
    scontrol.chmod(0o755)
    variables = {
        'SLURM_JOB_ID': '9',
        'SLURM_ARRAY_JOB_ID': '7',
        'SLURM_ARRAY_TASK_ID': '2',
        launch.WORKER: '0',
        launch.PATIENCE: '9',
    }
    for name, value in {**variables, 'PATH': f'{scontrol.parent}:{os.environ["PATH"]}'}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr('sys.argv', ['pytest'])
    before = {number: signal.getsignal(number) for number in SIGNALS}
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64,)})")
    [planned] = launch.prepare(grid, tmp_path / 'grid', 1)
    planned.path.mkdir(parents=True)

    def run(command, restarts=0):
        monkeypatch.setenv('SLURM_RESTART_COUNT', str(restarts))
        monkeypatch.setattr(runpy, 'run_module', lambda *args, **kwargs: command(planned.path))
        with pytest.raises(SystemExit) as end:
            slurm_task.work(['ablate'], str(tmp_path / 'grid'), report=False)
        return end.value.code, notes.read_text().splitlines() if notes.exists() else []

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def training(number, step):
    """A command that trains until the signal comes, gets as far as `step`, and says what the command line says then."""

    def command(path):
        with stop_signals() as stop:
            stop.polled = True
            signal.raise_signal(number)
            assert stop.asked
            signal.raise_signal(number if number != signal.SIGTERM else signal.SIGCONT)  # once more: disturbs nothing
            write_status(path, 'preempted', step, 99, 'stopped')
        raise SystemExit(Preempted.exit_status)

    return command


def between_runs(number):
    def command(path):
        with pytest.raises(Preempted, match='between two runs'):
            signal.raise_signal(number)
        raise SystemExit(Preempted.exit_status)

    return command


@pytest.mark.parametrize('number', [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize('command', [lambda number: training(number, 5), between_runs])
def test_a_task_that_was_asked_to_make_room_is_queued_again(task, number, command):
    assert task(command(number)) == (143, ['requeue 7_2'])


@pytest.mark.parametrize('command', [training(signal.SIGTERM, 5), between_runs(signal.SIGTERM)])
def test_one_that_is_being_ended_is_not(task, command):
    assert task(command) == (143, [])


def test_nor_is_one_that_never_gets_a_step_further(task, capsys):
    restarts = slurm_task.IDLE_RESTARTS
    assert task(between_runs(signal.SIGUSR2), restarts) == (143, [])
    assert 'raise the time limit' in capsys.readouterr().out
    assert task(training(signal.SIGUSR2, 3), restarts) == (143, ['requeue 7_2'])


def test_a_job_of_one_task_has_a_number_of_its_own(task, monkeypatch):
    monkeypatch.delenv('SLURM_ARRAY_JOB_ID')
    assert task(training(signal.SIGUSR2, 5)) == (143, ['requeue 9'])


@pytest.mark.parametrize('status', [0, 1, 2])
def test_the_exit_status_is_that_of_the_command(task, status):
    def command(path):
        raise SystemExit(status)

    assert task(command) == (status, [])


def test_an_end_that_comes_out_as_another_error_is_one_by_the_signal_all_the_same(task, capsys):
    def command(path):
        try:
            signal.raise_signal(signal.SIGUSR2)
        except Preempted:
            raise SystemError('an error without an exception set') from None

    assert task(command) == (143, ['requeue 7_2'])
    assert 'SystemError' in capsys.readouterr().err


def test_a_grid_that_is_over_needs_no_queue(task):
    def command(path):
        write_status(path, 'done', 99, 99)
        with pytest.raises(Preempted):
            signal.raise_signal(signal.SIGUSR2)
        raise SystemExit(0)

    assert task(command) == (0, [])


def test_what_ends_between_runs_leaves_none_marked(task, tmp_path):
    def command(path):
        signal.raise_signal(signal.SIGTERM)

    assert task(command) == (143, [])
    assert {run.state for run in slurm_task._runs(str(tmp_path / 'grid'))} == {'missing'}
