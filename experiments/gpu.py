"""How fast is AIAYN base on one accelerator, with which kernel of attention, and how do eight runs share it?

Question: (a) tokens per second and share of the device's peak of configs/base.py in bfloat16, for each choice of
          model.attention.kernel, with batches of sentences and of long texts; (b) the time of a step of eight members
          of a cohort by cohort.mode=vmap and =map, against the same eight steps one after the other.
Command:  python experiments/gpu.py --output=DIR
          without an accelerator, to try the script: python experiments/gpu.py --allow-cpu --size=tiny --output=DIR
Hardware: one GPU (or TPU) that JAX sees: pip install 'jax[cuda12]'; CUDA_VISIBLE_DEVICES=0 chooses one of several.
Result:   DIR/gpu.json and DIR/gpu.md. Medians over the rounds, with the least and the greatest. In each round every
          side takes the same batches, in alternating order; ratios are formed within a round.
"""

import argparse
import dataclasses
import functools
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs import base, quickstart
from experiments import benchmark, scaling
from experiments.benchmark import JaxSide, spread
from jaxformer import choices, config, files, hyperparameters, optim, runtime, sharding
from jaxformer.ablate import flops, together
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.schema import Config
from jaxformer.train import memory
from jaxformer.train import state as states
from jaxformer.train import step as steps

PEAKS = {
    'H200': scaling.HARDWARE['H200'].peak,
    'H100': scaling.HARDWARE['H200'].peak,  # the same chip, with another memory
    'A100': 312e12,  # nvidia.com/en-us/data-center/a100
    'TPU v5p': scaling.HARDWARE['v5p'].peak,
}
"""Part of a device's name → its operations/s in bfloat16."""

MEMBERS = 8

TINY = {
    **{'model.d_model': 12, 'model.num_heads': 3, 'model.d_ff': 10, 'model.num_layers': 1, 'model.vocab_size': 71},
    'train.batch_size': 2,
    'runtime.compilation_cache': '',  # leaves the one that JAX has
}
KERNEL_CASES: dict[str, dict[str, dict[str, Any]]] = {
    'full': {
        'sentences': {'train.batch_size': 512, 'data.buckets': ((48, 48),)},
        'long texts': {'train.batch_size': 6, 'data.buckets': ((4096, 4096),)},
    },
    'tiny': {'sentences': TINY | {'data.buckets': ((5, 7),)}},
}
"""--size → case → changes of configs/base.py; full: 24,576 source and as many target tokens in either."""

COHORT_CASES: dict[str, dict[str, dict[str, Any]]] = {
    'full': {
        'quickstart': {'model.vocab_size': 75, 'data.buckets': ((9, 8),)},  # the bucket of most of its batches
        'quickstart, four times as wide': {
            **{'model.vocab_size': 75, 'model.d_model': 384, 'model.d_ff': 1536, 'data.buckets': ((9, 8),)},
        },
    },
    'tiny': {'quickstart': TINY | {'data.buckets': ((5, 7),)}},
}
"""--size → case → changes of configs/quickstart.py."""


@dataclasses.dataclass(frozen=True)
class Length:
    """Of a measurement: rounds, and in each of a side's turns steps that are timed and steps before them."""

    rounds: int
    steps: int
    warm_up: int


def resolved(fields: Any, changes: Mapping[str, Any]) -> Config:
    config.override(fields, changes)
    return config.resolve(fields)


def peak_of(kind: str) -> float | None:
    """Operations/s in bfloat16 of a device by its name; None for one that is not in PEAKS."""
    return next((peak for name, peak in PEAKS.items() if name in kind), None)


class Warnings(logging.Handler):
    """What is warned of meanwhile: a kernel that gives way to another says so."""

    def __enter__(self) -> list[str]:
        self.said: list[str] = []
        logging.getLogger('absl').addHandler(self)
        return self.said

    def __exit__(self, *_: Any) -> None:
        logging.getLogger('absl').removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.said.append(record.getMessage())


