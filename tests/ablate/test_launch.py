import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import standin

from jaxformer import claims, files
from jaxformer.ablate import launch, ledger, plan
from jaxformer.errors import RunError, UserError
from jaxformer.train.signals import Preempted

TWO_BY_THREE = "product({'model.num_heads': (8, 4), 'model.d_k': (64, 16, 24)})"


def snapshot(workdir):
    """(mtime, hash) of every file of the finished runs."""
    done = [path.parent for path in Path(workdir).glob('cells/*/*/status.json') if '"done"' in path.read_text()]
    files_of = [path for run in done for path in run.rglob('*') if path.is_file()]
    return {path: (path.stat().st_mtime_ns, files.sha256(path)) for path in files_of}


def run_quietly(grid, workdir, seeds, train, **options):
    lines = []
    return launch.run(grid, workdir, seeds, train, say=lines.append, poll=0.05, **options), lines


def test_cells_of_the_first_seed_come_first_and_a_rerun_does_nothing(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    train = standin.Standin()
    outcome, lines = run_quietly(grid, tmp_path / 'grid', 2, train)
    assert train.started == [(64, 0, 0), (16, 0, 0), (64, 1, 0), (16, 1, 0)]
    assert outcome == launch.Outcome(finished=4, present=0, others=0, failed=0, stopped=False)
    assert outcome.exit_code == 0
    assert len(lines) == 4
    assert 'dev PER' in lines[0]
    before = snapshot(tmp_path / 'grid')
    outcome, _ = run_quietly(grid, tmp_path / 'grid', 2, train)
    assert outcome == launch.Outcome(finished=0, present=4, others=0, failed=0, stopped=False)
    assert len(train.started) == 4
    assert snapshot(tmp_path / 'grid') == before


def test_killed_anywhere_the_rerun_goes_on_and_leaves_finished_runs_alone(tmp_path):
    grid_file, workdir = standin.grid_file(tmp_path, TWO_BY_THREE), tmp_path / 'grid'
    command = [sys.executable, standin.__file__, str(grid_file), str(workdir), '2']
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, 'JAX_PLATFORMS': 'cpu'})
    deadline = time.monotonic() + 60
    while sum(path.read_text() != '{"step": 0}' for path in workdir.glob('cells/*/*/checkpoint.json')) < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = snapshot(workdir)
    grid = plan.resolve(plan.read(grid_file), count=lambda cfg: None)
    states = [ledger.read_run(run.path).state for run in plan.runs(grid, workdir, 2)]
    assert states[:3] == ['done'] * 3
    assert states[3] == 'preempted'
    assert states[4:] == ['missing'] * 8
    train = standin.Standin()
    outcome, _ = run_quietly(grid, workdir, 2, train)
    assert outcome == launch.Outcome(finished=9, present=3, others=0, failed=0, stopped=False)
    assert train.started[0][2] > 0  # from its checkpoint
    assert all(first == 0 for _, _, first in train.started[1:])
    after = snapshot(workdir)
    assert {path: after[path] for path in before} == before
    assert len(before) == 3 * 8  # the two files of its claim among them


def test_a_grid_that_changed_says_which_finished_runs_no_longer_count(tmp_path):
    standing, train = tmp_path / 'grid', standin.Standin()
    run_quietly(standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})"), standing, 2, train)
    _, lines = run_quietly(standin.make_plan(tmp_path, "product({'model.d_k': (64, 24)})"), standing, 1, train)
    assert lines[0] == (
        'note: 1 cell with 2 finished runs left the grid, as it has other cells now; '
        'they stay on disk, and count again when the grid is as it was'
    )
    changed = standin.grid_file(tmp_path, "product({'model.d_k': (64, 24)})")
    changed.write_text(
        changed.read_text().replace('batch_size = 16', "batch_size = 16\n    config.train.nan_policy = 'skip'")
    )
    again = plan.resolve(plan.read(changed), count=lambda cfg: None)
    _, lines = run_quietly(again, standing, 1, train)
    assert 'note: 2 cells with 3 finished runs left the grid, as train.nan_policy of the baseline changed;' in lines[0]
    _, lines = run_quietly(again, standing, 1, train)
    assert not any('note' in line for line in lines)


