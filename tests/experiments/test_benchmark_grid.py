"""The benchmark of eight runs: what it starts, what it measures, and that a failure is none of its figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import benchmark_grid
from jaxformer.errors import RunError


def test_each_way_is_the_command_that_it_says():
    grid, where = Path('eight.py'), Path('/there')
    commands = {way: benchmark_grid.arguments(way, grid, where, ['train.num_steps=3']) for way in benchmark_grid.WAYS}
    assert [len(commands[way]) for way in benchmark_grid.WAYS] == [8, 1, 1, 1]
    assert {command[0] for command in commands['commands']} == {'train'}
    assert len({argument for command in commands['commands'] for argument in command if 'seed' in argument}) == 8
    for way, expected in (('turns', '--config.cohort.mode=off'), ('cohort', '--launcher=inline')):
        assert expected in commands[way][0]
    assert not [argument for argument in commands['default'][0] if 'launcher' in argument or 'cohort' in argument]
    for found in commands.values():
        assert all('--config.train.num_steps=3' in command for command in found)
        assert all('--config.runtime.compilation_cache=/there/cache' in command for command in found)  # begins empty


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
    row = {'way': 'cohort', 'seconds': figures, 'x commands': figures, 'x turns': figures, 'peak_bytes': 1_230_000_000}
    assert benchmark_grid.table([row]).splitlines()[-1] == (
        '| cohort | 2 (2 to 3) | 2.00 (1.50 to 3.00) | 2.00 (1.50 to 3.00) | 1.23 GB |'
    )
