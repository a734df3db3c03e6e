"""What has to be said to JAX before it works: compilation cache, determinism; and how often it compiled."""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
from etils import epath
from jax._src import xla_bridge  # the only place that knows whether a backend has started

from jaxformer import processes
from jaxformer.errors import UserError
from jaxformer.schema import RuntimeConfig

_MALLOC = {'M_ARENA_MAX': (-8, 1), 'M_MMAP_MAX': (-4, 0), 'M_TRIM_THRESHOLD': (-1, -1), 'M_TOP_PAD': (-2, 2**26)}
"""Parameters of glibc's mallopt(3), by which nothing that is freed goes back to the system, and their values."""

DETERMINISTIC_FLAG = '--xla_gpu_deterministic_ops=true'


def configure(cfg: RuntimeConfig) -> None:
    """Applies cfg.runtime to this process.

    Raises:
      UserError: `deterministic` is asked for after a backend has started without it, when the flag has no effect.
    """
    if cfg.compilation_cache:
        directory = epath.Path(cfg.compilation_cache).expanduser()
        jax.config.update('jax_compilation_cache_dir', os.fspath(directory))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
        jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    if cfg.freed_memory == 'keep':
        keep_freed_memory()
    flags = os.environ.get('XLA_FLAGS', '')
    if cfg.deterministic and DETERMINISTIC_FLAG not in flags:
        if xla_bridge.backends_are_initialized():
            raise UserError(
                'config.runtime.deterministic=True: JAX has started already; '
                f'set XLA_FLAGS={DETERMINISTIC_FLAG} before the process starts'
            )
        os.environ['XLA_FLAGS'] = f'{flags} {DETERMINISTIC_FLAG}'.strip()


def keep_freed_memory() -> bool:
    """Has glibc keep what this process frees; False where another library allocates, and nothing is changed.

    XLA takes the memory of a step's intermediate values anew each time on CPU. Where it goes back to the system in
    between, every page of it is made and cleared again: 38 % of the processor time of a step of configs/quickstart.py.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None) if sys.platform == 'linux' else None
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in _MALLOC.values())


def available_cores() -> list[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, 'sched_getaffinity'):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_as_devices() -> bool:
    """Makes each core a device of the CPU; False where JAX has started, or was told of a number of devices."""
    flag = 'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', '')
    told = flag or getattr(jax.config, 'jax_num_cpu_devices', -1) > 0
    if told or xla_bridge.backends_are_initialized():
        return False
    jax.config.update('jax_num_cpu_devices', len(available_cores()))
    return True


def determinism() -> str:
    """What a rerun of the same program on the same machine gives: 'bitwise' or 'backend default'."""
    if jax.default_backend() == 'cpu' or DETERMINISTIC_FLAG in os.environ.get('XLA_FLAGS', ''):
        return 'bitwise'
    return 'backend default'


class CountedJit:
    """jax.jit of `function` that counts its compilations (one per shape of its arguments, if all is well)."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.compilations = 0
        self._met: set[tuple[tuple[int, ...], ...]] = set()

        def traced(*args: Any) -> Any:
            self.count()
            return function(*args)

        self._jitted = jax.jit(traced, **options)

    def count(self) -> None:
        self.compilations += 1

    def __call__(self, *args: Any) -> Any:
        if processes.number() > 1:
            self._compile_together(args)
        return self._jitted(*args)

    def _compile_together(self, args: tuple[Any, ...]) -> None:
        """Nobody runs a new program before all processes have compiled it: some backends wait only half a minute for
        the others where a program exchanges something."""
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(args) if hasattr(leaf, 'shape'))
        if shapes not in self._met:
            self._met.add(shapes)
            self._jitted.lower(*args).compile()
            processes.meet()

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """The program for arguments, or for their shapes, dtypes and shardings; nothing runs."""
        return self._jitted.lower(*args)
