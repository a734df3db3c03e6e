"""Workers as real processes over one directory: what each does, what becomes of the runs of one that is killed."""

import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import standin

from jaxformer import claims, main, runtime
from jaxformer.ablate import launch, launchers, ledger, plan, workers

sys.path.insert(0, str(Path(__file__).parents[1] / 'train'))
import small  # noqa: E402 - the small runs of the tests of training

TWO_BY_FOUR = "product({'model.num_heads': (8, 4), 'model.d_k': (64, 16, 24, 32)})"


class Grid:
    """A grid of 8 runs and processes that work on it, which end with the test."""

    def __init__(self, directory):
        self.file, self.workdir = standin.grid_file(directory, TWO_BY_FOUR), directory / 'grid'
        self.processes = []

    def start(self, number=1, pause=0.02):
        command = [sys.executable, standin.__file__, str(self.file), str(self.workdir), '1', str(number), str(pause)]
        env = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
        pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
        self.processes.append(subprocess.Popen(command, env=env, **pipes))
        return self.processes[-1]

    def starts(self):
        """Run → [(pid, time, first step) of each time it was begun]."""
        found = collections.defaultdict(list)
        for path in self.workdir.glob('cells/*/*/starts.txt'):
            for line in path.read_text().splitlines():
                pid, begun, step = line.split()
                found[path.parent].append((int(pid), float(begun), int(step)))
        return found

    def states(self):
        paths = (path.parent for path in self.workdir.glob('cells/*/*/starts.txt'))
        return collections.Counter(ledger.read_run(path).state for path in paths)

    def wait_for(self, happened):
        deadline = time.monotonic() + 60
        while not (found := happened()):
            assert time.monotonic() < deadline
            assert any(process.poll() is None for process in self.processes), self.processes[0].stdout.read()
            time.sleep(0.01)
        return found


