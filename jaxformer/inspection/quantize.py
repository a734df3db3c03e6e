"""A run's checkpoint with int8 weights, as a run of its own, and what that costs.

  jaxformer export --quantize=int8 --workdir=RUN --output=RUN2 --split=dev

RUN2 is evaluated, decoded and inspected as RUN; its weights are int8 in memory, too, and numbers while a compiled step
or search goes on.
No training goes on in it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxformer import checkpoint, config, files
from jaxformer.data.corpus import Split
from jaxformer.data.splits import PairSplit
from jaxformer.decode import int8
from jaxformer.decode.open import find_step, on_every_device, open_run, read_config
from jaxformer.decode.predict import Decoder
from jaxformer.errors import UserError
from jaxformer.train import directory as directories
from jaxformer.train.evaluate import Evaluator
from jaxformer.train.score import subject

KINDS = ('int8',)
"""Values of --quantize."""

ROUNDS = 3


def run(workdir: epath.PathLike, step: int | None, output: epath.PathLike, split: str | None = None) -> dict[str, Any]:
    """Makes `output` the run of a checkpoint with int8 weights (see `decode/int8.py`); returns what is said of it.

    That is the bytes of the parameters before and after, the norm of what rounding changed over that of the rounded,
    and its greatest change in halves of a step of its scale, which is at most 1. With a `split` also the metrics of
    both on it, and the seconds that decoding it takes, the least of some rounds (of other families than seq2seq: its
    losses).

    Raises:
      UserError: no run or step, weights that are int8 already, or `output` holds a run or cannot be written.
    """
    workdir, output = epath.Path(workdir).expanduser(), epath.Path(output).expanduser()
    cfg, step = read_config(workdir), find_step(workdir, step)
    if (output / files.CONFIG).exists() or (output / files.GRID).exists():
        raise UserError(f'--output={output}: holds a run (or a grid) already; choose another directory')
    params = checkpoint.restore_params(workdir / files.CHECKPOINTS, step)
    if int8.any_rounded(params):
        raise UserError(f'--workdir={workdir}: its weights are int8 already')
    rounded = int8.rounded(params)
    with directories.claimed(cfg, output):
        checkpoint.save(output / files.CHECKPOINTS, step, {'params': rounded}, {}, config.to_dict(cfg), keep=1)
        for name in (files.VOCAB, files.DATA):
            if (workdir / name).exists():
                files.write_atomic(output / name, (workdir / name).read_bytes())
        files.write_json(output / directories.INT8, {'run': str(workdir), 'step': step})
        files.write_json(output / files.CONFIG, config.to_dict(cfg))
    found: dict[str, Any] = {'bytes': _bytes(params), 'int8_bytes': _bytes(rounded)}
    found |= {'bytes_ratio': found['int8_bytes'] / found['bytes'], **_errors(params, rounded)}
    if split:
        both = {'': workdir, 'int8_': output}
        judged = {name: subject(directory, step, split) for name, directory in both.items()}
        seconds = _seconds([_work(directory, step, judged[name].split) for name, directory in both.items()])
        for name, taken in zip(both, seconds, strict=True):
            found |= {f'{name}{key}': value for key, value in judged[name].measured().metrics.items()}
            found[f'{name}seconds'] = taken
    return found


def refuse_unknown(kind: str) -> None:
    """Raises UserError where `kind` is not one of KINDS."""
    if kind not in KINDS:
        raise UserError(f'--quantize={kind}: choose one of {", ".join(KINDS)}')


def _work(workdir: epath.PathLike, step: int, split: Split) -> Callable[[], Any]:
    """What judging a run by a split has to compute: outputs, or of other families than seq2seq losses."""
    opened = open_run(workdir, step, keep_int8=True)
    mesh, params = on_every_device(opened)
    if isinstance(split, PairSplit):
        decoder = Decoder(opened.cfg, opened.model, opened.vocab, mesh)
        return lambda: decoder.outputs(params, split)
    evaluator = Evaluator(opened.cfg, opened.model, mesh)
    return lambda: evaluator.examples(params, split)


def _seconds(works: Sequence[Callable[[], Any]]) -> list[float]:
    """The least of ROUNDS for each, taken in turn, after all is compiled."""
    taken: list[list[float]] = [[] for _ in works]
    for number in range(1 + ROUNDS):
        for work, times in zip(works, taken, strict=True):
            begun = time.perf_counter()
            work()
            if number:
                times.append(time.perf_counter() - begun)
    return [min(times) for times in taken]


def _bytes(tree: Any) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))


def _errors(params: Any, rounded: Any) -> dict[str, float]:
    """relative_error: |w − scale · q| / |w| of all that is rounded; half_steps: max |w − scale · q| / (scale / 2)."""
    worst = apart_squared = squared = 0.0
    for leaf, form in zip(jax.tree.leaves(params), jax.tree.leaves(rounded, is_leaf=int8.is_rounded), strict=True):
        if int8.is_rounded(form):
            scale, weights = np.asarray(form[int8.SCALE], np.float64), np.asarray(leaf, np.float64)
            apart = np.abs(weights - scale * form[int8.Q])
            worst = max(worst, float(np.max(2 * apart / scale)))
            apart_squared, squared = apart_squared + float(np.sum(apart**2)), squared + float(np.sum(weights**2))
    return {'relative_error': (apart_squared / squared) ** 0.5 if squared else 0.0, 'half_steps': worst}
