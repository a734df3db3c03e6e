"""What goes wrong around a run: non-finite numbers, a second process, a full disk, signals. Nothing is lost."""

import signal
import subprocess
import time

import jax.numpy as jnp
import pytest
import small

from jaxformer import commands, main
from jaxformer.errors import RunError, UserError
from jaxformer.train import loop
from jaxformer.train import step as steps

# Numbers that are not finite (B43)


@pytest.fixture
def poison(monkeypatch):
    """`poison(first, last)`: the loss, and with it every gradient, is infinite in these steps."""
    train_step, loss_fn = steps.train_step, steps.loss_fn

    def arrange(first, last):
        def poisoned_step(state, batch, seed, **fixed):
            return train_step(state, {**batch, 'bad': (state.step >= first - 1) & (state.step < last)}, seed, **fixed)

        def poisoned_loss(params, batch, *args):
            loss, tokens = loss_fn(params, batch, *args)
            return loss * jnp.where(batch['bad'], jnp.inf, 1.0), tokens

        monkeypatch.setattr(steps, 'train_step', poisoned_step)
        monkeypatch.setattr(steps, 'loss_fn', poisoned_loss)

    return arrange


def run_main(cfg, workdir, monkeypatch, capsys):
    """(exit status, standard error but for the progress) of the command, with `cfg` in the place of its config."""
    monkeypatch.setattr(commands, '_config', lambda *args: cfg)
    status = main.main(['train', '--config=any', f'--workdir={workdir}'])
    return status, [line for line in capsys.readouterr().err.splitlines() if line.startswith('jaxformer: ')]


def test_stop_at_the_step_that_is_not_finite(tmp_path, quick, poison, monkeypatch, capsys):
    poison(12, 12)
    workdir = tmp_path / 'run'
    for _ in range(2):  # and the same again when it is started again
        status, said = run_main(quick(), workdir, monkeypatch, capsys)
        assert status == 1 and len(said) == 1 and 'step 12: loss inf' in said[0] and 'nan_policy=skip' in said[0]
        assert small.checkpoints(workdir) == [5, 10]
        record = small.status(workdir)
        assert (record['status'], record['step']) == ('failed', 11) and 'step 12' in record['reason']
        assert list(small.lines(workdir, 'train/loss')) == list(range(1, 13))
        assert small.lines(workdir, 'train/loss')[12] == float('inf')
    # What the message advises works on the same directory.
    status, said = run_main(quick({'train.nan_policy': 'skip'}), workdir, monkeypatch, capsys)
    assert (status, said) == (0, [])
    assert small.lines(workdir, 'train/skipped')[20] == 1 and small.status(workdir)['status'] == 'done'
    state = small.state(workdir)
    assert (state['step'], state['opt_state/1/count'], state['skipped']) == (20, 19, 1)
    rates = small.lines(workdir, 'train/learning_rate')
    assert rates[13] == rates[12] > rates[14]  # of the twelfth update, which step 13 made


def test_skipping_changes_no_parameter_and_ends_at_its_limit(tmp_path, quick, poison):
    poison(12, 99)
    cfg = quick({'train.nan_policy': 'skip', 'train.nan_limit': 4, 'train.checkpoint_every': 1})
    with pytest.raises(RunError, match='step 15: .*4 updates in a row skipped .*nan_limit'):
        loop.train(cfg, tmp_path / 'run')
    # Copies of a state that may be the culprit take no good checkpoint's place.
    assert small.checkpoints(tmp_path / 'run') == [9, 10, 11]
    assert small.status(tmp_path / 'run')['status'] == 'failed'


def test_skipped_steps_are_saved_with_the_parameters_before_them(tmp_path, quick, poison):
    poison(5, 6)
    cfg = {'train.nan_policy': 'skip', 'train.checkpoint_every': 4}
    loop.train(quick({**cfg, 'train.num_steps': 6}), tmp_path / 'run')
    before, after = small.state(tmp_path / 'run', 4), small.state(tmp_path / 'run', 6)
    same = [name for name in before if name.startswith(('params', 'opt_state'))]
    small.assert_bit_equal({name: before[name] for name in same}, {name: after[name] for name in same})
    assert (after['step'], after['skipped'], after['skipped_in_row'], after['data/next_index']) == (6, 2, 2, 6)


# The directory


def test_a_directory_that_cannot_be_made_is_the_users_mistake(tmp_path, quick, monkeypatch, capsys):
    (tmp_path / 'file').write_text('mine')
    for workdir in (tmp_path / 'file' / 'run', tmp_path / 'file', '/proc/run', tmp_path / ('x' * 300)):
        status, said = run_main(quick(), workdir, monkeypatch, capsys)
        assert status == 2 and len(said) == 1 and f'--workdir={workdir}' in said[0], workdir
    assert (tmp_path / 'file').read_text() == 'mine'


