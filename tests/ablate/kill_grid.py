"""Kills a grid again and again, and proves that it ends as if nothing had happened.

    python tests/ablate/kill_grid.py [--kills=20] [--seed=0] [--directory=DIR]

A grid of 2 × 4 cells with 3 seeds goes straight through. A second one is killed with SIGKILL at random moments and
started again each time by the same command, in turn as one process and as a parent with two workers; of the latter
sometimes the parent alone is killed, and the next command meets workers that are about to leave. In the end all 24 runs
are done, no file of a run was touched after it was done, and the metrics are those of the first grid: to 1e-5, as a run
that lost its company goes on alone, and may round otherwise. Exit status 1 where something differs.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS, STEPS, SAVE_EVERY = 24, 12, 5
GRID = '''"""Killed again and again.

Question: does it end as if nothing had happened?
"""

from configs import gpt_tiny
from jaxformer.ablate.grid import product


def get_config():
    config = gpt_tiny.get_config()
    config.model.d_model = 12
    config.model.d_ff = 10
    config.model.num_heads = 3
    config.model.num_layers = 1
    config.model.dropout.residual = 0.1
    config.model.max_length = 64
    config.optim.warmup_steps = 3
    config.train.num_steps = {steps}
    config.train.batch_size = 6
    config.train.log_every = 1
    config.train.checkpoint_every = {save_every}
    config.train.keep_checkpoints = 1
    config.eval.every = 0
    config.eval.batch_size = 6
    config.data.name = 'text'
    config.data.source = '{directory}/{{split}}.txt'
    config.data.dir = '{directory}/data'
    config.data.buckets = ((32,),)
    config.cohort.size = 2
    return config


def grid():
    return product({{'model.num_heads': (3, 2), 'optim.learning_rate': (1e-2, 3e-3, 1e-3, 3e-4)}})
'''
# Compiling in a hurry, as tests/quick.py does it.
FLAGS = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'


class Grid:
    """The command, and what it leaves."""

    def __init__(self, directory: Path, workdir: Path):
        self.file, self.workdir = directory / 'killed.py', workdir
        self.log = workdir.with_suffix('.log')
        self.finished: dict[Path, dict[str, tuple[int, str]]] = {}

    def start(self, workers: int, *flags: str) -> subprocess.Popen:
        launcher = ['--launcher=inline'] if workers == 1 else ['--launcher=processes', f'--workers={workers}']
        command = ['ablate', f'--grid={self.file}', f'--workdir={self.workdir}', '--seeds=3', *launcher, *flags]
        env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': FLAGS, 'PYTHONPATH': str(ROOT)}
        with self.log.open('a') as log:
            return subprocess.Popen(
                [sys.executable, '-m', 'jaxformer.main', *command], env=env, stdout=log, stderr=log, cwd=ROOT
            )

    def finish(self, workers: int) -> None:
        process = self.start(workers)
        if process.wait():
            sys.exit(f'{self.workdir}: exit status {process.returncode}\n{self.log.read_text()[-3000:]}')

    def runs(self) -> list[Path]:
        return sorted(self.workdir.glob('cells/*/seed-*'))

    def status(self, run: Path) -> dict:
        path = run / 'status.json'
        return json.loads(path.read_text()) if path.exists() else {'status': 'missing'}

    def steps(self) -> int:
        """The sum of the last steps that the runs have logged."""
        total = 0
        for run in self.runs():
            path = run / 'metrics.jsonl'
            rows = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
            total += json.loads(rows[-1])['step'] if rows else 0
        return total

    def look_at_finished(self) -> list[str]:
        """What changed in runs that were done when one last looked; those that are done now are looked at next time."""
        from jaxformer import files

        changed = []
        for run in self.runs():
            if run not in self.finished and self.status(run)['status'] != 'done':
                continue
            names = [path for path in sorted(run.rglob('*')) if path.is_file() and '.claim' not in path.parts]
            found = {str(path.relative_to(run)): (path.stat().st_mtime_ns, files.sha256(path)) for path in names}
            before = self.finished.setdefault(run, found)
            changed += [f'{run}/{name}' for name in {*before, *found} if before.get(name) != found.get(name)]
        return changed


def kill(process: subprocess.Popen, everything: bool) -> bool:
    """True where it still lived. With `everything` its workers are killed as well."""
    children = Path(f'/proc/{process.pid}/task/{process.pid}/children')
    pids = children.read_text().split() if everything and children.exists() else []
    alive = process.poll() is None
    process.kill()
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    return alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=20)
    parser.add_argument('--seed', type=int, default=0, help='of the moments')
    parser.add_argument('--directory', type=Path, help='where the grids go and stay; a temporary one without it')
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        return compare(directory, options.kills, random.Random(options.seed))


def write_grid(directory: Path) -> None:
    """The grid's file and its data."""
    rng = random.Random(0)
    for split, lines in (('train', 200), ('dev', 6), ('test', 6)):
        text = '\n'.join(''.join(rng.choices('abcdefg ', k=20)) for _ in range(lines))
        (directory / f'{split}.txt').write_text(text + '\n')
    (directory / 'killed.py').write_text(GRID.format(directory=directory, steps=STEPS, save_every=SAVE_EVERY))


