"""Real grids under SIGKILL: the script tests/ablate/kill_grid.py as it stands, and three workers of which one dies."""

import json
import subprocess
import sys
import time
from pathlib import Path

import kill_grid


def test_twenty_kills_change_nothing():
    script = Path(__file__).with_name('kill_grid.py')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '20 kills; 24 runs done, 0 complaints' in done.stdout


def test_three_workers_do_each_run_once_and_the_runs_of_one_that_is_killed(tmp_path):
    kill_grid.write_grid(tmp_path)
    grid = kill_grid.Grid(tmp_path, tmp_path / 'grid')
    workers = [grid.start(1, '--seeds=1', '--workers=3') for _ in range(3)]
    pids = {worker.pid for worker in workers}

    def starts():
        paths = (run / 'environment.json' for run in grid.runs())
        return {
            path.parent: [start['pid'] for start in json.loads(path.read_text())] for path in paths if path.exists()
        }

    def of_victim():
        runs = [run for run, begun in starts().items() if begun[-1] == workers[0].pid]
        return [run for run in runs if grid.status(run)['status'] != 'done']

    try:
        deadline = time.monotonic() + 300
        while not of_victim():
            assert time.monotonic() < deadline and workers[0].poll() is None, grid.log.read_text()
            time.sleep(0.01)
        workers[0].kill()
        workers[0].wait()
        lost = of_victim()
        assert [worker.wait(300) for worker in workers[1:]] == [0, 0], grid.log.read_text()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert len(grid.runs()) == 8 and {grid.status(run)['status'] for run in grid.runs()} == {'done'}
    assert lost and {pid for begun in starts().values() for pid in begun} <= pids
    for run, begun in starts().items():
        assert len(begun) == 1 + (run in lost), (run, begun)
        assert run not in lost or begun[-1] != workers[0].pid
