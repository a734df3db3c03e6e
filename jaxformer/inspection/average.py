"""The mean of a run's last checkpoints as a run of its own (AIAYN 6.1: the last 5 of base, 20 of big).

  jaxformer average --workdir=RUN --last=5 --output=RUN2
  jaxformer eval --workdir=RUN2 --against=RUN

RUN2 has one checkpoint, at the step of the newest of them, with parameters alone: it is evaluated, decoded, inspected,
exported and begun with (train.start_from), and no training goes on in it.
"""

from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint, config, files
from jaxformer.decode import int8
from jaxformer.decode.open import read_config
from jaxformer.errors import UserError
from jaxformer.train import directory as directories


def run(workdir: epath.PathLike, last: int, output: epath.PathLike) -> list[int]:
    """Makes `output` the mean of the `last` newest whole checkpoints of a run; returns their steps, ascending.

    A damaged checkpoint is passed over with a warning. The mean is taken in float64 and rounded once, to the type of
    the parameter; one checkpoint is read at a time. Of a run with train.ema_decay the moving averages are averaged.

    Raises:
      UserError: no run, fewer whole checkpoints than that, or `output` holds a run already or cannot be written.
    """
    workdir, output = epath.Path(workdir).expanduser(), epath.Path(output).expanduser()
    cfg = read_config(workdir)
    if last < 1:
        raise UserError(f'--last={last}: at least 1')
    if (output / files.CONFIG).exists() or (output / files.GRID).exists():
        raise UserError(f'--output={output}: holds a run (or a grid) already; choose another directory')
    steps = _newest(workdir, last)
    params = mean(workdir / files.CHECKPOINTS, steps)
    with directories.claimed(cfg, output):
        checkpoint.save(output / files.CHECKPOINTS, steps[-1], {'params': params}, {}, config.to_dict(cfg), keep=1)
        for name in (files.VOCAB, files.DATA):
            if (workdir / name).exists():
                files.write_atomic(output / name, (workdir / name).read_bytes())
        files.write_json(output / directories.AVERAGE, {'run': str(workdir), 'steps': steps})
        files.write_json(output / files.CONFIG, config.to_dict(cfg))
    return steps


def mean(directory: epath.PathLike, steps: list[int]) -> Any:
    """The mean of the parameters of some checkpoints, by number in float64."""
    total = dtypes = None
    for step in steps:
        params = int8.floats(checkpoint.restore_params(directory, step))
        if total is None:
            total, dtypes = jax.tree.map(_double, params), jax.tree.map(lambda leaf: leaf.dtype, params)
        else:
            total = jax.tree.map(lambda sum_, leaf: sum_ + _double(leaf), total, params)
    return jax.tree.map(lambda sum_, dtype: (sum_ / len(steps)).astype(dtype), total, dtypes)


def _double(leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf).astype(np.float64)


def _newest(workdir: epath.Path, last: int) -> list[int]:
    directory, found = workdir / files.CHECKPOINTS, []
    for step in reversed(checkpoint.steps(directory)):
        if reason := checkpoint.check(directory / str(step)):
            logging.warning('%s: damaged checkpoint skipped: %s', directory / str(step), reason)
            continue
        found.append(step)
        if len(found) == last:
            return found[::-1]
    raise UserError(
        f'--last={last}: {workdir} has {len(found)} whole checkpoints; '
        f'train with config.train.keep_checkpoints={last}, or average fewer'
    )
