from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import draw_params

from jaxformer import config
from jaxformer.model import transformer
from jaxformer.model.context import Context
from jaxformer.model.masks import Sight
from jaxformer.model.mixers import MIXERS

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
    """Gives a small ModelConfig with changes (`attention__score='dot'`)."""

    def make(*, family='seq2seq', **changes):
        edited = config.load(BASE)
        even = {'model.d_k': 6} if changes.get('position') == 'rotary' else {}  # it turns pairs of columns
        changes = {f'model.{name.replace("__", ".")}': value for name, value in changes.items()}
        config.override(edited, SMALL | even | {'model.family': family} | OF_FAMILY[family] | changes)
        return config.resolve(edited).model

    return make


@pytest.fixture(scope='session')
def make_model(make_config):
    """Gives (model, params) of a small config with changes."""

    def make(**changes):
        cfg = make_config(**changes)
        spread = 0.1 if cfg.norm == 'none' else 0.3  # what nothing normalises grows, and rounding with it
        return transformer.build(cfg, VOCAB, CLASSES), draw_params(
            transformer.abstract_params(cfg, VOCAB, CLASSES), spread
        )

    return make


def context_of(valid_BT, causal, segment_BT=None):
    """What a stack tells its blocks about rows of which some are padding."""
    valid_BT = jnp.asarray(valid_BT)
    position_1T, sight = jnp.arange(valid_BT.shape[1])[None], Sight(valid_BT, causal=causal)
    return Context(valid_BT, sight, position_1T, position_1T, segment_BT=segment_BT)


@pytest.fixture(scope='session')
def make_mixer(make_config):
    """Gives (function, params) of one mixer by itself.

    The function (params, x_BTD, valid_BT=None, layer=0, cache=None, segment_BT=None) gives (y_BTD, cache, maps).
    """

    def make(mixer, causal, **changes):
        cfg = make_config(family='lm' if causal else 'mlm', mixer=mixer, **changes)
        module = MIXERS[mixer](cfg, causal=causal)
        x = jnp.zeros((2, 3, cfg.d_model))

        def run(params, x_BTD, valid_BT=None, layer=0, cache=None, segment_BT=None):
            valid_BT = np.ones(x_BTD.shape[:2], bool) if valid_BT is None else valid_BT
            context = context_of(valid_BT, causal, segment_BT)
            return module.apply({'params': params}, x_BTD, cache, context, layer, lambda weights: weights)

        context = context_of(np.ones((2, 3), bool), causal)
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, None, context, 0, lambda weights: weights))
        return run, draw_params(shapes['params'], 0.3)

    return make
