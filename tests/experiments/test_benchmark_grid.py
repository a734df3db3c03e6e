"""The benchmark of eight runs: what it starts, what it measures, and that a failure is none of its figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import benchmark_grid
from jaxformer.ablate import plan
from jaxformer.errors import RunError


def test_each_way_is_the_command_that_it_says():
    commands = {
        way: benchmark_grid.arguments(way, Path('/grids'), Path('/there'), ['train.num_steps=3'])
        for way in benchmark_grid.WAYS
    }
    one = {way: found for (grid, way), found in commands.items() if grid == 'one cell'}
    assert {way: len(found) for way, found in one.items()} == {
        'commands, each compiling': 8, 'commands': 8, 'turns': 1, 'processes': 1, 'cohort (default)': 1,
    }  # fmt: skip
    assert {command[0] for command in one['commands']} == {'train'}
    assert len({argument for command in one['commands'] for argument in command if 'seed' in argument}) == 8
    assert '--config.cohort.mode=off' in one['turns'][0] and '--launcher=inline' in one['turns'][0]
    assert '--launcher=processes' in one['processes'][0]
    assert not [argument for argument in one['cohort (default)'][0] if 'launcher' in argument or 'cohort' in argument]
    for way, found in commands.items():
        assert all('--config.train.num_steps=3' in command for command in found)
        cache = '' if 'each compiling' in way[1] else '/there/cache'  # which begins empty
        assert all(f'--config.runtime.compilation_cache={cache}' in command for command in found)
    assert '--seeds=4' in commands['two cells', 'processes (default)'][0] and '--seeds=8' in one['cohort (default)'][0]


def test_a_grid_has_eight_runs(tmp_path):
    for heads, seeds in benchmark_grid.GRIDS.values():
        path = tmp_path / 'grid.py'
        path.write_text(benchmark_grid.grid_file(heads))
        grid = plan.resolve(plan.read(path, {'model.vocab_size': 71}))
        assert len(plan.runs(grid, tmp_path, seeds)) == benchmark_grid.RUNS
        assert [cell.config.model.num_heads for cell in grid.cells] == list(heads)


def test_the_memory_is_that_of_a_process_and_its_children():
    child = "x = bytearray(b'x' * 150_000_000); print(1, flush=True); input()"
    code = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {child!r}])'
    with subprocess.Popen([sys.executable, '-c', code], stdin=-1, stdout=-1, text=True) as process:
        process.stdout.readline()
        assert 150e6 < benchmark_grid.resident(process.pid) < 400e6
        process.communicate('\n')
    assert benchmark_grid.resident(os.getpid()) > 20e6


def test_a_command_that_fails_is_no_figure():
    with pytest.raises(RunError, match='nowhere.py'):
        benchmark_grid.run(['train', '--config=nowhere.py', '--workdir=/tmp/nothing'])


def test_the_table():
    figures = {'median': 2.0, 'min': 1.5, 'max': 3.0}
    row = {'grid': 'one cell', 'way': 'cohort', 'seconds': figures, 'peak_bytes': 1_230_000_000}
    row |= {'x commands': figures, 'x compiling': {'median': 4.0, 'min': 4.0, 'max': 4.0}, 'x turns': figures}
    assert benchmark_grid.table([row]).splitlines()[-1] == (
        '| one cell | cohort | 2 (2 to 3) | 4.00 | 2.00 (1.50 to 3.00) | 2.00 (1.50 to 3.00) | 1.23 GB |'
    )