def kernels(
    asked: Sequence[str], name: str, changes: Mapping[str, Any], length: Length, peak: float | None
) -> list[dict[str, Any]]:
    """A row for each of these choices of model.attention.kernel; `failed` says why one has no figures."""
    rows: dict[str, dict[str, Any]] = {}
    sides: dict[str, JaxSide] = {}
    for kernel in asked:
        fields = {'model.precision.compute': 'bfloat16', 'model.attention.kernel': kernel, **changes}
        cfg = resolved(base.get_config(), fields)
        row = rows[kernel] = {'case': name, 'kernel': kernel}
        batches = list(itertools.islice(benchmark.random_batches(cfg), length.rounds * (length.warm_up + length.steps)))
        with Warnings() as said:
            try:
                side = JaxSide(cfg, cfg.model.vocab_size)
                side.step(side.put(batches[0]))
                (found,) = memory.of_step(cfg, cfg.model.vocab_size).values()  # the same program, compiled by now
            except (UserError, jax.errors.JaxRuntimeError) as error:  # it does not fit, or not on this device
                row['failed'] = str(error).strip().splitlines()[0]
                continue
            finally:
                row['warnings'] = said
        sides[kernel] = side
        row |= {'state_bytes': found.arguments, 'temporary_bytes': found.temporaries}
        row['flops'] = cfg.train.batch_size * flops.training(cfg.model, cfg.model.vocab_size, 0, cfg.data.buckets[-1])
        row['tokens'] = benchmark.count_tokens(batches[:1])
    placed = [side.put(batch) for side in list(sides.values())[:1] for batch in batches]
    seconds = in_turns({kernel: functools.partial(_alone, side, placed) for kernel, side in sides.items()}, length)
    for kernel, taken in seconds.items():
        row = rows[kernel]
        row['step_ms'] = spread([1000 * each for each in taken])
        row['tokens_per_second'] = spread([row['tokens'] / each for each in taken])
        row['share_of_peak'] = spread([row['flops'] / each / peak for each in taken]) if peak else None
        if 'plain' in seconds:
            row['x plain'] = spread([plain / each for plain, each in zip(seconds['plain'], taken, strict=True)])
    return list(rows.values())


def _alone(side: JaxSide, placed: Sequence[Any], block: slice, warm_up: int) -> float:
    return side.alone(placed[block], warm_up)


def in_turns(sides: Mapping[str, Callable[[slice, int], float]], length: Length) -> dict[str, list[float]]:
    """Seconds of a step of each side in each round; a side is told which batches, and how many of them to warm up."""
    each = length.warm_up + length.steps
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(length.rounds):
        block = slice(number * each, (number + 1) * each)
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(sides[name](block, length.warm_up) / length.steps)
    return found


