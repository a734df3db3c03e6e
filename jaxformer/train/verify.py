"""A proof, for one config on one machine, that a run which is stopped and goes on is the run that never stopped.

Three trainings in a temporary directory, each with data, iterator and compiled programs of its own: one straight, one
that SIGTERM stops in the middle, one that goes on with what that one saved. Compared to the bit: the ids of the
examples of every step, everything that is logged but for times, where the data stands, and every array of the state.
"""

import dataclasses
import json
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxformer import checkpoint, files, sharding
from jaxformer.errors import RunError
from jaxformer.schema import Config
from jaxformer.train import loop
from jaxformer.train.program import Program
from jaxformer.train.signals import Preempted
from jaxformer.train.writer import METRICS, read_metrics

LEAST_STEPS = 4
_OF_THE_CLOCK = ('step', 'time', 'compilations')
_GROUPS = {
    'example_ids': 'example ids',
    'data': 'data position',
    'params': 'parameters',
    'opt_state': 'optimiser state',
}

Compared = dict[tuple[str, int | None], Any]
"""(name, step that it was logged at) → what must be equal, an array where it is of the state."""


class _Stopping:
    """The update of a program; SIGTERM comes while it is called for the n-th time."""

    def __init__(self, update: Any, after: int) -> None:
        self._update, self._left = update, after

    def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        if not self._left:
            signal.raise_signal(signal.SIGTERM)
        return self._update(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


def resume(cfg: Config, steps: int) -> str:
    """What was compared, in lines.

    Args:
      cfg: what it says of train.num_steps and of the log is put aside; evaluation is that of the config.
      steps: of the straight run; the other is stopped after half of them.

    Raises:
      RunError: something differs; the first difference by name and step, with both values.
    """
    train = dataclasses.replace(cfg.train, num_steps=steps, log_every=1, log_example_ids=True)
    cfg, middle = dataclasses.replace(cfg, train=train), steps // 2
    with tempfile.TemporaryDirectory(prefix='jaxformer-verify-') as temporary:
        straight, stopped = (epath.Path(temporary) / name for name in ('straight', 'stopped'))
        loop.train(cfg, straight, Program(cfg))
        stopping = Program(cfg)
        stopping.update = _Stopping(stopping.update, middle)  # type: ignore[assignment]
        try:
            loop.train(cfg, stopped, stopping)
        except Preempted:
            pass
        else:
            raise RunError('the run was over before the signal was heard; ask for more --steps')
        program = Program(cfg)
        loop.train(cfg, stopped, program)
        expected, found = (_compared(path, program) for path in (straight, stopped))
    for name in [*expected, *(name for name in found if name not in expected)]:
        if difference := _difference(expected.get(name), found.get(name)):
            where = name[0] if name[1] is None else f'{name[0]} of step {name[1]}'
            raise RunError(f'resume is not exact: {where}: {difference} (stopped after step {middle} of {steps})')
    return f'straight: {steps} steps; stopped by SIGTERM after step {middle}, gone on to {steps}\n' + _told(expected)


def _compared(workdir: epath.Path, program: Program) -> Compared:
    """In the order of what happens: what went in, what was logged, what is left."""
    lines = read_metrics(workdir / METRICS)
    logged: Compared = {
        (name, line['step']): line[name]
        for line in lines
        for name in sorted(line, key=lambda name: name != 'example_ids')
        if name not in _OF_THE_CLOCK and not name.endswith('_per_second')
    }
    checkpoints = workdir / files.CHECKPOINTS
    step = checkpoint.steps(checkpoints)[-1]
    state, data = checkpoint.restore(checkpoints, step, program.target)
    left: Compared = {('data', None): json.dumps(data)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        left[sharding.path_name(path), None] = np.asarray(leaf)
    return logged | left


def _difference(expected: Any, found: Any) -> str:
    """'' where they are equal to the bit."""
    if expected is None or found is None:
        return 'only resumed' if expected is None else 'only straight'
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray):
        return '' if json.dumps(expected) == json.dumps(found) else f'{expected} straight, {found} resumed'
    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        return f'{expected.dtype}{expected.shape} straight, {found.dtype}{found.shape} resumed'
    if expected.tobytes() == found.tobytes():
        return ''
    a, b = (np.frombuffer(side.tobytes(), np.uint8).reshape(side.size, -1) for side in (expected, found))
    other = np.any(a != b, axis=1)
    first = int(np.argmax(other))
    here, there = (side.ravel()[first].item() for side in (expected, found))
    return f'{other.sum()} of {other.size} numbers, the first {here!r} straight, {there!r} resumed'


def _told(compared: Compared) -> str:
    return '\n'.join(f'equal to the bit: {count:>7,} {name}' for name, count in _counts(compared))


def _counts(compared: Compared) -> Iterator[tuple[str, int]]:
    of_group: dict[str, int] = {}
    for (name, step), value in compared.items():
        group = 'logged numbers' if step is not None else 'counters'
        group = _GROUPS.get(name.split('/')[0], group)
        size = value.size if isinstance(value, np.ndarray) else len(value) if isinstance(value, list) else 1
        of_group[group] = of_group.get(group, 0) + size
    yield from of_group.items()