@pytest.mark.parametrize(
    ('error', 'reason', 'traceback'),
    [
        (RunError('step 5: loss nan'), 'step 5: loss nan', False),
        (UserError('config.data.dir: no such'), 'config.data.dir: no such', False),
        (ZeroDivisionError('of what'), 'ZeroDivisionError: of what (see traceback.txt)', True),
    ],
)
def test_a_failing_cell_is_recorded_and_the_others_run(tmp_path, error, reason, traceback):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24)})")
    train = standin.Standin(fail={16: error})
    outcome, _ = run_quietly(grid, tmp_path / 'grid', 2, train)
    assert outcome == launch.Outcome(finished=4, present=0, others=0, failed=2, stopped=False)
    assert outcome.exit_code == 1
    found = ledger.read_run(ledger.run_dir(tmp_path / 'grid', grid.cells[1].id, 1))
    assert (found.state, found.reason) == ('failed', reason)
    assert found.status['num_steps'] == 8
    assert (found.path / 'traceback.txt').exists() == traceback
    assert not traceback or 'standin.py' in (found.path / 'traceback.txt').read_text()


def test_failed_runs_are_taken_up_again_on_request_only(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    run_quietly(grid, tmp_path / 'grid', 1, standin.Standin(fail={16: OSError('disk full')}))
    healthy = standin.Standin()
    outcome, lines = run_quietly(grid, tmp_path / 'grid', 1, healthy)
    assert (outcome.failed, outcome.exit_code, healthy.started) == (1, 1, [])
    assert 'disk full' in lines[1]
    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, healthy, retry_failed=True)
    assert (outcome.finished, outcome.exit_code) == (1, 0)


def test_a_run_of_another_live_process_is_left_to_it_and_waited_for(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24)})")
    first, second, _ = plan.runs(grid, tmp_path / 'grid', 1)
    held = contextlib.ExitStack()
    for item in (first, second):
        item.path.mkdir(parents=True)
        held.enter_context(claims.hold(item.path))
    train, lines = standin.Standin(), []

    def say(line):
        lines.append(line)
        if 'waits for' in line:  # the other process does one of them and dies before it does the other
            held.close()
            standin.Standin()(first.config, first.path)

    outcome = launch.run(grid, tmp_path / 'grid', 1, train, say=say, poll=0.05)
    assert outcome == launch.Outcome(finished=2, present=0, others=1, failed=0, stopped=False)
    assert f'pid {os.getpid()}' in lines[1] and 'by another process' in lines[2]
    assert train.started == [(24, 0, 0), (16, 0, 0)]


def test_a_worker_of_little_patience_leaves_what_others_hold_to_them(tmp_path, monkeypatch):
    monkeypatch.setenv(launch.PATIENCE, '0.3')
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    first, _ = plan.runs(grid, tmp_path / 'grid', 1)
    first.path.mkdir(parents=True)
    with claims.hold(first.path):
        outcome, lines = run_quietly(grid, tmp_path / 'grid', 1, standin.Standin())
        assert ledger.read_run(first.path).state == 'running'
    assert outcome == launch.Outcome(finished=1, present=0, others=0, failed=0, stopped=False)
    assert 'leaves 1 run to' in lines[-1]


@pytest.mark.parametrize('how', ['preempted', 'interrupted'])
def test_preemption_stops_the_grid_and_the_rerun_resumes(tmp_path, how):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24)})")
    train = standin.Standin(preempt={16}) if how == 'preempted' else standin.Standin(fail={16: KeyboardInterrupt()})
    outcome, lines = run_quietly(grid, tmp_path / 'grid', 1, train)
    assert (outcome.finished, outcome.failed, outcome.stopped, outcome.exit_code) == (1, 0, True, 143)
    assert how in lines[1]
    assert len(train.started) == 2
    assert ledger.read_run(plan.runs(grid, tmp_path / 'grid', 1)[1].path).state == 'preempted'
    train.fail.clear()
    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, train)
    assert (outcome.finished, outcome.present) == (2, 1)
    assert train.started[2] == (16, 0, 5)


def test_a_resume_that_fails_is_a_failure_and_no_preemption(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    run_quietly(grid, tmp_path / 'grid', 1, standin.Standin(preempt={64}))

    def train(cfg, workdir):
        if cfg.model.d_k == 64:
            raise RunError('no whole checkpoint')
        return standin.Standin()(cfg, workdir)

    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, standin.each(train))
    assert outcome == launch.Outcome(finished=1, present=0, others=0, failed=1, stopped=False)


