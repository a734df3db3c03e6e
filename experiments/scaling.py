"""Training on a pod, on paper: what each strategy takes of a device's memory, sends, and leaves of its speed.

Question: for AIAYN base, AIAYN big and a 7 B model on pods of v5p and H200: bytes on each device, bytes that it sends
          in a step, the least time of a step, and up to which number of devices a strategy of the mesh pays.
Command:  python experiments/scaling.py [--model=base --strategy=fsdp --devices 8 64 --json]
Result:   a table for each model. No array is made and no accelerator is needed: a step is compiled for as many virtual
          devices of the CPU as the pod has, each number by itself; nothing is carried over from one to another.

What is read, and from where:
  state, temporaries: of the compiled program (jaxformer/train/memory.py). The CPU's program holds much of what is
    bfloat16 as float32, and all of its temporaries count as if they were alive at once where they are: take them as
    a bound from above, which a GPU or TPU stays below. Device memory is said to be enough where both fit into it.
  sent, operations: of the program as it is right after its partition among the devices (experiments/hlo.py), when
    bfloat16 still is bfloat16; what is in a loop counts as often as it turns.
  step: the greatest of three times, as if each went on behind the others, at full speed and without any delay for
    starting: products of matrices at the peak in bfloat16 (recomputed ones count), state and outputs once and
    temporaries twice through the device's memory, and what is sent through its links. It is a bound from below.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from configs import base, big, llama
from experiments import hlo
from experiments.hlo import Collective
from jaxformer import choices, config, sharding
from jaxformer.errors import RunError, UserError
from jaxformer.schema import Config
from jaxformer.train import memory
from jaxformer.train.memory import StepMemory


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A device and its pod: operations/s, bytes, bytes/s.

    link: out of a device to others of its node. node: devices that are linked so. between: out of a node to others, of
      each of its devices.
    """

    peak: float
    memory: float
    memory_speed: float
    link: float
    node: int
    between: float


HARDWARE = {
    # docs.cloud.google.com/tpu/docs/v5p: 459 TFLOP/s in bf16, 95 GiB at 2,765 GB/s, 1,200 GB/s over the six links of a
    # chip in both directions together, a torus of at most 6,144 chips in one job. All six links are taken to be in use.
    'v5p': Hardware(459e12, 95 * 2**30, 2765e9, 600e9, 6144, 0.0),
    # nvidia.com/en-us/data-center/h200: 1,979 TFLOP/s in bf16 with sparsity, which is twice those without; 141 GB at
    # 4.8 TB/s; NVLink with 900 GB/s in both directions together. docs.nvidia.com/dgx-basepod (DGX H200): eight of them
    # in a node, each with a network card of 400 Gb/s.
    'H200': Hardware(989.5e12, 141e9, 4.8e12, 450e9, 8, 50e9),
}

SENTENCES = {'model.precision.compute': 'bfloat16', 'train.batch_size': 512, 'data.buckets': ((48, 48),)}
"""AIAYN 5.1: about 25,000 source and as many target tokens in a batch; here 24,576."""

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    'base': (base, SENTENCES),
    'big': (big, SENTENCES),
    # Llama 2 7B (Touvron et al. 2023), 6,738,415,616 parameters; a million tokens in a batch.
    '7B': (
        llama,
        {
            'model.vocab_size': 32_000,
            'model.num_kv_heads': 32,
            'model.d_ff': 11_008,
            'model.rotary.base': 10_000.0,
            'model.attention.kernel': 'blockwise',
            'train.batch_size': 256,
            'data.buckets': ((4096,),),
        },
    ),
}
"""Name → (module of its config, changes)."""

POSITIONS = 16_384
"""Of a device at once, at most; a batch that has more is worked on in parts (train.accumulation)."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step of a model in a strategy, as one of `devices` devices has it. parts: of train.accumulation."""

    model: str
    strategy: str
    devices: int
    parts: int
    memory: StepMemory
    flops: int
    collectives: tuple[Collective, ...]

    @property
    def sent(self) -> float:
        return math.fsum(one.sent for one in self.collectives)


@dataclasses.dataclass(frozen=True)
class Times:
    """Least seconds of a step by what each part of a device has to do."""

    compute: float
    memory: float
    links: float

    @property
    def step(self) -> float:
        return max(self.compute, self.memory, self.links)

    @property
    def bound(self) -> str:
        return max(dataclasses.asdict(self).items(), key=lambda item: item[1])[0]


