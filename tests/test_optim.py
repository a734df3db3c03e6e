"""Schedules and optimisers against their formulas, and what weight decay leaves alone (B20, B22)."""

import itertools
import logging
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import config, optim, sharding
from jaxformer.model import transformer

BASE = Path(__file__).parents[1] / 'configs' / 'base.py'


def resolved(**changes):
    """configs/base.py with changes, `__` for the dot of a path."""
    edited = config.load(BASE)
    config.override(edited, {path.replace('__', '.'): value for path, value in changes.items()})
    return config.resolve(edited)


def rates(cfg, updates):
    """Learning rates of updates 1, 2, … as float64."""
    schedule = optim.schedule(cfg)
    return np.array([float(schedule(update - 1)) for update in updates])


# Schedules


def test_noam_gives_the_numbers_of_the_paper():
    found = rates(resolved(), [1, 4000, 8000])
    np.testing.assert_allclose(found, [1.74693e-7, 6.98771e-4, 4.94106e-4], rtol=1e-5)


def test_noam_is_equation_3_everywhere():
    cfg = resolved(model__d_model=48, optim__warmup_steps=7, optim__learning_rate=3.0)
    expected = [3 * 48**-0.5 * min(step**-0.5, step * 7**-1.5) for step in range(1, 30)]
    np.testing.assert_allclose(rates(cfg, range(1, 30)), expected, rtol=1e-6)


@pytest.mark.parametrize('kind', sorted(optim.SCHEDULES))
def test_no_warmup_starts_at_the_peak(kind):
    cfg = resolved(optim__schedule=kind, optim__warmup_steps=0, train__num_steps=10)
    found = rates(cfg, range(1, 11))
    peak = 512**-0.5 if kind == 'noam' else 1.0
    assert np.all(np.isfinite(found)) and np.all(found > 0)
    np.testing.assert_allclose(found[0], peak, rtol=1e-6)
    assert np.argmax(found) == 0


@pytest.mark.parametrize('kind', ['constant', 'linear', 'cosine'])
def test_warmup_is_linear_to_the_peak(kind):
    cfg = resolved(optim__schedule=kind, optim__warmup_steps=4, train__num_steps=20, optim__learning_rate=2.0)
    np.testing.assert_allclose(rates(cfg, [1, 2, 3, 4]), [0.5, 1.0, 1.5, 2.0], rtol=1e-6)


def test_what_comes_after_the_warmup_is_what_optax_has():
    """Update w + 1 is at the peak (optax's count 0 after warm-up), and the step after the last would be at 0."""
    n, w = 20, 4
    after = range(w + 1, n + 2)
    make = lambda kind: rates(resolved(optim__schedule=kind, optim__warmup_steps=w, train__num_steps=n), after)  # noqa: E731
    linear = optax.linear_schedule(1.0, 0.0, n - w)
    cosine = optax.cosine_decay_schedule(1.0, n - w)
    np.testing.assert_allclose(make('constant'), 1.0)
    np.testing.assert_allclose(make('linear'), [float(linear(i)) for i in range(n - w + 1)], atol=1e-6)
    np.testing.assert_allclose(make('cosine'), [float(cosine(i)) for i in range(n - w + 1)], atol=1e-6)


@pytest.mark.parametrize('kind', ['linear', 'cosine'])
def test_the_last_update_still_learns_and_nothing_goes_below_zero(kind):
    cfg = resolved(optim__schedule=kind, optim__warmup_steps=4, train__num_steps=20)
    found = rates(cfg, [19, 20, 21, 99])
    assert found[0] > found[1] > 0 and found[2] == found[3] == 0


@pytest.mark.parametrize('kind', sorted(optim.SCHEDULES))
def test_a_warmup_longer_than_the_run_warns_and_still_rises(kind, caplog):
    cfg = resolved(optim__schedule=kind, optim__warmup_steps=30, train__num_steps=10)
    with caplog.at_level(logging.WARNING):
        optim.warn(cfg)
        found = rates(cfg, range(1, 11))
    assert caplog.text.count('warmup_steps=30') == 1 and 'num_steps=10' in caplog.text
    assert np.all(np.diff(found) > 0)


def test_the_schedule_is_the_same_under_jit_and_for_an_array():
    schedule = optim.schedule(resolved(optim__schedule='cosine', optim__warmup_steps=3, train__num_steps=9))
    assert float(jax.jit(schedule)(jnp.int32(5))) == pytest.approx(float(schedule(5)), rel=1e-6)


# Optimisers


def adam_by_hand(params, gradients, cfg):
    """AIAYN 5.3 and Kingma and Ba 2015, algorithm 1, in float64."""
    m = v = np.zeros_like(params)
    for t, g in enumerate(gradients, start=1):
        m = cfg.optim.beta1 * m + (1 - cfg.optim.beta1) * g
        v = cfg.optim.beta2 * v + (1 - cfg.optim.beta2) * g**2
        m_hat, v_hat = m / (1 - cfg.optim.beta1**t), v / (1 - cfg.optim.beta2**t)
        rate = cfg.optim.learning_rate * cfg.model.d_model**-0.5 * min(t**-0.5, t * cfg.optim.warmup_steps**-1.5)
        params = params - rate * m_hat / (np.sqrt(v_hat) + cfg.optim.epsilon)
    return params


