"""Tests run on the CPU unless JAX_PLATFORMS says otherwise, and share compiled programs, also from run to run.

Set as environment variables, before anything imports JAX, so that the processes that tests start have them, too. Tests
that need several devices ask for them in a process of their own: a flag here would change every other test. To the
tests of one process the CPU is one device, also where a grid would make its cores devices.
"""

import os
from pathlib import Path

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(Path.home() / '.cache' / 'jaxformer' / 'test-xla'))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')

import jax  # noqa: E402 - reads the variables

jax.config.update('jax_num_cpu_devices', 1)