def of_model(name: str, strategy: str, more: Mapping[str, Any] = {}) -> Config:
    """The config of a model of MODELS in a strategy, with `more` changes."""
    module, changes = MODELS[name]
    fields: ConfigDict = module.get_config()
    config.override(fields, {**changes, 'mesh.strategy': strategy, **more})
    return config.resolve(fields)


def in_parts(cfg: Config, devices: Sequence[jax.Device]) -> Config:
    """The same with its batch in as few parts (a power of two) as leave no device more than POSITIONS at once."""
    mesh = sharding.make_mesh(cfg.mesh, list(devices))
    rows = cfg.train.batch_size // (mesh.shape['data'] * mesh.shape['fsdp'])
    positions, parts = max(cfg.data.buckets[-1]) // mesh.shape['seq'], 1
    while rows // parts * positions > POSITIONS and rows % (2 * parts) == 0:
        parts *= 2
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, accumulation=parts))


def compiled(name: str, cfg: Config, devices: int, dumped: Path) -> Step:
    """What a step of that config takes on each of so many virtual devices; `dumped` is left empty.

    Raises:
      UserError: mesh, batch, model or buckets do not fit each other.
      RunError: XLA does not write the partitioned program into `dumped` (see `virtual_devices`).
    """
    some = jax.devices()[:devices]
    cfg = in_parts(cfg, some)
    (found,) = memory.of_step(cfg, cfg.model.vocab_size, devices=some).values()
    texts = [path.read_text() for path in dumped.glob('*jit_traced*.after_spmd-partitioning.*')]
    for path in dumped.iterdir():
        if path.is_file():
            path.unlink()
    if len(texts) != 1:
        raise RunError(
            f'{dumped}: {len(texts)} partitioned programs instead of one; this JAX ({jax.__version__}) does not write '
            'them as the one of setup.py does'
        )
    return Step(
        name,
        cfg.mesh.strategy,
        devices,
        cfg.train.accumulation,
        found,
        hlo.flops(texts[0]),
        tuple(hlo.exchanges(texts[0])),
    )


def times(step: Step, hardware: Hardware) -> Times:
    """The least times of a step on a pod of that hardware."""
    through = step.memory.arguments + step.memory.outputs + 2 * step.memory.temporaries
    return Times(
        compute=step.flops / hardware.peak,
        memory=through / hardware.memory_speed,
        links=math.fsum(one.sent / speed(one, hardware) for one in step.collectives),
    )


