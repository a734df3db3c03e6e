"""Tests run on the CPU unless JAX_PLATFORMS says otherwise, and share compiled programs, also from run to run.

Set as environment variables, before anything imports JAX, so that the processes that tests start have them, too. Tests
that need several devices ask for them in a process of their own: a flag here would change every other test. To the
tests of one process the CPU is one device, also where a grid would make its cores devices.
"""

import gc
import os
from pathlib import Path

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(Path.home() / '.cache' / 'jaxformer' / 'test-xla'))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')

import jax  # noqa: E402 - reads the variables
import pytest  # noqa: E402

jax.config.update('jax_num_cpu_devices', 1)


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Forgets compiled programs while there is room for more.

    Each keeps some pages of its own; at 65,530 (Linux: vm.max_map_count) the compiler aborts the process.
    """
    yield
    maps = Path('/proc/self/maps')
    if maps.exists() and maps.read_bytes().count(b'\n') > 30_000:
        jax.clear_caches()
        gc.collect()
