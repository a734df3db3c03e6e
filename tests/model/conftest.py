import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import config
from jaxformer.model import transformer

BASE = Path(__file__).parents[2] / 'configs' / 'base.py'

# Sizes that are small, odd where they may be, and all different, so that a mixed-up axis cannot pass unseen.
SMALL = {
    'model.vocab_size': 0,
    'model.d_model': 16,
    'model.num_heads': 3,
    'model.d_k': 5,
    'model.d_v': 7,
    'model.d_ff': 11,
    'model.num_layers': 2,
    'model.max_length': 64,
    'model.dropout.residual': 0.0,
    'model.dropout.embedding': 0.0,
}
VOCAB = 13


@pytest.fixture(scope='session')
def make_config():
    """Gives a small ModelConfig with changes (`attention__score='dot'`); `float16=True` computes in half precision."""

    def make(*, float16=False, **changes):
        edited = config.load(BASE)
        config.override(edited, SMALL | {f'model.{name.replace("__", ".")}': value for name, value in changes.items()})
        cfg = config.resolve(edited).model
        if float16:  # no choice of a config, as training in it wants loss scaling
            cfg = dataclasses.replace(cfg, precision=dataclasses.replace(cfg.precision, compute='float16'))
        return cfg

    return make


@pytest.fixture(scope='session')
def make_model(make_config):
    """Gives (model, params) of a small config with changes; every leaf is drawn, so that no bias or norm is idle.

    Drawn by NumPy from the shapes: compiling an initialisation would take longer than most tests.
    """

    def make(**changes):
        cfg = make_config(**changes)
        rng = np.random.default_rng(0)
        spread = 0.1 if cfg.norm == 'none' else 0.3  # what nothing normalises grows, and rounding with it

        def draw(path, leaf):
            values = spread * rng.standard_normal(leaf.shape) + (path[-1].key == 'scale')
            return jnp.asarray(values, leaf.dtype)

        params = jax.tree_util.tree_map_with_path(draw, transformer.abstract_params(cfg, VOCAB))
        return transformer.build(cfg, VOCAB), params

    return make
