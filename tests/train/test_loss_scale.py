"""Training in float16: the scale of the loss finds what fits, and a step that overflowed costs nothing but itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from quick import jit

from jaxformer import hyperparameters, optim, sharding
from jaxformer.errors import RunError
from jaxformer.model import transformer
from jaxformer.train import loop, loss_scale
from jaxformer.train import state as states
from jaxformer.train import step as steps
from jaxformer.train.loss_scale import LossScale

HALF = {'model.precision.compute': 'float16'}
DRY = {'model.dropout.residual': 0.0, 'model.dropout.embedding': 0.0}
SYMBOLS = 15
ROWS = jnp.array([[4, 5, 6, 2, 0], [7, 8, 2, 0, 0], [9, 2, 0, 0, 0], [5, 9, 9, 9, 2]], jnp.int32)
BATCH = {'source': ROWS, 'target': ROWS[:, ::-1], 'example_id': jnp.arange(4)}


def setup(more=None):
    """(compiled step, fresh state) of a small model."""
    cfg = small.make({**DRY, 'train.batch_size': 4, **(more or {})})
    model, optimizer = transformer.build(cfg.model, SYMBOLS), optim.build(cfg)
    step = steps.of(cfg, model)
    return jit(lambda state, batch: step(state, batch, hyperparameters.of(cfg))), states.create(model, optimizer, 1)


def with_scale(state, scale):
    return state.replace(loss_scale=state.loss_scale.replace(scale=jnp.float32(scale)))


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_the_scale_doubles_after_so_many_finite_updates_in_a_row_and_halves_after_one_that_is_not():
    scaling, seen = LossScale(jnp.float32(8), jnp.int32(0), grows_after=3), []
    for finite in (True, True, False, True, True, True, True, True, True, False):
        scaling = scaling.after(jnp.bool_(finite))
        seen.append(float(scaling.scale))
    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 16, 8]
    for bound, finite in ((loss_scale.LEAST, False), (loss_scale.GREATEST, True)):
        scaling = LossScale(jnp.float32(bound), jnp.int32(0), grows_after=1)
        assert scaling.after(jnp.bool_(finite)).scale == bound
        assert scaling.after(jnp.bool_(not finite)).scale != bound
    assert not LossScale(jnp.float32(loss_scale.LEAST), jnp.int32(0)).can_fall()


def test_only_a_state_in_float16_has_a_scale():
    """What is saved in other precisions is what was saved before there was a scale."""

    def paths(more):
        leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: setup(more)[1]))
        return {sharding.path_name(path) for path, _ in leaves}

    scale = {'loss_scale/scale', 'loss_scale/finite_in_row'}
    assert paths(HALF) == paths({}) | scale and not scale & paths({})
    assert paths({'model.precision.compute': 'bfloat16'}) == paths({})
    assert list(vars(setup()[1])) == ['step', 'params', 'opt_state', 'skipped', 'skipped_in_row']


@pytest.mark.parametrize('parts', [1, 2])
def test_an_overflow_halves_the_scale_once_and_leaves_the_parameters_bit_equal(parts):
    step, state = setup(HALF | {'train.accumulation': parts})
    before = with_scale(state, 2.0**40)  # of which float16 knows nothing
    after, metrics = step(before, BATCH)
    assert_same_bits((after.params, after.opt_state), (before.params, before.opt_state))
    assert np.isfinite(metrics['loss']) and not np.isfinite(metrics['grad_norm'])
    assert metrics['finite'] and metrics['loss_scale'] == 2.0**40  # no failure: it mends itself
    assert (after.loss_scale.scale, after.loss_scale.finite_in_row) == (2.0**39, 0)
    assert (after.step, after.skipped, after.skipped_in_row) == (1, 1, 0)
    while after.skipped == after.step:
        after, metrics = step(after, BATCH)
    assert 2.0**8 < metrics['loss_scale'] < 2.0**33 and after.loss_scale.scale == metrics['loss_scale']
    assert after.loss_scale.finite_in_row == 1 and after.opt_state[1].count == 1
    expected, reference = setup({'train.accumulation': parts})[0](setup()[1], BATCH)
    assert metrics['grad_norm'] == pytest.approx(float(reference['grad_norm']), rel=1e-2)
    assert metrics['learning_rate'] == reference['learning_rate']  # that of the first update
    moments = (jax.tree.leaves(state.opt_state[1].mu) for state in (after, expected))
    for found, exact in zip(*moments, strict=True):
        np.testing.assert_allclose(found, exact, atol=0.02 * float(np.abs(exact).max()))


def test_a_fault_that_no_scale_mends_is_one(monkeypatch):
    """A gradient that is not finite at the least scale, and a loss that is not: that one says nothing of the scale."""
    loss_fn = steps.loss_fn

    def broken(params, batch, *args):
        loss, tokens = loss_fn(params, batch, *args)
        steep = jnp.sqrt(0 * jnp.sum(params['embedding']))  # 0, with a gradient that is not a number
        return loss + jnp.where(batch['steep'], steep, 0) + jnp.where(batch['bad'], jnp.inf, 0), tokens

    monkeypatch.setattr(steps, 'loss_fn', broken)
    step, state = setup(HALF)
    for scale, finite, after in ((4, True, 2), (2, True, 1), (1, False, 1)):
        new, metrics = step(with_scale(state, scale), BATCH | {'steep': True, 'bad': False})
        assert (bool(metrics['finite']), float(new.loss_scale.scale)) == (finite, after)
        assert (new.skipped, new.skipped_in_row) == (1, not finite)
    new, metrics = step(state, BATCH | {'steep': False, 'bad': True})
    assert not metrics['finite'] and (new.skipped, new.skipped_in_row) == (1, 1)
    assert_same_bits(new.loss_scale, state.loss_scale)


def test_small_gradients_are_there_for_the_scale_alone(monkeypatch):
    loss_fn = steps.loss_fn
    monkeypatch.setattr(
        steps, 'loss_fn', lambda params, batch, *args: (1e-7 * loss_fn(params, batch, *args)[0], jnp.float32(13))
    )
    exact = float(setup()[0](setup()[1], BATCH)[1]['grad_norm'])
    step, state = setup(HALF)
    norms = [float(step(with_scale(state, scale), BATCH)[1]['grad_norm']) for scale in (1, 2.0**16)]
    assert norms[1] == pytest.approx(exact, rel=1e-2) and abs(norms[0] / exact - 1) > 0.1


def test_a_run_in_float16_is_that_in_float32_but_for_rounding(tmp_path, quick, monkeypatch):
    """Where nothing overflows, update by update: rounding grows, slowly."""
    monkeypatch.setattr(loss_scale, 'FIRST', 2.0**10)
    changes = DRY | {'train.num_steps': 70, 'optim.learning_rate': 0.5}
    loop.train(quick(changes | HALF), tmp_path / 'half')
    loop.train(quick(changes), tmp_path / 'single')
    half, single = (list(small.lines(tmp_path / name, 'train/loss').values()) for name in ('half', 'single'))
    assert small.lines(tmp_path / 'half', 'train/skipped')[70] == 0 and half != single
    np.testing.assert_allclose(half[:20], single[:20], rtol=2e-3)
    np.testing.assert_allclose(half, single, rtol=0.02)


def test_overflows_cost_their_steps_alone(tmp_path, quick, monkeypatch):
    """Under nan_policy=stop; the scale is saved: a run that was stopped goes on bit-equal."""
    monkeypatch.setattr(loss_scale, 'FIRST', 2.0**30)
    changes = DRY | {'train.num_steps': 70, 'optim.learning_rate': 0.5}
    loop.train(quick(changes | HALF), tmp_path / 'half')
    loop.train(quick(changes), tmp_path / 'single')
    half, single = (list(small.lines(tmp_path / name, 'train/loss').values()) for name in ('half', 'single'))
    skipped = int(small.lines(tmp_path / 'half', 'train/skipped')[70])
    assert 3 < skipped < 20
    assert np.mean(half[-9:]) < 0.9 * half[0]
    # Update by update the batches are others: a mean over three epochs is compared.
    assert np.mean(half[-27:]) == pytest.approx(np.mean(single[-27 - skipped : -skipped]), rel=0.05)
    state = small.state(tmp_path / 'half')
    assert (state['step'], state['opt_state/1/count'], state['skipped_in_row']) == (70, 70 - skipped, 0)
    assert state['loss_scale/scale'] == 2.0 ** (30 - skipped) and 0 < state['loss_scale/finite_in_row'] <= 70 - skipped
    for end in (skipped - 1, 70):
        loop.train(quick(changes | HALF | {'train.num_steps': end}), tmp_path / 'again')
    small.assert_bit_equal(small.state(tmp_path / 'again'), state)


def test_a_run_whose_scale_cannot_fall_stops(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(loss_scale, 'FIRST', 2.0**40)
    monkeypatch.setattr(loss_scale, 'LEAST', 2.0**38)
    with pytest.raises(RunError, match=r'step 3: loss \d.*gradient norm (nan|inf)'):
        loop.train(quick(DRY | HALF), tmp_path / 'run')