def test_a_run_that_another_process_finishes_first_stays_done(tmp_path):
    """Its claim was refused, and before anyone looked again it was done."""
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64,)})")
    finish = standin.Standin()

    def refused(cfg, workdir):
        finish(cfg, workdir)
        raise claims.BusyError('another live process uses this directory')

    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, standin.each(refused))
    assert (outcome.others, outcome.failed) == (1, 0)
    assert ledger.read_run(plan.runs(grid, tmp_path / 'grid', 1)[0].path).state == 'done'


def test_runs_of_one_program_are_taken_together_and_shared_among_workers(tmp_path, monkeypatch):
    """Of 2 programs × 6 seeds, the first of three workers that begin together takes the first four of the first one."""
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    train = standin.Standin(program=lambda cfg: cfg.model.d_k)
    for index, expected in enumerate(([(64, 0), (64, 1), (64, 2), (64, 3)], [(64, 4), (64, 5)], [(16, 0), (16, 1)])):
        monkeypatch.setenv(launch.WORKER, str(index))
        train.started.clear()
        run_quietly(grid, tmp_path / str(index), 6, train, workers=3)
        assert [(d_k, seed) for d_k, seed, _ in train.started][: len(expected)] == expected
    monkeypatch.delenv(launch.WORKER)
    train.groups.clear()
    _, lines = run_quietly(grid, tmp_path / 'alone', 6, train)
    assert train.groups == [6, 6] and '(6 together)' in lines[0]


def test_one_of_a_group_fails_and_the_others_count(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24)})")
    train = standin.Standin(fail={16: RunError('loss nan')}, program=lambda cfg: 'one')
    outcome, _ = run_quietly(grid, tmp_path / 'grid', 2, train)
    assert train.groups == [6]
    assert outcome == launch.Outcome(finished=4, present=0, others=0, failed=2, stopped=False)


def test_a_group_that_fails_as_a_whole_is_on_record(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")

    class Broken(standin.Standin):
        def train(self, configs, workdirs):
            raise MemoryError('too large')

    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, Broken())
    assert (outcome.failed, outcome.exit_code) == (2, 1)
    assert 'MemoryError' in ledger.read_run(plan.runs(grid, tmp_path / 'grid', 1)[1].path).reason


def test_a_claim_lost_to_another_process_is_no_failure(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64,)})")
    lost = [claims.LostError('suspended')]

    def train(cfg, workdir):
        if lost:
            raise lost.pop()
        return standin.Standin()(cfg, workdir)

    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, standin.each(train))
    assert outcome == launch.Outcome(finished=1, present=0, others=0, failed=0, stopped=False)


def test_what_fails_in_another_worker_is_not_tried_again(tmp_path):
    """--retry_failed opens what had failed before the call, once."""
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    train = standin.Standin(fail={64: RunError('loss nan')})
    run_quietly(grid, tmp_path / 'grid', 1, train)
    train.started.clear()
    outcome, _ = run_quietly(grid, tmp_path / 'grid', 1, train, retry_failed=True)
    assert (outcome.failed, len(train.started)) == (1, 1)
    assert ledger.read_run(plan.runs(grid, tmp_path / 'grid', 1)[0].path).reason == 'loss nan'


def test_a_signal_while_it_waits_stops_it(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64,)})")
    (item,) = plan.runs(grid, tmp_path / 'grid', 1)
    item.path.mkdir(parents=True)

    def say(line):
        if 'waits for' in line:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()

    with claims.hold(item.path):
        outcome = launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=say, poll=60.0)
    assert (outcome.stopped, outcome.exit_code) == (True, 143)


def test_a_cohort_may_do_the_first_few_and_leave_the_others_open(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24)})")
    train = standin.Standin()
    sizes = []

    def two(configs, workdirs):
        sizes.append(len(configs))
        return train.train(configs[:2], workdirs[:2])

    outcome, lines = run_quietly(grid, tmp_path / 'grid', 1, launch.Cohort(lambda cfg: 'one', two))
    assert (outcome.finished, sizes) == (3, [3, 1]) and '(2 together)' in lines[0]


def test_stopped_in_the_second_of_a_group_the_first_is_done(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24)})")

    def train(cfg, workdir):
        if cfg.model.d_k == 16:
            raise Preempted('SIGTERM')
        return standin.Standin()(cfg, workdir)

    one_program = launch.Cohort(lambda cfg: 'one', standin.each(train).train)
    outcome, lines = run_quietly(grid, tmp_path / 'grid', 1, one_program)
    assert outcome == launch.Outcome(finished=1, present=0, others=0, failed=0, stopped=True)
    assert ': done' in lines[0] and ': stopped (SIGTERM)' in lines[1]
