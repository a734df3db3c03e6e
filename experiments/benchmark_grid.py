"""What does it cost to run eight seeds of configs/quickstart.py, one way or the other?

Question: the wall time of eight `jaxformer train` commands one after the other; of one process that takes the eight
          runs in turn and keeps its compiled program; of a cohort, the eight as one program in one process; and of
          `jaxformer ablate` as it is, which shares them out among processes. And the memory of each.
Command:  make benchmark BENCHMARK=--case=grid    (or: python experiments/benchmark.py --case=grid)
Result:   a table, one row for each way: medians over the rounds. In each round every way is taken once, in alternating
          order, in new directories and with an empty compilation cache; ratios are formed within a round.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import RunError

RUNS = 8
GRID = (
    '"""Eight seeds of one configuration."""\n\n'
    'from configs import quickstart\n\n'
    'get_config = quickstart.get_config\n\n\n'
    'def grid():\n    return [{}]\n'
)
WAYS = ('commands', 'turns', 'cohort', 'default')


def arguments(way: str, grid: Path, where: Path, changes: Sequence[str]) -> list[list[str]]:
    """The arguments of `jaxformer`, of one command after the other."""
    fields = [f'--config.{change}' for change in changes]
    cache = f'--config.runtime.compilation_cache={where / "cache"}'
    if way == 'commands':
        one = ['train', '--config=configs/quickstart.py', cache, *fields]
        return [[*one, f'--config.seed={seed}', f'--workdir={where / str(seed)}'] for seed in range(RUNS)]
    mode = {'turns': ['--launcher=inline', '--config.cohort.mode=off'], 'cohort': ['--launcher=inline'], 'default': []}
    return [['ablate', f'--grid={grid}', f'--workdir={where}', f'--seeds={RUNS}', cache, *mode[way], *fields]]


def measure(rounds: int, changes: Sequence[str]) -> list[dict[str, Any]]:
    """Seconds and bytes of each way, and its speed against the others, in the order of WAYS.

    Raises:
      RunError: a command failed, or left a run unfinished.
    """
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks: dict[str, int] = dict.fromkeys(WAYS, 0)
    scratch = Path(tempfile.mkdtemp(prefix='benchmark-'))
    try:
        grid = scratch / 'eight.py'
        grid.write_text(GRID)
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                where = scratch / f'{way}-{number}'
                begun = time.perf_counter()
                for command in arguments(way, grid, where, changes):
                    peaks[way] = max(peaks[way], run(command))
                seconds[way].append(time.perf_counter() - begun)
                done = len(list(where.rglob('examples/dev.npz')))
                if done != RUNS:
                    raise RunError(f'{way}: {done} of {RUNS} runs are done')
                shutil.rmtree(where)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    against = lambda way, other: [b / a for a, b in zip(seconds[way], seconds[other], strict=True)]  # noqa: E731
    return [
        {
            'way': way,
            'seconds': spread(seconds[way]),
            'x commands': spread(against(way, 'commands')),
            'x turns': spread(against(way, 'turns')),
            'peak_bytes': peaks[way],
        }
        for way in WAYS
    ]


def run(command: Sequence[str]) -> int:
    """Runs `jaxformer`; the peak memory of it and its workers together, in bytes."""
    root = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, '-m', 'jaxformer.main', *command],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(root)},
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.2)
    if process.returncode:
        assert process.stderr
        raise RunError(f'jaxformer {" ".join(command)}: {process.stderr.read().strip().splitlines()[-1:]}')
    return peak


def resident(pid: int) -> int:
    """Bytes of memory that a process and its descendants hold at the moment; 0 where there is no /proc."""
    parents, sizes = {}, {}
    for entry in Path('/proc').glob('[0-9]*'):
        try:
            fields = dict(line.split(':', 1) for line in (entry / 'status').read_text().splitlines())
        except OSError:  # it has just ended
            continue
        parents[int(entry.name)] = int(fields['PPid'])
        sizes[int(entry.name)] = 1024 * int(fields['VmRSS'].split()[0]) if 'VmRSS' in fields else 0
    family = {pid}
    while found := {child for child, parent in parents.items() if parent in family} - family:
        family |= found
    return sum(sizes.get(member, 0) for member in family)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {'median': statistics.median(values), 'min': min(values), 'max': max(values)}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as a Markdown table: `median (least to greatest)`."""

    def cell(values: Mapping[str, float], form: str) -> str:
        return f'{values["median"]:{form}} ({values["min"]:{form}} to {values["max"]:{form}})'

    lines = ['| eight runs | seconds | x commands | x turns | memory |', '|---|---:|---:|---:|---:|']
    for row in rows:
        figures = [cell(row['seconds'], '.0f'), cell(row['x commands'], '.2f'), cell(row['x turns'], '.2f')]
        lines.append(f'| {row["way"]} | {" | ".join(figures)} | {row["peak_bytes"] / 1e9:.2f} GB |')
    return '\n'.join(lines)