class Turns:
    """Eight members one after the other by the compiled step of a run alone."""

    def __init__(self, cfg: Config, members: Sequence[Config]) -> None:
        self.mesh = sharding.make_mesh(cfg.mesh)
        self.model, optimizer = transformer.build(cfg.model, cfg.model.vocab_size), optim.build(cfg)
        self.target = states.abstract(self.model, optimizer, self.mesh)
        self.update = steps.compiled_step(cfg, self.model, self.target)
        initialise = states.initialiser(self.model, optimizer, self.target)
        self.states = [initialise(member.seed) for member in members]
        self.values = [hyperparameters.of(member) for member in members]

    def __call__(self, batches: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> None:
        for batch_C in batches:
            for number, batch in enumerate(batch_C):
                placed = sharding.put_batch(dict(batch), self.mesh)
                self.states[number], _ = self.update(self.states[number], placed, self.values[number])

    def wait(self) -> None:
        jax.block_until_ready(self.states)


class Cohort:
    """Eight members by one program, as `jaxformer ablate` trains them (jaxformer/ablate/members.py)."""

    def __init__(self, cfg: Config, mode: str, turns: Turns) -> None:
        self.together = together.Together(steps.of(cfg, turns.model), mode, jax.devices()[:1], lambda: None)
        stacked = together.stacked([jax.device_get(state) for state in turns.states])
        self.state_C = jax.device_put(stacked, self.together.sharding)
        self.values_C = together.stacked(turns.values)
        self.active_C = np.ones(len(turns.values), bool)

    def __call__(self, batches: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> None:
        for batch_C in batches:
            arguments = together.stacked([dict(batch) for batch in batch_C]), self.values_C, self.active_C
            self.state_C, _ = self.together(self.state_C, *arguments)

    def wait(self) -> None:
        jax.block_until_ready(self.state_C)

    def bytes(self, batch_C: Sequence[Mapping[str, np.ndarray]]) -> int:
        batch = together.stacked([dict(batch) for batch in batch_C])
        return together.needed_bytes(self.together.compiled(self.state_C, batch, self.values_C, self.active_C))


def cohorts(name: str, changes: Mapping[str, Any], length: Length) -> list[dict[str, Any]]:
    """A row for eight members one after the other, and one for each mode of a cohort; batches come from the host."""
    members = [resolved(quickstart.get_config(), {**changes, 'seed': seed}) for seed in range(MEMBERS)]
    cfg = members[0]
    runtime.configure(cfg.runtime)
    count = length.rounds * (length.warm_up + length.steps)
    streams: list[Iterator[Any]] = [benchmark.random_batches(member) for member in members]
    batches = [[next(stream) for stream in streams] for _ in range(count)]
    turns = Turns(cfg, members)
    ways: dict[str, Turns | Cohort] = {'turns': turns}
    ways |= {mode: Cohort(cfg, mode, turns) for mode in together.MODES}
    for way in ways.values():
        way(batches[:1])
        way.wait()
    seconds = in_turns({mode: functools.partial(_timed, way, batches) for mode, way in ways.items()}, length)
    return [
        {
            'case': name,
            'way': mode,
            'step_ms': spread([1000 * each for each in taken]),
            'x turns': spread([turn / each for turn, each in zip(seconds['turns'], taken, strict=True)]),
            'bytes': way.bytes(batches[0]) if isinstance(way := ways[mode], Cohort) else None,
        }
        for mode, taken in seconds.items()
    ]


def _timed(way: Turns | Cohort, batches: Sequence[Any], block: slice, warm_up: int) -> float:
    now = batches[block]
    way(now[:warm_up])
    way.wait()
    begun = time.perf_counter()
    way(now[warm_up:])
    way.wait()
    return time.perf_counter() - begun


def as_markdown(found: Mapping[str, Any]) -> str:
    """The two tables: `median (least to greatest)`."""

    def cell(values: Mapping[str, float] | None, form: str) -> str:
        if values is None:
            return '–'
        return f'{values["median"]:{form}} ({values["min"]:{form}} to {values["max"]:{form}})'

    lines = [
        f'{found["device"]}, JAX {found["jax"]}, {found["size"]} size; medians of {found["rounds"]} rounds of '
        f'{found["steps"]} steps (least to greatest)',
        '',
        '| configs/base.py, bfloat16 | kernel | ms/step | tokens/s | of the peak | x plain | temporaries |',
        '|---|---|---:|---:|---:|---:|---:|',
    ]
    for row in found['kernels']:
        if 'failed' in row:
            figures = [f'failed: {row["failed"]}', *[''] * 4]
        else:
            figures = [cell(row['step_ms'], '.1f'), cell(row['tokens_per_second'], ',.0f')]
            figures += [cell(row['share_of_peak'], '.1%'), cell(row.get('x plain'), '.2f')]
            figures += [f'{row["temporary_bytes"] / 1e9:.2f} GB']
        lines.append(f'| {row["case"]} | {row["kernel"]} | {" | ".join(figures)} |')
    said = dict.fromkeys(text for row in found['kernels'] for text in row['warnings'])
    lines += ['', *(f'- {text}' for text in said), '']
    lines += [f'| {MEMBERS} members | by | ms/step of all | x turns | bytes |', '|---|---|---:|---:|---:|']
    for row in found['cohorts']:
        taken = '–' if row['bytes'] is None else f'{row["bytes"] / 1e9:.2f} GB'
        figures = [cell(row['step_ms'], '.2f'), cell(row['x turns'], '.2f'), taken]
        lines.append(f'| {row["case"]} | {row["way"]} | {" | ".join(figures)} |')
    return '\n'.join(lines) + '\n'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='Speed on one accelerator; see the head of this file.')
    parser.add_argument('--output', required=True, help='directory that gpu.json and gpu.md are written into')
    parser.add_argument('--allow-cpu', action='store_true', help='run where there is no accelerator')
    parser.add_argument('--size', choices=KERNEL_CASES, default='full')
    every = choices.CHOICES['model.attention.kernel']
    parser.add_argument('--kernel', choices=every, nargs='+', default=every, help='of model.attention.kernel')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--steps', type=int, default=10, help='timed ones of each side in a round')
    parser.add_argument('--warm-up', type=int, default=2, help='steps of each side in a round before these')
    asked = parser.parse_args(arguments)
    kind = jax.devices()[0].device_kind
    if (jax.default_backend() == 'cpu' and not asked.allow_cpu) or jax.device_count() > 1:
        print(
            f'experiments/gpu.py needs one GPU (or TPU) that JAX sees, and this process has {jax.device_count()} x '
            f"{kind}: pip install 'jax[cuda12]', CUDA_VISIBLE_DEVICES=0; --allow-cpu --size=tiny only tries the script",
            file=sys.stderr,
        )
        return 2
    length, peak = Length(asked.rounds, asked.steps, asked.warm_up), peak_of(kind)
    load = os.getloadavg()[0]
    found = {
        'device': kind,
        'peak': peak,
        'jax': jax.__version__,
        'size': asked.size,
        **dataclasses.asdict(length),
        'load': load,
        'kernels': [
            row
            for name, case in KERNEL_CASES[asked.size].items()
            for row in kernels(asked.kernel, name, case, length, peak)
        ],
        'cohorts': [row for name, case in COHORT_CASES[asked.size].items() for row in cohorts(name, case, length)],
    }
    output = Path(asked.output)
    output.mkdir(parents=True, exist_ok=True)
    files.write_json(output / 'gpu.json', found)
    files.write_atomic(output / 'gpu.md', text := as_markdown(found))
    print(text, end='')
    return 0


if __name__ == '__main__':
    sys.exit(main())