@pytest.fixture
def grid(tmp_path):
    made = Grid(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def pids(process):
    """Of the workers that a parent said it has, by the runs that they began."""
    return {int(pid) for pid in Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()}


def test_three_workers_do_every_run_once(grid):
    for _ in range(3):
        grid.start()
    assert [process.wait(60) for process in grid.processes] == [0, 0, 0]
    starts = grid.starts()
    assert len(starts) == 8 and grid.states() == {'done': 8}
    assert all(len(begun) == 1 for begun in starts.values()), starts
    assert {pid for begun in starts.values() for pid, _, _ in begun} == {process.pid for process in grid.processes}


def test_runs_of_a_killed_worker_are_taken_over_at_once(grid):
    """By the others, as soon as they are free: here one that waits looks every tenth of a second."""
    for _ in range(3):
        grid.start(pause=0.15)
    victim = grid.processes[0]
    mine = lambda: [path for path, begun in grid.starts().items() if begun[-1][0] == victim.pid]  # noqa: E731
    left = []

    def held_in_the_middle():
        if len(mine()) < 2 or not (mine()[-1] / 'checkpoint.json').exists():
            return False
        victim.send_signal(signal.SIGSTOP)  # or it is done with that run before it is killed
        left[:] = [path for path in mine() if ledger.read_run(path).state != 'done']
        if not left:
            victim.send_signal(signal.SIGCONT)
        return bool(left)

    grid.wait_for(held_in_the_middle)
    victim.kill()
    killed = time.time()
    saved = (left[0] / 'checkpoint.json').exists()  # on a busy machine it has begun another one by now
    assert [process.wait(60) for process in grid.processes[1:]] == [0, 0]
    assert grid.states() == {'done': 8}
    assert len(left) == 1 and all(len(begun) == 1 for path, begun in grid.starts().items() if path != left[0])
    (_, _, first), (pid, begun, step) = grid.starts()[left[0]]
    assert pid in {process.pid for process in grid.processes[1:]} and first == 0
    assert (step > 0) is saved
    # Whoever took it had at most one run of 8 × 0.15 s to finish first, and need not look for longer than 0.1 s.
    assert begun - killed < 1.2 + 0.1 + 5, 'the 5 s are for a busy machine'


def test_a_run_of_another_machine_is_taken_over_when_its_time_is_up_and_not_before(tmp_path):
    resolved = standin.make_plan(tmp_path, "product({'model.d_k': (64,)})")
    (item,) = plan.runs(resolved, tmp_path / 'grid', 1)
    item.path.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(claims.hold(item.path, heartbeat=999))
        (path,) = Path(item.path / claims.DIRECTORY).glob('*.json')
        path.write_text(json.dumps({**json.loads(path.read_text()), 'node': 'another', 'host': 'far'}))
        os.utime(path, (0, time.time() - claims.STALE + 2))
        begun, lines = time.time(), []
        launch.run(resolved, tmp_path / 'grid', 1, standin.Standin(), say=lines.append, poll=0.1)
    assert 'on far' in lines[0] and 'done in' in lines[1]
    (start,) = (Path(item.path) / 'starts.txt').read_text().splitlines()
    assert 1.9 < float(start.split()[1]) - begun < 2 + 5


def test_the_launcher_of_processes_shares_out_the_runs_and_passes_on_what_they_say(grid):
    parent = grid.start(3)
    said, _ = parent.communicate(timeout=60)
    assert parent.returncode == 0, said
    assert all(len(begun) == 1 for begun in grid.starts().values()) and grid.states() == {'done': 8}
    assert len({begun[0][0] for begun in grid.starts().values()}) == 3
    assert re.search(r'^worker 2: \[\d/8\] .* done in', said, re.MULTILINE) and said.endswith('8 runs: 8 done\n')


def test_one_of_the_processes_dies_and_the_others_do_its_runs(grid):
    parent = grid.start(3, pause=0.15)
    first = grid.wait_for(lambda: [begun[0][0] for begun in grid.starts().values()])[0]
    os.kill(first, signal.SIGKILL)
    said, _ = parent.communicate(timeout=60)
    assert parent.returncode == 0, said
    assert grid.states() == {'done': 8} and f'(pid {first}) was killed by SIGKILL' in said


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_makes_every_worker_save_and_leave(grid, number):
    parent = grid.start(3, pause=0.3)
    grid.wait_for(lambda: len(grid.starts()) == 3)
    parent.send_signal(number)
    said, _ = parent.communicate(timeout=60)
    assert parent.returncode == 143, said
    assert grid.states() == {'preempted': 3} and said.count('SIGTERM') >= 3
    assert all(json.loads((path / 'status.json').read_text())['reason'] == 'SIGTERM' for path in grid.starts())
    parent = grid.start(3)
    assert parent.wait(60) == 0 and grid.states() == {'done': 8}


def test_workers_leave_when_their_parent_is_killed(grid):
    parent = grid.start(3, pause=0.3)
    grid.wait_for(lambda: len(grid.starts()) == 3)
    children = pids(parent)
    assert len(children) == 3
    parent.kill()
    parent.wait()
    grid.processes.clear()
    deadline = time.monotonic() + 20
    while any(Path(f'/proc/{pid}').exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert grid.states() == {'preempted': 3}
    assert all(json.loads((path / 'status.json').read_text())['reason'] == 'SIGTERM' for path in grid.starts())


def test_all_workers_failing_to_work_is_no_endless_loop(tmp_path, capsys):
    resolved = standin.make_plan(tmp_path, TWO_BY_FOUR)
    planned = launch.prepare(resolved, tmp_path / 'grid', 1)
    assert workers.run(planned, ['-c', 'import sys; print("so"); sys.exit(7)'], 2, command=[sys.executable]) == 1
    said = capsys.readouterr().out
    assert 'worker 0: so\n' in said and 'worker 1 (pid ' in said and 'ended with exit status 7' in said
    assert said.endswith('8 runs: 8 missing\nNo worker is left that would do the rest; the same command goes on.\n')


def test_processes_have_cores_of_their_own(tmp_path, capfd):
    planned = launch.prepare(standin.make_plan(tmp_path, TWO_BY_FOUR), tmp_path / 'grid', 1)
    code = 'import os; print(sorted(os.sched_getaffinity(0)))'
    cores, number = runtime.available_cores(), 2
    workers.run(planned, ['-c', code], number, command=[sys.executable])
    given = [json.loads(line.partition(': ')[2]) for line in sorted(capfd.readouterr().out.splitlines()) if '[' in line]
    assert len(given) == number and sorted(set(sum(given, []))) == cores
    assert len(cores) < number or not set(given[0]) & set(given[1])
    assert runtime.available_cores() == cores  # the parent keeps its own


def seeds(number, *changes):
    """So many runs of each program."""
    return [small.make({'seed': seed, **change}) for change in changes or ({},) for seed in range(number)]


THREE = ({'model.num_heads': 1}, {'model.num_heads': 2}, {'model.num_heads': 4})


@pytest.mark.parametrize(
    ('machine', 'launcher', 'number', 'open_runs', 'expected'),
    [
        (('cpu', 8), 'auto', 0, seeds(8), 1),  # one cohort, spread over the cores
        (('cpu', 8), 'auto', 0, seeds(8, *THREE), 3),
        (('cpu', 2), 'auto', 0, seeds(8, *THREE), 2),
        (('cpu', 8), 'auto', 0, seeds(3, {'cohort.mode': 'off'}), 3),
        (('cpu', 8), 'auto', 0, seeds(2, {'model.decoder_mixer': 'conv'}, {}), 3),
        (('cpu', 8), 'auto', 3, seeds(24), 3),
        (('cpu', 8), 'auto', 0, seeds(1), 1),
        (('cpu', 1), 'auto', 0, seeds(8, *THREE), 1),
        (('cpu', 1), 'processes', 3, seeds(24), 3),
        (('cpu', 4), 'processes', 0, seeds(24), 4),
        (('gpu', 4), 'auto', 0, seeds(24), 4),
        (('gpu', 1), 'auto', 0, seeds(24), 1),
        (('tpu', 8), 'auto', 0, seeds(24), 1),
        (('cpu', 8), 'auto', 1, seeds(24), 1),
    ],
)
def test_how_many_processes(monkeypatch, machine, launcher, number, open_runs, expected):
    monkeypatch.setattr(workers, 'machine', lambda: machine)
    monkeypatch.setattr(workers, 'available_bytes', lambda: 1e12)
    assert launchers.choose(launcher, number, open_runs) == expected


def test_memory_is_shared_out_too(monkeypatch):
    assert 1e8 < workers.available_bytes() < 1e15
    monkeypatch.setattr(workers, 'machine', lambda: ('cpu', 64))
    alone = seeds(24, {'cohort.mode': 'off'})
    for gigabytes, expected in ((8, 5), (1, 1)):
        monkeypatch.setattr(workers, 'available_bytes', lambda size=gigabytes: 1e9 * size)
        assert launchers.choose('auto', 0, alone) == expected and launchers.choose('auto', 7, alone) == 7


def test_the_machine_is_asked_of_another_process_and_only_where_there_may_be_an_accelerator(monkeypatch):
    monkeypatch.delenv('JAX_PLATFORMS', raising=False)
    monkeypatch.setattr(workers, '_PROBE', 'print("some warning"); print("gpu", 3)')
    look = workers.machine.__wrapped__
    monkeypatch.setattr(workers, '_knows_accelerators', lambda: True)
    assert look() == ('gpu', 3)
    monkeypatch.setattr(workers, '_knows_accelerators', lambda: False)
    assert look() == ('cpu', len(runtime.available_cores()))
    monkeypatch.setattr(workers, '_knows_accelerators', lambda: True)
    monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
    assert look() == ('cpu', len(runtime.available_cores()))
    monkeypatch.delenv('JAX_PLATFORMS')
    monkeypatch.setattr(workers, '_PROBE', 'raise RuntimeError("no device")')  # the workers will say it themselves
    assert look()[0] == 'cpu'


def test_a_gpu_for_each(monkeypatch):
    monkeypatch.setattr(workers, 'machine', lambda: ('gpu', 2))
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '5,7')
    assert [variables for _, variables in workers._places(2)] == [
        {'CUDA_VISIBLE_DEVICES': '5'},
        {'CUDA_VISIBLE_DEVICES': '7'},
    ]


@pytest.mark.parametrize(
    ('flags', 'machine', 'says'),
    [
        (['--launcher=magic'], ('cpu', 2), '--launcher=magic: no such launcher; choose one of auto, inline'),
        (['--workers=-1'], ('cpu', 2), '--workers=-1: a number of processes'),
        (['--workers=3'], ('gpu', 2), '--workers=3: there are 2 GPUs'),
        (['--launcher=processes'], ('tpu', 8), '--launcher=processes: not on a tpu'),
        (['--slurm=partition=gpu'], ('cpu', 2), '--slurm=partition=gpu: are options of --launcher=slurm'),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, flags, machine, says):
    monkeypatch.setattr(workers, 'machine', lambda: machine)
    path = standin.grid_file(tmp_path, TWO_BY_FOUR)
    assert main.main(['ablate', f'--grid={path}', f'--workdir={tmp_path / "grid"}', *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f'jaxformer: {says}') and said.count('\n') == 1


def test_nobody_hears_of_what_a_reader_that_has_gone_did_not_want(tmp_path):
    """`jaxformer ablate | head`: the workers are not held up by a pipe that nobody empties."""
    planned = launch.prepare(standin.make_plan(tmp_path, TWO_BY_FOUR), tmp_path / 'grid', 1)

    def say(line):
        if threading.current_thread() is not threading.main_thread():
            raise BrokenPipeError

    code = 'for _ in range(3000): print("x" * 100)'
    assert workers.run(planned, ['-c', code], 2, command=[sys.executable], say=say) == 1