def compare(directory: Path, kills: int, rng: random.Random) -> int:
    write_grid(directory)
    straight, killed = Grid(directory, directory / 'straight'), Grid(directory, directory / 'killed')
    begun = time.monotonic()
    straight.finish(2)
    whole = time.monotonic() - begun
    print(f'straight: {RUNS} runs in {whole:.1f} s', flush=True)

    targets = sorted(rng.uniform(0, 0.85 * RUNS * STEPS) for _ in range(kills))
    hit, changed, start_seconds = 0, [], 0.0
    for number, target in enumerate(targets):
        workers = rng.choice((1, 2))
        everything = workers == 1 or rng.random() < 0.5
        early = number > 1 and rng.random() < 0.3
        process, begun, stood = killed.start(workers), time.monotonic(), killed.steps()
        if early:
            moment = begun + rng.random() * start_seconds
            while time.monotonic() < moment and killed.steps() <= max(target, stood):
                time.sleep(0.01)
        else:
            # Progress of its own, or the grid would stand still.
            while process.poll() is None and killed.steps() <= max(target, stood):
                time.sleep(0.01)
            start_seconds = start_seconds or time.monotonic() - begun
            time.sleep(0.2 * rng.random())
        hit += kill(process, everything)
        changed += killed.look_at_finished()
        states = [killed.status(run)['status'] for run in killed.runs()]
        print(
            f'kill {number + 1:>2}: {"starting" if early else "working "} {workers} worker{"s" * (workers > 1):<1} '
            f'{"all" if everything else "parent alone":<12} {killed.steps():>3} of {RUNS * STEPS} steps, '
            f'{states.count("done")} done',
            flush=True,
        )
    before = len(killed.finished)
    killed.finish(2)
    changed += killed.look_at_finished()

    wrong = [f'changed after it was done: {name}' for name in changed]
    for run in straight.runs():
        name = run.relative_to(straight.workdir)
        a, b = straight.status(run), killed.status(killed.workdir / name)
        if a['status'] != 'done' or b['status'] != 'done':
            wrong.append(f'{name}: {a["status"]}, {b["status"]}')
            continue
        different = [
            key for key in a['metrics'] if not math.isclose(a['metrics'][key], b['metrics'][key], rel_tol=1e-5)
        ]
        wrong += [f'{name}: {key} is {a["metrics"][key]} and {b["metrics"][key]}' for key in different]
        rows = [json.loads(row) for row in (killed.workdir / name / 'metrics.jsonl').read_text().splitlines()]
        logged = [row['step'] for row in rows if 'train/loss' in row]
        if logged != list(range(1, STEPS + 1)):
            wrong.append(f'{name}: logged the steps {logged}')
    if not len(straight.runs()) == len(killed.runs()) == RUNS or hit < kills or not 0 < before < RUNS:
        wrong.append(
            f'{len(killed.runs())} runs, {hit} of {kills} kills hit, {before} were done before: proves nothing'
        )
    pairs = zip(straight.runs(), killed.runs(), strict=False)
    equal = sum(straight.status(a).get('metrics') == killed.status(b).get('metrics') for a, b in pairs)
    print(f'{hit} kills; {len(killed.finished)} runs done, {len(wrong)} complaints; {equal} of {RUNS} equal to the bit')
    print('\n'.join(wrong))
    return int(bool(wrong))


if __name__ == '__main__':
    sys.exit(main())
