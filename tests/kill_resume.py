"""Kills a run again and again, and proves that it ends as if nothing had happened.

    python tests/kill_resume.py [--kills=10] [--steps=200] [--seed=0] [--directory=DIR]

One run goes straight through. A second one of the same configuration (dropout, shuffling, two buckets, many epochs) is
killed with SIGKILL while it starts, between any two of its instructions while it trains, and while it saves, and is
started again each time by the same command. Parameters, optimiser state, data position and every logged number, example
ids included, must be equal to the bit. Exit status 1 where something differs.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAVE_EVERY = 17  # divides neither the steps, nor the batches of an epoch, nor the steps between evaluations


def command(workdir: Path, steps: int) -> list[str]:
    changes = {
        'seed': 5,
        'model.d_model': 24,
        'model.d_ff': 20,
        'train.num_steps': steps,
        'train.batch_size': 8,
        'train.log_every': 1,
        'train.log_example_ids': True,
        'train.inspect_every': 7,
        'train.checkpoint_every': SAVE_EVERY,
        'train.keep_checkpoints': 2,
        'eval.every': 40,
        'data.num_examples': 99,  # 13 batches an epoch
    }
    fields = [f'--config.{name}={value}' for name, value in changes.items()]
    config = ROOT / 'configs' / 'tiny.py'
    return [sys.executable, '-m', 'jaxformer.main', 'train', f'--config={config}', f'--workdir={workdir}', *fields]


class Process:
    """The command, running; its standard error goes to a file beside the run."""

    def __init__(self, workdir: Path, steps: int):
        environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
        self.workdir = workdir
        self.log = workdir.with_suffix('.log')
        with self.log.open('a') as log:
            self.running = subprocess.Popen(command(workdir, steps), env=environment, stdout=log, stderr=log)
        self.begun = time.monotonic()

    def wait_for(self, happened) -> bool:
        """True once `happened()`, False where the process ends before."""
        while self.running.poll() is None:
            if happened():
                return True
            time.sleep(0.001)
        return False

    def finish(self) -> float:
        """Seconds that it ran for."""
        if self.running.wait():
            sys.exit(f'{self.workdir}: exit status {self.running.returncode}\n{self.log.read_text()[-3000:]}')
        return time.monotonic() - self.begun

    def kill(self) -> bool:
        """True where it still lived."""
        alive = self.running.poll() is None
        self.running.kill()
        self.running.wait()
        return alive


def logged(workdir: Path) -> list[dict]:
    """The whole lines of metrics.jsonl."""
    path = workdir / 'metrics.jsonl'
    rows = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
    return [json.loads(row) for row in rows]


def last_step(workdir: Path) -> int:
    return max((line['step'] for line in logged(workdir)), default=0)


def saved(workdir: Path) -> set[str]:
    """Names in the directory of the checkpoints, half saved ones included."""
    return {path.name for path in (workdir / 'checkpoints').glob('*')}


def moments(kills: int, steps: int, rng: random.Random) -> list[tuple[str, int, float]]:
    """(kind, step it waits for, share of a start or of a step after that) of each kill, in the order of the steps.

    A third of the kills each for a start, the steps and the saving; the steps are drawn one from each equal part of
    the run, so that early and late ones are hit.
    """
    kinds = [('start', 'step', 'save')[i % 3] for i in range(kills)]
    rng.shuffle(kinds)
    parts = max(kills - kinds.count('start'), 1)
    latest = steps - 2 * SAVE_EVERY
    targets = sorted(rng.randrange(i * latest // parts, (i + 1) * latest // parts) for i in range(parts))
    after = iter(targets)
    return [(kind, 0 if kind == 'start' else next(after) + 1, rng.random()) for kind in kinds]


def kill_at(workdir: Path, steps: int, moment: tuple[str, int, float], start_seconds: float) -> str | None:
    """Starts the run and kills it; says where, or None where it was over before."""
    kind, step, share = moment
    process = Process(workdir, steps)
    if kind == 'start':
        time.sleep(share * start_seconds)
    else:
        process.wait_for(lambda: last_step(workdir) >= step and time.monotonic() - process.begun > start_seconds / 4)
        if kind == 'save':
            before = saved(workdir)
            process.wait_for(lambda: saved(workdir) - before)
        time.sleep(share * (0.02 if kind == 'save' else 0.05))
    if not process.kill():
        return None
    partial = sorted(name for name in saved(workdir) if not name.isdecimal())
    return f'{kind:<5}  last step {last_step(workdir):>4}  half saved: {", ".join(partial) or "-"}'


def leaves(workdir: Path) -> dict[str, str]:
    """What must be equal → its SHA-256 (of each array its bytes)."""
    import jax
    import numpy as np

    from jaxformer import checkpoint, config, files, optim, sharding
    from jaxformer.data.vocab import Vocabulary
    from jaxformer.model import transformer
    from jaxformer.train import state as states

    cfg = config.from_dict(files.read_json(workdir / files.CONFIG))
    vocab = Vocabulary.from_json(files.read_json(workdir / files.VOCAB))
    target = states.abstract(
        transformer.build(cfg.model, len(vocab)), optim.build(cfg), sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    )
    directory = workdir / files.CHECKPOINTS
    state, data = checkpoint.restore(directory, checkpoint.newest_whole(directory), target)
    named = {sharding.path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    bits = {name: array.tobytes() for name, array in named.items()}
    bits['data position'] = json.dumps(data).encode()
    for line in logged(workdir):
        for name, value in line.items():
            if name not in ('step', 'time', 'compilations', 'train/tokens_per_second'):
                bits[f'logged {name}'] = bits.get(f'logged {name}', b'') + json.dumps([line['step'], value]).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in bits.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=10)
    parser.add_argument('--steps', type=int, default=200)
    parser.add_argument('--seed', type=int, default=0, help='of the moments, not of the run')
    parser.add_argument('--directory', type=Path, help='where the runs go and stay; a temporary one without it')
    options = parser.parse_args()
    if options.steps < 3 * SAVE_EVERY:
        parser.error(f'--steps={options.steps}: at least {3 * SAVE_EVERY}, so that there is something to lose')
    os.environ['JAX_PLATFORMS'] = 'cpu'
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        return compare(directory, options.kills, options.steps, random.Random(options.seed))


def compare(directory: Path, kills: int, steps: int, rng: random.Random) -> int:
    straight, killed = directory / 'straight', directory / 'killed'
    if straight.exists() or killed.exists():
        sys.exit(f'{directory}: there are runs in it already; choose another directory')
    whole = Process(straight, steps).finish()  # compiles, and fills the cache for the others
    timed = Process(directory / 'timed', steps)
    timed.wait_for(lambda: last_step(directory / 'timed'))
    start_seconds = time.monotonic() - timed.begun
    timed.kill()
    print(f'straight: {steps} steps in {whole:.1f} s; a start until its first step: {start_seconds:.1f} s', flush=True)

    begun = {'start': 0, 'step': 0, 'save': 0}
    for number, moment in enumerate(moments(kills, steps, rng), start=1):
        where = kill_at(killed, steps, moment, start_seconds)
        print(f'kill {number:>2}: {where or "came too late, the run was over"}', flush=True)
        begun[moment[0]] += where is not None
    last = Process(killed, steps)
    last.finish()

    a, b = leaves(straight), leaves(killed)
    different = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    print('\nSHA-256 of the straight run, of the killed run, and of what')
    for group in ('params', 'opt_state', 'data position', 'logged example_ids', 'logged train/loss', ''):
        members = [[value for name, value in sorted(side.items()) if name.startswith(group)] for side in (a, b)]
        sums = [hashlib.sha256(''.join(member).encode()).hexdigest()[:16] for member in members]
        print(f'{sums[0]}  {sums[1]}  {group or "everything"} ({len(members[0])})')
    for name in different:
        print(f'DIFFERS: {name}')
    print(f'{len(different)} of {len(a)} differ after {sum(begun.values())} kills: {begun}')
    if begun['step'] + begun['save'] < (kills - kills // 3) // 2 + (kills > 1):
        print('too few of the kills fell into the training: nothing is proved')
        return 1
    return 1 if different else 0


if __name__ == '__main__':
    sys.exit(main())
