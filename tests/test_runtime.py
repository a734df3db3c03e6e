"""What is said to JAX and when; and that importing the package says nothing yet."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxformer import runtime
from jaxformer.config import RuntimeConfig
from jaxformer.errors import UserError


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
builders = ('jaxformer.data.pairs', 'jaxformer.data.synthetic', 'jaxformer.data.cmudict', 'jaxformer.data.translation')
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
from jaxformer.config import RuntimeConfig
runtime.configure(RuntimeConfig(compilation_cache='', deterministic=True))
runtime.configure(RuntimeConfig(compilation_cache='', deterministic=True))
import jax
jax.devices()
runtime.configure(RuntimeConfig(compilation_cache='', deterministic=True))
print(os.environ['XLA_FLAGS'])
"""
    printed = run(program, XLA_FLAGS='--xla_force_host_platform_device_count=2').split()
    assert printed == ['--xla_force_host_platform_device_count=2', runtime.DETERMINISTIC_FLAG]


def test_determinism_asked_for_too_late_is_an_error(monkeypatch):
    jax.devices()
    monkeypatch.setenv('XLA_FLAGS', '')
    with pytest.raises(UserError, match='config.runtime.deterministic=True.*XLA_FLAGS=--xla'):
        runtime.configure(RuntimeConfig(compilation_cache='', deterministic=True))
    runtime.configure(RuntimeConfig(compilation_cache='', deterministic=False))
    assert os.environ['XLA_FLAGS'] == ''


def test_compiled_programs_are_kept_where_the_config_says(tmp_path):
    program = f"""
import jax
from jaxformer import runtime
from jaxformer.config import RuntimeConfig
runtime.configure(RuntimeConfig(compilation_cache={str(tmp_path / 'xla')!r}, deterministic=False))
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