def speed(one: Collective, hardware: Hardware) -> float:
    """Bytes/s at which a device sends around the ring of its group.

    A ring that leaves a node does so once, through the network cards of all its devices there.
    """
    there = max(hardware.node // one.stride, 1)  # devices of a group in one node
    if one.group <= there:
        return hardware.link
    return min(hardware.link, there * hardware.between)


def fits(step: Step, hardware: Hardware) -> bool:
    return step.memory.total <= hardware.memory


def pays(steps: Sequence[Step | UserError], sizes: Sequence[int], hardware: Hardware) -> str:
    """In words, how far a strategy pays: up to which number of devices, and what ends it.

    It pays as long as there is a program that fits into the memory, its step takes less time than that of fewer
    devices, and sending takes no longer than computing.
    """
    paid, before = 0, math.inf
    for step, size in zip(steps, sizes, strict=True):
        upto = f'pays up to {paid} devices' if paid else 'does not pay'
        if isinstance(step, UserError):
            return f'{upto}; {size} cannot be: {step}'
        if not fits(step, hardware):
            tight = step.memory
            continue
        took = times(step, hardware)
        if took.links > took.compute:
            return f'{upto}; with {size} sending takes {took.links / took.compute:.1f} times as long as computing'
        if took.step >= before:
            return f'{upto}; with {size} a step takes {took.step / before:.2f} times as long'
        paid, before = size, took.step
    if not paid:
        state, total = tight.arguments / 1e9, tight.total / 1e9
        return f'may not fit: {state:.0f} GB of state, {total:.0f} by the bound, of {hardware.memory / 1e9:.0f}'
    return f'pays up to {paid} devices, the most that were looked at'


def measure(
    models: Sequence[str], strategies: Sequence[str], sizes: Sequence[int], changes: Mapping[str, Any], dumped: Path
) -> dict[tuple[str, str], list[Step | UserError]]:
    """(model, strategy) → its step with each number of devices, or why there is none."""
    found: dict[tuple[str, str], list[Step | UserError]] = {}
    for model in models:
        for strategy in strategies:
            steps = found[model, strategy] = []
            for size in sizes:
                try:
                    steps.append(compiled(model, of_model(model, strategy, changes), size, dumped))
                except UserError as error:
                    steps.append(error)
    return found


def as_text(found: Mapping[tuple[str, str], Sequence[Step | UserError]], sizes: Sequence[int]) -> str:
    """The tables of `measure`, and how far each strategy pays."""
    lines = []
    for model in dict.fromkeys(model for model, _ in found):
        head = ['devices', 'strategy', 'parts', 'state', 'temporaries', 'sent', 'exchanges', 'TFLOP']
        rows = [head + [f'{name}: {part}' for name in HARDWARE for part in ('step', 'bound by', 'fits')]]
        words = []
        for (_, strategy), steps in ((key, steps) for key, steps in found.items() if key[0] == model):
            for step in steps:
                if isinstance(step, Step):
                    rows.append(_row(step))
            words += [f'{strategy} on {name}: {pays(steps, sizes, hardware)}' for name, hardware in HARDWARE.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [model, '']
        lines += ['  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines += ['', *words, '']
    lines.append(
        'Of each device: GB of state and batch, of temporaries, GB sent in a step, exchanges in a step, TFLOP.'
    )
    lines.append('step: a bound from below, ms. See the head of experiments/scaling.py for what is counted and how.')
    return '\n'.join(lines)


def _row(step: Step) -> list[str]:
    cells = [str(step.devices), step.strategy, str(step.parts)]
    cells += [f'{step.memory.arguments / 1e9:.2f}', f'{step.memory.temporaries / 1e9:.2f}', f'{step.sent / 1e9:.2f}']
    cells += [f'{sum(one.times for one in step.collectives):,}', f'{step.flops / 1e12:.2f}']
    for hardware in HARDWARE.values():
        took = times(step, hardware)
        cells += [f'{1000 * took.step:.2f}', took.bound, 'yes' if fits(step, hardware) else 'no']
    return cells


def as_json(found: Mapping[tuple[str, str], Sequence[Step | UserError]], sizes: Sequence[int]) -> dict[str, Any]:
    """The same as JSON, with every collective."""
    return {
        'hardware': {name: dataclasses.asdict(hardware) for name, hardware in HARDWARE.items()},
        'steps': [
            {
                **dataclasses.asdict(step),
                'sent': step.sent,
                'hardware': {
                    name: {**dataclasses.asdict(times(step, hardware)), 'fits': fits(step, hardware)}
                    for name, hardware in HARDWARE.items()
                },
            }
            for steps in found.values()
            for step in steps
            if isinstance(step, Step)
        ],
        'pays': [
            {'model': model, 'strategy': strategy, 'hardware': name, 'verdict': pays(steps, sizes, hardware)}
            for (model, strategy), steps in found.items()
            for name, hardware in HARDWARE.items()
        ],
    }


def virtual_devices(number: int, dumped: Path) -> None:
    """Gives this process so many devices of the CPU, and has XLA write partitioned programs into `dumped`."""
    os.environ['XLA_FLAGS'] = (
        f'--xla_force_host_platform_device_count={number} --xla_dump_to={dumped} '
        '--xla_dump_hlo_pass_re=spmd-partitioning --xla_backend_optimization_level=0'  # nobody will run the code
    )
    jax.config.update('jax_platforms', 'cpu')
    jax.config.update('jax_enable_compilation_cache', False)  # what is read from there is not partitioned again


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='What strategies take and leave on a pod; see the head of this file.')
    parser.add_argument('--model', choices=MODELS, action='append', help='by default all; may come several times')
    parser.add_argument('--strategy', choices=choices.STRATEGIES, action='append', help='of mesh.strategy; the same')
    parser.add_argument('--devices', type=int, nargs='+', default=[8, 64, 256], help='of the pods')
    parser.add_argument('--set', metavar='FIELD=VALUE', action='append', default=[], help='--set=mesh.model=8')
    parser.add_argument('--json', action='store_true')
    asked = parser.parse_args(arguments)
    begun, sizes = time.perf_counter(), sorted(asked.devices)
    with tempfile.TemporaryDirectory(prefix='scaling-') as scratch:
        virtual_devices(sizes[-1], Path(scratch))
        try:
            changes = dict(change.split('=', 1) for change in asked.set)
            models, strategies = asked.model or list(MODELS), asked.strategy or list(choices.STRATEGIES)
            found = measure(models, strategies, sizes, changes, Path(scratch))
        except RunError as error:
            print(error, file=sys.stderr)
            return 1
    print(json.dumps(as_json(found, sizes), indent=2) if asked.json else as_text(found, sizes))
    print(f'{time.perf_counter() - begun:.0f} s', file=sys.stderr)
    return 0


if __name__ == '__main__':
    sys.exit(main())
