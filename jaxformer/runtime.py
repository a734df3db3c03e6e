"""What has to be said to JAX before it works: compilation cache, determinism; and how often it compiled."""

import os
from collections.abc import Callable
from typing import Any

import jax
from etils import epath
from jax._src import xla_bridge  # the only place that knows whether a backend has started

from jaxformer.config import RuntimeConfig
from jaxformer.errors import UserError

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
    flags = os.environ.get('XLA_FLAGS', '')
    if cfg.deterministic and DETERMINISTIC_FLAG not in flags:
        if xla_bridge.backends_are_initialized():
            raise UserError(
                'config.runtime.deterministic=True: JAX has started already; '
                f'set XLA_FLAGS={DETERMINISTIC_FLAG} before the process starts'
            )
        os.environ['XLA_FLAGS'] = f'{flags} {DETERMINISTIC_FLAG}'.strip()


def determinism() -> str:
    """What a rerun of the same program on the same machine gives: 'bitwise' or 'backend default'."""
    if jax.default_backend() == 'cpu' or DETERMINISTIC_FLAG in os.environ.get('XLA_FLAGS', ''):
        return 'bitwise'
    return 'backend default'


class CountedJit:
    """jax.jit of `function` that counts its compilations (one per shape of its arguments, if all is well)."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.compilations = 0

        def traced(*args: Any) -> Any:
            self.compilations += 1
            return function(*args)

        self._jitted = jax.jit(traced, **options)

    def __call__(self, *args: Any) -> Any:
        return self._jitted(*args)
