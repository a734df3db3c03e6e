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
TEXT = {'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((64,),)}
OF_FAMILY = {
    'seq2seq': {},
    'lm': TEXT,
    'mlm': TEXT,
    'classifier': {
        'data.name': 'labelled',
        'data.source': 'lines',
        'data.tokenizer': 'bytes',
        'data.buckets': ((64,),),
    },
}
"""Data that a family may be trained on; nothing here reads any."""

VOCAB, CLASSES = 13, 3


@pytest.fixture(scope='session')
def make_config():
    """Gives a small ModelConfig with changes (`attention__score='dot'`); `float16=True` computes in half precision."""

    def make(*, float16=False, family='seq2seq', **changes):
        edited = config.load(BASE)
        even = {'model.d_k': 6} if changes.get('position') == 'rotary' else {}  # it turns pairs of columns
        changes = {f'model.{name.replace("__", ".")}': value for name, value in changes.items()}
        config.override(edited, SMALL | even | {'model.family': family} | OF_FAMILY[family] | changes)
        cfg = config.resolve(edited).model
        if float16:  # no choice of a config, as training in it wants loss scaling
            cfg = dataclasses.replace(cfg, precision=dataclasses.replace(cfg.precision, compute='float16'))
        return cfg

    return make


@pytest.fixture(scope='session')
def draw_params():
    """Gives parameters of a ModelConfig in which every leaf is drawn, so that no bias or norm is idle.

    Drawn by NumPy from the shapes: compiling an initialisation would take longer than most tests.
    """

    def draw_all(cfg, vocab_size=VOCAB, num_classes=CLASSES):
        rng = np.random.default_rng(0)
        spread = 0.1 if cfg.norm == 'none' else 0.3  # what nothing normalises grows, and rounding with it

        def draw(path, leaf):
            values = spread * rng.standard_normal(leaf.shape) + (path[-1].key == 'scale')
            return jnp.asarray(values, leaf.dtype)

        return jax.tree_util.tree_map_with_path(draw, transformer.abstract_params(cfg, vocab_size, num_classes))

    return draw_all


@pytest.fixture(scope='session')
def make_model(make_config, draw_params):
    """Gives (model, params) of a small config with changes."""

    def make(**changes):
        cfg = make_config(**changes)
        return transformer.build(cfg, VOCAB, CLASSES), draw_params(cfg)

    return make