def test_a_read_only_directory_is_the_users_mistake(tmp_path, quick, monkeypatch, capsys):
    path = tmp_path / 'disk'
    with small.disk(path, '1m'):
        subprocess.run(['mount', '-o', 'remount,ro', str(path)], check=True)
        status, said = run_main(quick(), path / 'run', monkeypatch, capsys)
        assert status == 2 and len(said) == 1 and 'Read-only file system' in said[0]


def test_a_full_disk_fails_in_one_line_and_the_run_goes_on_once_there_is_space(
    tmp_path, quick, quick_straight, monkeypatch, capsys
):
    cfg = quick({'train.checkpoint_every': 1, 'train.keep_checkpoints': 100})
    path = tmp_path / 'disk'
    with small.disk(path, '1m'):
        status, said = run_main(cfg, path / 'run', monkeypatch, capsys)
        # Orbax's threads may report what the first failure led to in the place of "No space left on device".
        assert status == 1 and len(said) == 1 and 'could not be written' in said[0] and 'free space' in said[0]
        saved = small.checkpoints(path / 'run')
        assert 1 < len(saved) < 20 and saved == list(range(1, len(saved) + 1))
        assert small.status(path / 'run')['status'] in ('failed', 'running')  # it may not fit any more
        subprocess.run(['mount', '-o', 'remount,size=64m', str(path)], check=True)
        status, said = run_main(cfg, path / 'run', monkeypatch, capsys)
        assert (status, said) == (0, [])
        small.assert_bit_equal(small.state(path / 'run'), small.state(quick_straight))
        assert not list((path / 'run').glob('.*.tmp'))


def test_damage_everywhere_fails_with_one(tmp_path, quick, monkeypatch, capsys):
    cfg = quick({'train.num_steps': 2})
    loop.train(cfg, tmp_path / 'run')
    (tmp_path / 'run' / 'status.json').unlink()
    (tmp_path / 'run' / 'checkpoints' / '2' / 'manifest.json').unlink()
    status, said = run_main(cfg, tmp_path / 'run', monkeypatch, capsys)
    assert status == 1 and len(said) == 1 and 'no whole checkpoint' in said[0] and 'manifest.json: missing' in said[0]


# Other processes


def wait_for(happened, process):
    deadline = time.monotonic() + 240
    while not happened():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sigterm_saves_and_a_second_process_is_refused(tmp_path, straight, capsys):
    """Real processes: a live run refuses another one (B39), is told to go, and ends bit-equal to the straight run."""
    expected, workdir = straight[0], tmp_path / 'run'
    code = (  # so slow that there is time to do something to it
        'import sys, time; from jaxformer import main, sharding; put = sharding.put_batch\n'
        'sharding.put_batch = lambda *args: (time.sleep(0.5), put(*args))[1]\n'
        'sys.exit(main.main(sys.argv[1:]))'
    )
    with small.process('-c', code, *small.arguments(workdir)) as first:
        wait_for(lambda: (workdir / 'metrics.jsonl').exists() and small.lines(workdir, 'train/loss'), first)
        before = (workdir / 'config.json').read_bytes(), small.status(workdir)['pid']
        assert main.main(small.arguments(workdir)) == 2
        said = capsys.readouterr().err
        assert f'pid {first.pid}' in said and said.count('\n') == 1
        assert before == ((workdir / 'config.json').read_bytes(), small.status(workdir)['pid'])
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=240)
    assert first.returncode == 143, said
    status = small.status(workdir)
    assert status['status'] == 'preempted' and f'step {status["step"]} is saved' in status['reason']
    assert 1 <= status['step'] < 27 and small.checkpoints(workdir)[-1] == status['step']
    second = small.run_process('-m', 'jaxformer.main', *small.arguments(workdir))
    assert second.returncode == 0, second.stderr
    small.assert_bit_equal(small.state(workdir), small.state(expected))
    assert small.series(workdir) == small.series(expected)


def test_a_lock_of_a_killed_process_holds_nobody_back(tmp_path, quick):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / '.lock').write_text('pid 1')
    loop.train(quick({'train.num_steps': 2}), tmp_path / 'run')
    assert small.status(tmp_path / 'run')['status'] == 'done'


def test_an_error_that_is_a_bug_keeps_its_type_and_is_on_record(tmp_path, quick, at_step):
    def bug():
        raise ZeroDivisionError('division by zero')

    at_step(7, bug)
    with pytest.raises(ZeroDivisionError):
        loop.train(quick(), tmp_path / 'run')
    status = small.status(tmp_path / 'run')
    assert (status['status'], status['reason']) == ('failed', 'ZeroDivisionError: division by zero')
    assert status['step'] in (5, 6) and small.checkpoints(tmp_path / 'run') == [5]


def test_a_mistake_found_late_leaves_the_status_alone(tmp_path, quick, quick_straight):
    with pytest.raises(UserError):
        loop.train(quick({'mesh.data': 3, 'data.dir': small.CACHE, 'train.num_steps': 30}), tmp_path / 'run')
    assert small.status(tmp_path / 'run') is None
