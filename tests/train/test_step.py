"""One update as a function: what it depends on, what padding and non-finite numbers do to it, the same on any mesh."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from jaxformer import hyperparameters, optim, sharding
from jaxformer.model import transformer
from jaxformer.train import loop
from jaxformer.train import state as states
from jaxformer.train import step as steps

SYMBOLS = 15


def setup(more=None):
    """(jitted step, fresh state) of a small model."""
    cfg = small.make(more)
    model, optimizer = transformer.build(cfg.model, SYMBOLS), optim.build(cfg)

    values = hyperparameters.of(cfg)

    def step(state, batch, seed=0):
        return steps.of(cfg, model)(state, batch, values.replace(seed=seed))

    mesh = sharding.make_mesh(cfg.mesh)
    return jax.jit(step), states.initialise(model, optimizer, 1, states.abstract(model, optimizer, mesh))


NO_DROPOUT = {'model.dropout.residual': 0.0, 'model.dropout.embedding': 0.0}


@pytest.fixture(scope='module')
def plain():
    return setup(NO_DROPOUT)


@pytest.fixture(scope='module')
def dropping():
    return setup()


def batch(*rows, S=5, T=6):
    """Source and target of each row are its symbols and the end."""
    pad = lambda row, size: [*row, 2, *[0] * (size - len(row) - 1)] if row else [0] * size  # noqa: E731
    return {
        'source': jnp.array([pad(row, S) for row in rows], jnp.int32),
        'target': jnp.array([pad(row[::-1], T) for row in rows], jnp.int32),
        'example_id': jnp.array([i if row else -1 for i, row in enumerate(rows)], jnp.int32),
    }


ROWS = ([4, 5, 6], [7, 8], [9, 10, 11, 12])


def assert_close(a, b, rtol):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * max(1e-3, float(np.abs(y).max())))


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('name', ['adam', 'sgd'])
def test_a_step_leaves_every_array_of_the_state_its_dtype(name, dtype):
    """The hyperparameters are float32 arrays, which must not make more of bfloat16 moments than they were."""
    cfg = small.make({'optim.name': name, 'optim.weight_decay': 0.1, 'model.precision.parameters': dtype})
    model = transformer.build(cfg.model, SYMBOLS)
    before = states.abstract(model, optim.build(cfg), sharding.make_mesh(cfg.mesh))
    after, _ = jax.eval_shape(steps.of(cfg, model), before, batch(*ROWS), hyperparameters.of(cfg))
    of = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)  # noqa: E731
    assert of(after) == of(before)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(after.params)} == {dtype}


def test_padding_counts_for_nothing(plain):
    """B15: three rows and four columns of padding change neither loss nor count nor the new parameters."""
    step, state = plain
    bare, measured = step(state, batch(*ROWS))
    padded, with_padding = step(state, batch(*ROWS, [], [], [], S=9, T=10))
    assert measured['tokens'] == with_padding['tokens'] == 4 + 3 + 5
    assert measured['loss'] == pytest.approx(float(with_padding['loss']), rel=1e-6)
    assert measured['grad_norm'] == pytest.approx(float(with_padding['grad_norm']), rel=1e-5)
    assert_close(bare.opt_state, padded.opt_state, 1e-5)


def test_a_batch_of_padding_alone_is_zero_and_finite(plain):
    step, state = plain
    new, metrics = step(state, batch([], []))
    assert (metrics['loss'], metrics['tokens'], metrics['grad_norm']) == (0, 0, 0) and metrics['finite']
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))


def test_dropout_follows_from_seed_and_step_alone(dropping, plain):
    step, state = dropping
    first, again = step(state, batch(*ROWS), 7), step(state, batch(*ROWS), 7)
    assert_same_bits(first, again)
    assert step(state, batch(*ROWS), 8)[1]['loss'] != first[1]['loss']
    assert step(state.replace(step=state.step + 1), batch(*ROWS), 7)[1]['loss'] != first[1]['loss']
    assert step._cache_size() == 1  # runs that differ in the seed share a program
    step, state = plain
    assert_same_bits(step(state, batch(*ROWS), 7), step(state, batch(*ROWS), 8))


def test_not_finite_changes_nothing_but_the_counters(plain):
    """B43, B35: parameters, moments and the optimiser's count stay; the learning rate is that of good updates."""
    step, state = plain
    good, _ = step(state, batch(*ROWS))
    embedding = good.params['embedding']
    poisoned = good.replace(params={**good.params, 'embedding': embedding.at[5, 0].set(jnp.inf)})
    new, metrics = step(poisoned, batch(*ROWS))
    assert not metrics['finite'] and not np.isfinite(metrics['loss'])
    assert_same_bits((new.params, new.opt_state), (poisoned.params, poisoned.opt_state))
    assert (new.step, new.skipped, new.skipped_in_row) == (2, 1, 1)
    new, metrics = step(new, batch(*ROWS))
    assert (new.step, new.skipped, new.skipped_in_row, metrics['skipped']) == (3, 2, 2, 2)
    mended, metrics = step(new.replace(params=good.params), batch(*ROWS))
    assert metrics['finite'] and (mended.step, mended.skipped, mended.skipped_in_row) == (4, 2, 0)
    assert mended.opt_state[1].count == 2
    assert metrics['learning_rate'] == pytest.approx(12**-0.5 * 2 * 10**-1.5, rel=1e-6)


