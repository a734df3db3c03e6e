"""What does it cost to run eight small runs, one way or the other?

Question: the wall time of eight runs of configs/quickstart.py by eight `jaxformer train` commands one after the other
          (each compiling, and with the cache that they share by default); by one process that takes them in turn
          and keeps its compiled program; shared out among processes; and as a cohort, one program spread over the cores
          of one process. `jaxformer ablate` takes the last way for one cell, and processes for several. Eight seeds of
          one cell, and two cells (8 and 4 heads) of four seeds.
          And the memory of each.
Command:  make benchmark BENCHMARK='--case=grid --rounds=1'
Result:   a table, one row for each way: medians over the rounds. In each round every way is taken once, in alternating
          order, in new directories and with an empty compilation cache; ratios are formed within a round, to the
          commands of the same eight runs and to the process that takes them in turn.
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
GRIDS = {'one cell': ((4,), 8), 'two cells': ((8, 4), 4)}
"""Name → (heads of each cell, seeds)."""

TURNS = ('--launcher=inline', '--config.cohort.mode=off')
WAYS: dict[tuple[str, str], tuple[str, ...] | None] = {
    ('one cell', 'commands, each compiling'): None,
    ('one cell', 'commands'): None,
    ('one cell', 'turns'): TURNS,
    ('one cell', 'processes'): ('--launcher=processes',),
    ('one cell', 'cohort (default)'): (),
    ('two cells', 'turns'): TURNS,
    ('two cells', 'cohorts'): ('--launcher=inline',),
    ('two cells', 'processes (default)'): (),
}
"""(grid, way) → what `jaxformer ablate` is told; None: eight times `jaxformer train`."""


def grid_file(heads: Sequence[int]) -> str:
    """A grid of configs/quickstart.py with so many heads."""
    return (
        '"""Eight runs."""\n\nfrom configs import quickstart\n\nget_config = quickstart.get_config\n\n\n'
        f'def grid():\n    return [{{"model.num_heads": heads}} for heads in {tuple(heads)}]\n'
    )


def arguments(way: tuple[str, str], scratch: Path, where: Path, changes: Sequence[str]) -> list[list[str]]:
    """The arguments of `jaxformer`, of one command after the other."""
    fields = [f'--config.{change}' for change in changes]
    cache = f'--config.runtime.compilation_cache={"" if "compiling" in way[1] else where / "cache"}'
    if (flags := WAYS[way]) is None:
        one = ['train', '--config=configs/quickstart.py', cache, *fields]
        return [[*one, f'--config.seed={seed}', f'--workdir={where / str(seed)}'] for seed in range(RUNS)]
    grid, seeds = scratch / f'{way[0].replace(" ", "_")}.py', GRIDS[way[0]][1]
    return [['ablate', f'--grid={grid}', f'--workdir={where}', f'--seeds={seeds}', cache, *flags, *fields]]


def measure(rounds: int, changes: Sequence[str]) -> list[dict[str, Any]]:
    """Seconds and bytes of each way, and its speed against others, in the order of WAYS.

    Raises:
      RunError: a command failed, or left a run unfinished.
    """
    seconds: dict[tuple[str, str], list[float]] = {way: [] for way in WAYS}
    peaks = dict.fromkeys(WAYS, 0)
    scratch = Path(tempfile.mkdtemp(prefix='benchmark-'))
    try:
        for name, (heads, _) in GRIDS.items():
            (scratch / f'{name.replace(" ", "_")}.py').write_text(grid_file(heads))
        for number in range(rounds):
            for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
                where = scratch / 'runs'
                begun = time.perf_counter()
                for command in arguments(way, scratch, where, changes):
                    peaks[way] = max(peaks[way], run(command))
                seconds[way].append(time.perf_counter() - begun)
                done = len(list(where.rglob('examples/dev.npz')))
                if done != RUNS:
                    raise RunError(f'{", ".join(way)}: {done} of {RUNS} runs are done')
                shutil.rmtree(where)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    against = lambda way, other: [b / a for a, b in zip(seconds[way], seconds[other], strict=True)]  # noqa: E731
    return [
        {
            'grid': way[0],
            'way': way[1],
            'seconds': spread(seconds[way]),
            'x commands': spread(against(way, ('one cell', 'commands'))),
            'x compiling': spread(against(way, ('one cell', 'commands, each compiling'))),
            'x turns': spread(against(way, (way[0], 'turns'))),
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
        if values['min'] == values['max']:
            return f'{values["median"]:{form}}'
        return f'{values["median"]:{form}} ({values["min"]:{form}} to {values["max"]:{form}})'

    ratios = ('x compiling', 'x commands', 'x turns')
    lines = [f'| eight runs | by | seconds | {" | ".join(ratios)} | memory |', '|---|---|---:|---:|---:|---:|---:|']
    for row in rows:
        figures = [cell(row['seconds'], '.0f'), *(cell(row[name], '.2f') for name in ratios)]
        lines.append(f'| {row["grid"]} | {row["way"]} | {" | ".join(figures)} | {row["peak_bytes"] / 1e9:.2f} GB |')
    return '\n'.join(lines)
