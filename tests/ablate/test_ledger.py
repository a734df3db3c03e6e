import os

import pytest
import standin

from jaxformer import claims
from jaxformer.ablate import launch, ledger, plan
from jaxformer.errors import UserError
from jaxformer.train.writer import write_status


def run(grid, workdir, seeds=1):
    return launch.run(grid, workdir, seeds, standin.Standin(), say=lambda line: None)


def test_cells_that_left_the_grid_stay_as_former_ones(tmp_path):
    workdir = tmp_path / 'grid'
    first = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    run(first, workdir, 2)
    second = standin.make_plan(tmp_path, "product({'model.d_k': (64, 24)})")
    run(second, workdir)
    book = ledger.read(workdir)
    assert [cell.id for cell in book.cells] == [cell.id for cell in second.cells]
    assert [cell.id for cell in book.former] == [first.cells[1].id]
    assert book.seeds == (0, 1)  # the second seed of the first call is not forgotten
    assert ledger.read_run(ledger.run_dir(workdir, first.cells[1].id, 0)).state == 'done'
    run(first, workdir)
    assert [cell.id for cell in ledger.read(workdir).former] == [second.cells[1].id]


def test_an_unchanged_grid_does_not_touch_its_file(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    run(grid, tmp_path / 'grid')
    before = (tmp_path / 'grid' / 'grid.json').stat().st_mtime_ns
    run(grid, tmp_path / 'grid')
    assert (tmp_path / 'grid' / 'grid.json').stat().st_mtime_ns == before


def test_another_grid_s_directory_is_refused(tmp_path):
    run(standin.make_plan(tmp_path, '[{}]'), tmp_path / 'grid')
    other = standin.make_plan(tmp_path, '[{}]', name='positions')
    with pytest.raises(UserError, match="'heads', not 'positions'"):
        run(other, tmp_path / 'grid')
    with pytest.raises(UserError, match="'heads', not 'positions'"):
        plan.as_text(other, tmp_path / 'grid', 1)


def test_a_directory_without_or_with_a_damaged_ledger(tmp_path):
    with pytest.raises(UserError, match='holds no grid.json'):
        ledger.read(tmp_path)
    for damaged in ('{', '[]', '{"name": "heads"}'):
        (tmp_path / 'grid.json').write_text(damaged)
        with pytest.raises(UserError, match='grid.json'):
            ledger.read(tmp_path)


def test_an_unusable_directory(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='choose another'):
        run(standin.make_plan(tmp_path, '[{}]'), tmp_path / 'file' / 'grid')


def test_reading_a_run_changes_nothing_and_a_damaged_status_is_a_failure(tmp_path):
    path = tmp_path / 'seed-3'
    assert ledger.read_run(path).state == 'missing'
    assert not path.exists()
    path.mkdir()
    (path / 'status.json').write_text('{"status": ')
    found = ledger.read_run(path)
    assert (found.state, found.seed) == ('failed', 3)
    assert 'status.json' in found.reason


def test_running_means_that_a_process_holds_the_claim(tmp_path):
    path = tmp_path / 'seed-0'
    path.mkdir()
    write_status(path, 'running', 4, 9)
    with claims.hold(path):
        found = ledger.read_run(path)
        assert (found.state, found.holder.pid) == ('running', os.getpid())
        with pytest.raises(claims.BusyError):
            ledger.mark(path, 'failed', 'no', 9)
    assert (ledger.read_run(path).state, ledger.read_run(path).holder) == ('preempted', None)