def test_the_gradient_norm_is_that_before_clipping(plain):
    step, state = plain
    clipped, fresh = setup({**NO_DROPOUT, 'optim.clip_norm': 1e-3, 'optim.epsilon': 1.0})
    unclipped, _ = setup({**NO_DROPOUT, 'optim.epsilon': 1.0})
    (a, norm), (b, clipped_norm) = unclipped(state, batch(*ROWS)), clipped(fresh, batch(*ROWS))
    assert norm['grad_norm'] == pytest.approx(float(clipped_norm['grad_norm']), rel=1e-6) and norm['grad_norm'] > 0.1
    moved = [float(optim.optax.tree.norm(optim.optax.tree.sub(x.params, state.params))) for x in (a, b)]
    assert moved[1] < 0.1 * moved[0]


MESHES = {
    'data': {'mesh.data': 8},
    'fsdp': {'mesh.data': 1, 'mesh.fsdp': 8},
    'model': {'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.model': 2},
    'seq': {'mesh.data': 4, 'mesh.seq': 2},
}
ON_A_MESH = {
    'model.d_model': 16,
    'model.num_heads': 2,
    'model.vocab_size': 16,
    **{f'model.dropout.{site}': 0.1 for site in ('attention', 'residual', 'feed_forward', 'embedding')},
    'optim.epsilon': 1e-3,  # Adam divides rounding by rounding where a gradient vanishes; this keeps it from doing so
    'train.num_steps': 3,
    'train.batch_size': 8,
    'data.num_examples': 17,  # the third batch has one row: on seven of eight devices there is padding alone
    'data.max_length': 7,
    'data.buckets': ((8, 8),),
}
CHILD = """
import json, sys
import jax, small
from jaxformer.train import loop, program
assert jax.device_count() == 8
program.Evaluator = program.Decoder = small.NoEvaluator
compiled = []
def listen(event, seconds, **about):
    if event.endswith('backend_compile_duration') and about['fun_name'] == 'jit(traced)':
        compiled.append(about)
jax.monitoring.register_event_duration_secs_listener(listen)
for number, (name, changes) in enumerate(json.loads(sys.argv[2]).items(), start=1):
    loop.train(small.make(changes), f'{sys.argv[1]}/{name}')
    assert len(compiled) == number, 'the layout of the state is not the same from step to step'
"""


def test_every_mesh_trains_alike(tmp_path, quick):
    """Eight devices against one, with dropout, through the loop: losses and parameters; then on with one device."""
    runs = {name: {**ON_A_MESH, **mesh, 'data.buckets': '((8, 8),)'} for name, mesh in MESHES.items()}
    done = small.run_process('-c', CHILD, str(tmp_path), json.dumps(runs), devices=8)
    assert done.returncode == 0, done.stderr[-3000:]
    loop.train(quick(ON_A_MESH), tmp_path / 'one')
    expected, losses = small.state(tmp_path / 'one'), small.lines(tmp_path / 'one', 'train/loss')
    assert sum(row >= 0 for row in small.lines(tmp_path / 'one', 'example_ids')[3]) == 1
    for name in MESHES:
        assert small.lines(tmp_path / name, 'train/loss') == pytest.approx(losses, rel=1e-5)
        for path, array in small.state(tmp_path / name).items():
            scale = max(float(np.abs(expected[path]).max()), 1e-3)
            np.testing.assert_allclose(array, expected[path], rtol=0, atol=1e-5 * scale, err_msg=f'{name}: {path}')
    longer = quick({**ON_A_MESH, 'train.num_steps': 5})
    for name in ('one', 'model'):
        loop.train(longer, tmp_path / name)
    a, b = (small.lines(tmp_path / name, 'train/loss') for name in ('one', 'model'))
    assert a == pytest.approx(b, rel=1e-5) and list(a) == [1, 2, 3, 4, 5]
