"""What is said to JAX and when; and that importing the package says nothing yet."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxformer import runtime
from jaxformer.errors import UserError
from jaxformer.schema import RuntimeConfig


def run(program, **environment):
    """Runs a program in a process of its own, where no backend has started; returns what it prints."""
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', **environment}
    result = subprocess.run([sys.executable, '-c', program], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_every_module_starts_no_device_and_loads_nothing_heavy():
    program = """
import importlib, pkgutil, sys
import jaxformer
builders = ['jaxformer.data.' + name for name in ('pairs', 'synthetic', 'cmudict', 'help_pages', 'translation')]
for module in pkgutil.walk_packages(jaxformer.__path__, 'jaxformer.'):
    if module.name not in builders:
        importlib.import_module(module.name)
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
print(*(name for name in ('tensorflow_datasets', 'tensorflow', 'matplotlib', 'grain', 'torch') if name in sys.modules))
"""
    assert run(program).split() == []


def test_determinism_is_asked_for_before_a_backend_starts_and_other_flags_stay():
    program = """
import os
from jaxformer import runtime
from jaxformer.schema import RuntimeConfig
runtime.configure(RuntimeConfig(compilation_cache='', freed_memory='return', deterministic=True))
runtime.configure(RuntimeConfig(compilation_cache='', freed_memory='return', deterministic=True))
import jax
jax.devices()
runtime.configure(RuntimeConfig(compilation_cache='', freed_memory='return', deterministic=True))
print(os.environ['XLA_FLAGS'])
"""
    printed = run(program, XLA_FLAGS='--xla_force_host_platform_device_count=2').split()
    assert printed == ['--xla_force_host_platform_device_count=2', runtime.DETERMINISTIC_FLAG]


def test_determinism_asked_for_too_late_is_an_error(monkeypatch):
    jax.devices()
    monkeypatch.setenv('XLA_FLAGS', '')
    with pytest.raises(UserError, match='config.runtime.deterministic=True.*XLA_FLAGS=--xla'):
        runtime.configure(RuntimeConfig(compilation_cache='', freed_memory='return', deterministic=True))
    runtime.configure(RuntimeConfig(compilation_cache='', freed_memory='return', deterministic=False))
    assert os.environ['XLA_FLAGS'] == ''


def test_compiled_programs_are_kept_where_the_config_says(tmp_path):
    program = f"""
import jax
from jaxformer import runtime
from jaxformer.schema import RuntimeConfig
cache = {str(tmp_path / 'xla')!r}
runtime.configure(RuntimeConfig(compilation_cache=cache, freed_memory='return', deterministic=False))
jax.jit(lambda x: x * 3 + 1)(jax.numpy.arange(7.0))
"""
    run(program)
    kept = {path.name for path in (tmp_path / 'xla').iterdir()}
    assert kept
    run(program)
    assert {path.name for path in (tmp_path / 'xla').iterdir() if path.name in kept} == kept


def test_a_cpu_is_bitwise_reproducible():
    assert runtime.determinism() == 'bitwise'


def test_compilations_are_counted_once_per_shape():
    double = runtime.CountedJit(lambda x: 2 * x)
    for size in (3, 4, 3, 4, 3):
        assert double(jnp.ones(size)).sum() == 2 * size
    assert double.compilations == 2


def test_what_is_freed_stays_with_the_process_unless_it_is_to_be_returned():
    """Pages that are made anew for an array of 64 MB that is written and freed, again and again."""
    code = """
import resource, sys
import numpy as np
from configs import base
from jaxformer import config, runtime
edited = base.get_config()
config.override(edited, {'runtime.freed_memory': sys.argv[1], 'runtime.compilation_cache': ''})
runtime.configure(config.resolve(edited).runtime)
fill = lambda: np.ones(2**24, np.float32).sum()
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""
    around = {'cwd': Path(__file__).parents[1], 'env': {**os.environ, 'NUMPY_MADVISE_HUGEPAGE': '0'}}
    command = [sys.executable, '-c', code]
    faults = [
        int(subprocess.run([*command, how], **around, stdout=-1, text=True, check=True).stdout)
        for how in ('keep', 'return')
    ]
    assert faults[0] < 500 < 10_000 < faults[1]
