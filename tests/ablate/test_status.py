import json
import os
import time

import pytest
import standin

from jaxformer import claims, files, main
from jaxformer.ablate import launch, plan, status
from jaxformer.errors import RunError, UserError
from jaxformer.train.writer import write_status


@pytest.fixture
def grid(tmp_path):
    """3 cells × 2 seeds: of the first two cells one run is done, one failed; the others have not begun."""
    resolved = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16, 24), 'train.num_steps': (8,)})")
    train = standin.Standin(fail={16: RunError('loss nan')})
    launch.run(resolved, tmp_path / 'grid', 1, train, say=lambda line: None)
    (tmp_path / 'grid' / 'cells' / resolved.cells[2].id / 'seed-0' / 'status.json').unlink()
    launch.prepare(resolved, tmp_path / 'grid', 2)
    return resolved, tmp_path / 'grid'


def begin(resolved, workdir, speed=2.0, step=3):
    """Makes the last run one that this process works on, at so many steps per second."""
    item = plan.runs(resolved, workdir, 2)[-1]
    item.path.mkdir(parents=True, exist_ok=True)
    write_status(item.path, 'running', 0, 8)
    begun = time.time() - 100
    files.write_json(item.path / 'environment.json', [{'time': begun - 500}, {'time': begun}])
    old = [{'step': 1, 'time': begun - 400}]
    new = [{'step': n, 'time': begun + n / speed} for n in range(1, step + 1)]
    (item.path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in old + new))
    return item


def test_every_run_has_its_state_and_what_is_not_there_yet_has_one_too(grid):
    resolved, workdir = grid
    found = status.read(workdir)
    assert [(row.label, row.seed, row.state, row.step, row.num_steps) for row in found.rows] == [
        (resolved.cells[0].label, 0, 'done', 8, 8),
        (resolved.cells[0].label, 1, 'missing', 0, 8),
        (resolved.cells[1].label, 0, 'failed', 5, 8),
        (resolved.cells[1].label, 1, 'missing', 0, 8),
        (resolved.cells[2].label, 0, 'missing', 0, 8),
        (resolved.cells[2].label, 1, 'missing', 0, 8),
    ]
    assert found.rows[0].metric == pytest.approx((1.5 + 20 / 64 + 3 / 8) / 10)
    assert (found.workers, found.seconds_left) == (0, None)
    text = status.as_text(found)
    assert '6 runs: 4 missing, 1 done, 1 failed; 13 of 48 steps; 0 workers; time left: not known yet' in text
    assert text.endswith(f'failed: {resolved.cells[1].label} seed 0: loss nan')


def test_a_worker_its_heartbeat_and_the_time_left(grid):
    """3 of 8 steps at two a second: 2.5 s for the run, and for it and three that have not begun 29 / 2 s."""
    resolved, workdir = grid
    item = begin(resolved, workdir)
    with claims.hold(item.path):
        found = status.read(workdir)
        row = found.rows[-1]
        assert (row.state, row.step, row.pid, found.workers) == ('running', 3, os.getpid(), 1)
        assert 0 <= row.heartbeat < 30 and row.speed == pytest.approx(2.0)
        assert row.seconds_left == pytest.approx(2.5) and found.seconds_left == pytest.approx(29 / 2)
        assert f'{row.host} {os.getpid()}' in status.as_text(found)
        (cell,) = {entry['cell'] for entry in status.as_json(found)['runs'][-2:]}
        assert cell == resolved.cells[2].id
    found = status.read(workdir)  # it went without a word
    assert (found.rows[-1].state, found.rows[-1].heartbeat, found.workers) == ('preempted', None, 0)


def test_reading_changes_nothing(grid):
    before = {path: path.stat().st_mtime_ns for path in grid[1].rglob('*')}
    status.read(grid[1])
    assert {path: path.stat().st_mtime_ns for path in grid[1].rglob('*')} == before


def test_the_command(grid, capsys):
    assert main.main(['status', f'--workdir={grid[1]}', '--json']) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed['totals']['missing'] == 4 and printed['runs'][0]['seconds_left'] is None
    assert main.main(['status', f'--workdir={grid[1]}']) == 0
    assert 'dev PER' in capsys.readouterr().out
    assert main.main(['status', f'--workdir={grid[1].parent}']) == 2
    assert 'holds no grid.json' in capsys.readouterr().err
    with pytest.raises(UserError):
        status.read(grid[1].parent)
