"""The compiled step of several runs: train_step over a leading axis C of states, batches and hyperparameters."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import hyperparameters, runtime, sharding
from jaxformer.ablate import ahead
from jaxformer.data.splits import Batch, Bucket
from jaxformer.schema import Config
from jaxformer.train import step as steps
from jaxformer.train.program import Program
from jaxformer.train.state import TrainState

Step = Callable[..., tuple[TrainState, dict[str, jax.Array]]]
Tree = Any

RUNS = PartitionSpec('runs')


def vmapped(step: Step) -> Step:
    """All members at once: what pays where a single one leaves the machine idle. C× the memory of activations."""

    def together(state_C: Tree, batch_C: Tree, values_C: Tree, active_C: jax.Array) -> tuple[Tree, Tree]:
        def one(state: Tree, batch: Tree, values: Tree, active: jax.Array) -> tuple[Tree, Tree]:
            new, metrics = step(state, batch, values)
            return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, state), metrics

        return jax.vmap(one)(state_C, batch_C, values_C, active_C)

    return together


def mapped(step: Step) -> Step:
    """One member after the other in one program, each in its place of the state: the memory of one, and C states.

    A member that is not active takes no time.
    """
    step = jax.jit(step)  # traced once, though it is looked at twice

    def together(state_C: Tree, batch_C: Tree, values_C: Tree, active_C: jax.Array) -> tuple[Tree, Tree]:
        def kept(state: Tree, *arguments: Tree) -> tuple[Tree, Tree]:
            _, metrics = jax.eval_shape(step, state, *arguments)
            return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), metrics)

        def one(state_C: Tree, row: tuple[jax.Array, Tree, Tree, jax.Array]) -> tuple[Tree, Tree]:
            c, batch, values, active = row
            state = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, c, keepdims=False), state_C)
            new, metrics = lax.cond(active, step, kept, state, batch, values)
            put = lambda leaves, leaf: lax.dynamic_update_index_in_dim(leaves, leaf, c, 0)  # noqa: E731
            return jax.tree.map(put, state_C, new), metrics

        return lax.scan(one, state_C, (jnp.arange(len(active_C)), batch_C, values_C, active_C))

    return together


MODES: dict[str, Callable[[Step], Step]] = {'vmap': vmapped, 'map': mapped}
"""cohort.mode → how the step of one becomes that of C."""


class Together:
    """(state_C, batch_C, values_C, active_C) → (state_C, metrics of each [C]); the state is donated.

    A member that is not active keeps its state, bit by bit, whatever its batch. Over several devices the members are
    spread evenly, and each trains on one.

    Args:
      step: of one run, (state, batch, values) → (state, metrics).
      mode: a key of MODES.
      devices: their number divides C (see `rows`).
      count: called at each compilation.
    """

    def __init__(self, step: Step, mode: str, devices: Sequence[jax.Device], count: Callable[[], None]) -> None:
        self._count = count
        self.mesh = Mesh(np.array(devices), ('runs',))
        self.sharding = NamedSharding(self.mesh, RUNS)
        together = MODES[mode](step)
        if len(devices) > 1:
            together = jax.shard_map(together, mesh=self.mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False)
        self._jit = jax.jit(together, donate_argnums=0, in_shardings=self.sharding, out_shardings=self.sharding)
        self._compiled: dict[tuple[tuple[int, ...], ...], jax.stages.Compiled] = {}

    def rows(self, members: int) -> int:
        """C for so many members: what the devices divide. The rows that are too many are never active."""
        return math.ceil(members / self.mesh.size) * self.mesh.size

    def compiled(self, *arguments: Tree) -> jax.stages.Compiled:
        """The program for arguments of these shapes, arrays or not."""
        key = tuple(leaf.shape for leaf in jax.tree.leaves(arguments[1:]))
        if key not in self._compiled:
            self._count()
            self._compiled[key] = self._jit.lower(*arguments).compile()
        return self._compiled[key]

    def __call__(self, *arguments: Tree) -> tuple[Tree, dict[str, jax.Array]]:
        return self.compiled(*arguments)(*arguments)


def stacked(trees: Sequence[Tree], rows: int = 0) -> Tree:
    """One tree of arrays of the host with a leading C: these trees, and the last of them again up to so many rows."""
    again = [trees[-1]] * (rows - len(trees))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees, *again)


def needed_bytes(compiled: jax.stages.Compiled) -> int:
    """What a program takes on each device, at its peak, as far as its compiler says."""
    found = compiled.memory_analysis()
    if found is None:
        return 0
    sizes = (found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes)
    return sum(sizes) - found.alias_size_in_bytes


def mode_of(cfg: Config, backend: str | None = None) -> str | None:
    """How runs of this config are trained together, a key of `together.MODES`; None where each is trained alone.

    A run that its mesh divides among several devices is trained alone.

    Args:
      backend: where they are trained, by default that of this process, which is started.
    """
    sizes = sharding.sizes(cfg.mesh)
    if cfg.cohort.mode == 'off' or max(sizes) > 1 or -1 in sizes[1:]:
        return None
    if cfg.train.nan_policy == 'restore' or cfg.train.taught:  # what goes back, or has a teacher, is alone
        return None
    if backend is None and jax.process_count() > 1:
        return None
    if cfg.cohort.mode != 'auto':
        return cfg.cohort.mode
    if (backend or jax.default_backend()) != 'cpu':
        return 'vmap'
    # XLA's convolutions on CPU are 7 times slower inside of a loop (JAX 0.10, a convolutional configs/quickstart.py).
    return None if 'conv' in (cfg.model.encoder_mixer, cfg.model.decoder_mixer) else 'map'


class Shared:
    """What cohorts of one `program` have in common: a Program of one device each, and the compiled steps.

    members: how many runs there are; another process compiles ahead for them where that helps.

    Raises:
      UserError: as `Program`.
    """

    def __init__(self, cfg: Config, members: int = 0) -> None:
        runtime.configure(cfg.runtime)  # before devices are asked for
        self.ahead = None
        if members and ahead.helps(cfg):
            self.ahead = ahead.Ahead(cfg, members, len(jax.local_devices()))
        self.program = Program(cfg, jax.local_devices()[:1])
        self._cfg = cfg
        self._step = steps.of(cfg, self.program.model)
        self._steps: dict[int, Together] = {}
        self.place = jax.tree.map(lambda leaf: leaf.sharding, self.program.target)
        self.member = jax.jit(lambda state_C, c: jax.tree.map(lambda leaf: leaf[c], state_C))

    def step(self, size: int) -> Together:
        """The compiled step of so many members, over as many devices as have any."""
        devices = jax.local_devices()[:size]
        if len(devices) not in self._steps:
            mode = str(mode_of(self._cfg))
            self._steps[len(devices)] = Together(self._step, mode, devices, self.program.update.count)
        return self._steps[len(devices)]

    def compiled(self, configs: Sequence[Config], bucket: Bucket) -> jax.stages.Compiled:
        """The program of these members for batches of that bucket."""
        step = self.step(len(configs))
        C = step.rows(len(configs))
        split, rows_B = self.program.corpus.split('train'), np.full(self._cfg.train.batch_size, -1)
        row = (self.program.target, split.batch(rows_B, bucket), np.bool_(True))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((C, *leaf.shape), leaf.dtype), row)
        state_C, batch_C, active_C = shapes
        values_C = stacked([hyperparameters.of(cfg) for cfg in configs], C)
        return step.compiled(state_C, batch_C, values_C, active_C)

    def wait_for_step(self, batch: Batch) -> None:
        """Until the step on such a batch is compiled by whoever has it to do."""
        if self.ahead:
            self.ahead.wait_for_step(batch)

    def wait_for_evaluation(self) -> None:
        """Until evaluation and decoding are compiled by whoever has it to do."""
        if self.ahead:
            self.ahead.wait_for_evaluation()

    def fitting(self, configs: Sequence[Config], workers: int = 1) -> int:
        """How many of these runs are trained at once: cohort.size, or as many as go into memory.

        What they take on each device is what the compiler says of the program of the largest batch. The memory of the
        host is shared by the devices that are its cores, and with the other workers.
        """
        if self._cfg.cohort.size:
            return min(self._cfg.cohort.size, len(configs))
        size = len(configs)
        while size > 1:
            step = self.step(size)
            device = step.mesh.devices.flat[0]
            room = free_bytes(device) / (workers * step.mesh.size if device.platform == 'cpu' else 1)
            needed = needed_bytes(self.compiled(configs[:size], self._cfg.data.buckets[-1]))
            if needed <= room:
                break
            logging.warning(
                '%d runs together take %.1f GB of the %.1f GB there are; half of them are tried (config.cohort.size)',
                size,
                needed / 1e9,
                room / 1e9,
            )
            size = math.ceil(size / 2)
        return size


def free_bytes(device: jax.Device) -> float:
    """What of a device's memory a cohort may take: nine tenths of what is free, of the host's own memory half."""
    stats = device.memory_stats() if device.platform != 'cpu' else None
    if stats and 'bytes_limit' in stats:
        return 0.9 * (stats['bytes_limit'] - stats['bytes_in_use'])
    try:
        lines = dict(line.split(':') for line in Path('/proc/meminfo').read_text().splitlines())
        return 0.5 * 1024 * int(lines['MemAvailable'].split()[0])
    except OSError:  # no Linux
        return 0.25 * os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