def run(optimizer, params, gradients):
    state = optimizer.init(params)
    for g in gradients:
        updates, state = optimizer.update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_adam_is_the_algorithm_of_the_paper():
    cfg = resolved(model__d_model=48, optim__warmup_steps=2)
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(5), 1e-3 * rng.standard_normal((3, 5))
    found = run(optim.build(cfg), jnp.asarray(start, jnp.float32), list(jnp.asarray(gradients, jnp.float32)))
    expected = adam_by_hand(start, gradients, cfg)
    assert np.abs(expected - start).min() > 1e-2
    np.testing.assert_allclose(found, expected, rtol=1e-5)


PARAMS = {
    'kernel': jnp.array([[1.0, -2.0], [3.0, 0.5]]),
    'inner_bias': jnp.array([1.0, -1.0]),
    'scale': jnp.array([2.0]),
}
GRADIENTS = [jax.tree.map(lambda x, i=i: 0.1 * jnp.cos(x + i), PARAMS) for i in range(3)]
CONSTANT = {'optim__schedule': 'constant', 'optim__warmup_steps': 0, 'optim__learning_rate': 0.03}


def test_weight_decay_is_that_of_adamw():
    cfg = resolved(**CONSTANT, optim__weight_decay=0.2)
    mask = {'kernel': True, 'inner_bias': False, 'scale': False}
    reference = optax.adamw(0.03, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.2, mask=mask)
    found, expected = run(optim.build(cfg), PARAMS, GRADIENTS), run(reference, PARAMS, GRADIENTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
    plain = run(optim.build(resolved(**CONSTANT)), PARAMS, GRADIENTS)
    assert not np.allclose(plain['kernel'], found['kernel'])
    np.testing.assert_array_equal(plain['scale'], found['scale'])


def test_sgd_is_that_of_optax_with_momentum():
    cfg = resolved(**CONSTANT, optim__name='sgd', optim__beta1=0.7)
    found, expected = run(optim.build(cfg), PARAMS, GRADIENTS), run(optax.sgd(0.03, 0.7), PARAMS, GRADIENTS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_clipping_scales_the_whole_gradient_to_the_norm_and_leaves_a_small_one():
    cfg = resolved(**CONSTANT, optim__name='sgd', optim__beta1=0.0, optim__clip_norm=0.05)
    big, small = GRADIENTS[0], jax.tree.map(lambda x: 1e-3 * x, GRADIENTS[0])
    moved = lambda g: jax.tree.map(lambda a, b: (a - b) / 0.03, PARAMS, run(optim.build(cfg), PARAMS, [g]))  # noqa: E731
    assert optax.tree.norm(big) > 0.1
    assert optax.tree.norm(moved(big)) == pytest.approx(0.05, rel=1e-3)
    ratio = jax.tree.map(lambda a, b: a / b, moved(big), big)
    np.testing.assert_allclose(jax.tree.leaves(ratio)[0], jax.tree.leaves(ratio)[2].ravel()[0], rtol=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), moved(small), small)


# Weight decay (B22)


@pytest.mark.parametrize('norm', config.CHOICES['model.norm'])
def test_no_norm_and_no_bias_is_decayed_in_any_design(norm):
    kinds = itertools.cycle(config.CHOICES['model.feed_forward'])
    tables = itertools.cycle(itertools.product(('tied', 'untied'), ('learned', 't5_relative', 'none')))
    orders = [order for order in config.CHOICES['model.residual'] if (order, norm) != ('deepnorm', 'none')]
    for order, feed_forward, (softmax, position) in zip(orders, kinds, tables, strict=False):
        cfg = resolved(
            model__norm=norm,
            model__residual=order,
            model__feed_forward=feed_forward,
            model__embedding__softmax=softmax,
            model__embedding__softmax_bias='on',
            model__embedding__norm='off' if norm == 'none' else 'on',
            model__position=position,
            model__attention__bias='all',
            model__num_layers=1,
        )
        assert_no_norm_and_no_bias_is_decayed(cfg)


@pytest.mark.parametrize('mixer', config.CHOICES['model.mixer'])
def test_no_bias_of_any_mixer_is_decayed(mixer):
    decoder = 'attention' if mixer == 'linformer' else mixer
    cfg = resolved(model__mixer=mixer, model__decoder_mixer=decoder, model__attention__bias='all', model__num_layers=1)
    assert_no_norm_and_no_bias_is_decayed(cfg)


def assert_no_norm_and_no_bias_is_decayed(cfg):
    flags = jax.tree_util.tree_flatten_with_path(optim.decay_mask(transformer.abstract_params(cfg.model, 13)))[0]
    assert flags
    for path, decayed in flags:
        name = sharding.path_name(path)
        last = name.rpartition('/')[2]
        assert decayed is not (last in ('scale', 'bias') or last.endswith('_bias')), name


def test_matrices_and_tables_are_decayed():
    cfg = resolved(model__position='learned', model__feed_forward='swiglu', model__embedding__softmax='untied')
    flags = jax.tree_util.tree_flatten_with_path(optim.decay_mask(transformer.abstract_params(cfg.model, 13)))[0]
    decayed = {sharding.path_name(path) for path, flag in flags if flag}
    assert {'embedding', 'softmax', 'encoder/position/table', 'decoder/layers/cross_attention/out'} <= decayed
    assert {'encoder/layers/feed_forward/gate', 'encoder/layers/feed_forward/inner'} <= decayed
    assert len(decayed) == 2 + 2 + 3 * 4 + 2 * 3


def test_the_learning_rate_of_a_step_is_finite_over_a_whole_run():
    for kind, warmup in itertools.product(optim.SCHEDULES, (0, 1, 5, 6, 7)):
        found = rates(resolved(optim__schedule=kind, optim__warmup_steps=warmup, train__num_steps=6), range(1, 7))
        assert all(math.isfinite(rate) and rate > 0 for rate in found), (kind, warmup)
