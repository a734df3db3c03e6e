"""Runs of a second: a model of a few hundred parameters that reverses sequences, and ways to look at what it leaves."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from jaxformer import checkpoint, config, files, optim, sharding
from jaxformer.data.vocab import Vocabulary
from jaxformer.model import transformer
from jaxformer.schema import Config
from jaxformer.train import state as states
from jaxformer.train import writer

ROOT = Path(__file__).parents[2]
CACHE = os.environ.get('JAXFORMER_TEST_CACHE') or str(Path('~/.cache/jaxformer/test-data').expanduser())

CHANGES = {
    'seed': 3,
    'model.d_model': 12,
    'model.d_ff': 10,
    'model.num_heads': 3,
    'model.num_layers': 1,
    'optim.schedule': 'noam',
    'optim.learning_rate': 1.0,
    'optim.warmup_steps': 10,
    'train.num_steps': 27,  # three epochs of nine batches, the last of each with one padding row
    'train.batch_size': 6,
    'train.log_every': 1,
    'train.log_example_ids': True,
    'train.checkpoint_every': 5,
    'train.keep_checkpoints': 3,
    'eval.every': 10,
    'eval.batch_size': 3,
    'eval.max_decode_length': 7,
    'data.num_examples': 53,
    'data.dir': CACHE,
    'data.buckets': ((5, 5), (9, 9)),
}


QUICK = {'data.buckets': ((9, 9),), 'train.num_steps': 20}
"""Changes for tests that look at training alone: one shape to compile."""


class NoEvaluator:
    """Takes the place of `program.Evaluator` and `program.Decoder`: says something, at no cost."""

    sums = search = type('Jit', (), {'compilations': 0})()

    def __init__(self, *args):
        pass

    def batches(self, split):
        return type('Batches', (), {'num_examples': 99})()

    def examples(self, params, split):
        return {'example_id': np.arange(3)}

    def totals(self, examples, split=None):
        return {'loss': 1.5, 'per': 0.5, 'wer': 0.75}


def changes(more: dict | None = None) -> dict:
    return {**CHANGES, **(more or {})}


def make(more: dict | None = None) -> Config:
    """configs/tiny.py, smaller, with `more` changes."""
    loaded = config.load(ROOT / 'configs' / 'tiny.py')
    config.override(loaded, changes(more))
    return config.resolve(loaded)


def arguments(workdir, more: dict | None = None) -> list[str]:
    """The same run for the command line."""
    fields = [f'--config.{name}={value}' for name, value in changes(more).items()]
    return ['train', f'--config={ROOT / "configs" / "tiny.py"}', f'--workdir={workdir}', *fields]


def process(*command: str, devices: int = 1, **options) -> subprocess.Popen:
    """`python command…` with so many CPU devices."""
    env = {
        **os.environ,
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
        'PYTHONPATH': os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
    }
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    return subprocess.Popen([sys.executable, *command], env=env, **{**pipes, **options})


def run_process(*command: str, devices: int = 1) -> subprocess.CompletedProcess:
    with process(*command, devices=devices) as running:
        out, err = running.communicate(timeout=900)
    return subprocess.CompletedProcess(command, running.returncode, out, err)


def state(workdir, step: int | None = None, cfg: Config | None = None) -> dict[str, np.ndarray]:
    """Path → array of every leaf of a checkpoint's state, and where the data stands."""
    workdir = epath.Path(workdir)
    cfg = cfg or config.from_dict(files.read_json(workdir / files.CONFIG))
    vocab = Vocabulary.from_json(files.read_json(workdir / files.VOCAB))
    mesh = jax.make_mesh((1,) * 4, sharding.AXES, devices=jax.devices()[:1])
    target = states.abstract(transformer.build(cfg.model, len(vocab)), optim.build(cfg), mesh)
    step = checkpoint.newest_whole(workdir / files.CHECKPOINTS) if step is None else step
    restored, data = checkpoint.restore(workdir / files.CHECKPOINTS, step, target)
    named = {sharding.path_name(p): np.asarray(leaf) for p, leaf in jax.tree_util.tree_leaves_with_path(restored)}
    return {**named, 'data/next_index': np.asarray(data['next_index'])}


def assert_bit_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
    assert not different, f'{len(different)} of {len(a)} arrays differ: {different}'


def lines(workdir, key: str) -> dict[int, object]:
    """Step → value of `key` in metrics.jsonl; no step comes twice and all come in order."""
    found = [
        (line['step'], line[key]) for line in writer.read_metrics(epath.Path(workdir) / writer.METRICS) if key in line
    ]
    assert found == sorted(found, key=lambda item: item[0]) and len(dict(found)) == len(found), [s for s, _ in found]
    return dict(found)


def series(workdir) -> dict[str, dict[int, object]]:
    """All that metrics.jsonl says and that a rerun must say again: everything but times and counts of compilations."""
    names = {name for line in writer.read_metrics(epath.Path(workdir) / writer.METRICS) for name in line}
    names -= {'step', 'time', 'train/tokens_per_second', 'compilations'}
    return {name: lines(workdir, name) for name in sorted(names)}


def status(workdir) -> dict:
    return writer.read_status(workdir)


def checkpoints(workdir) -> list[int]:
    """The steps that have a checkpoint; each is whole."""
    directory = epath.Path(workdir) / files.CHECKPOINTS
    steps = checkpoint.steps(directory)
    assert all(checkpoint.check(directory / str(step)) is None for step in steps)
    return steps


def snapshot(workdir) -> dict[str, tuple[int, bytes]]:
    """Every file with the time of its last change and its content."""
    files_below = sorted(p for p in Path(workdir).rglob('*') if p.is_file())
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in files_below}


@contextlib.contextmanager
def disk(path, size='64m'):
    """A small file system of its own; `set_(option)` changes it."""
    path.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(path)]
    if os.getuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip('needs the right to mount a small file system (mount -t tmpfs)')
    try:
        yield lambda option: subprocess.run(['mount', '-o', f'remount,{option}', str(path)], check=True)
    finally:
        subprocess.run(['umount', '-l', str(path)], check=True)
