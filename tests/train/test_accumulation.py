"""A batch in parts gives the update of the batch as one: each label weighs the same, whichever part it is in."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from quick import jit

from jaxformer import hyperparameters, optim
from jaxformer.ablate import together
from jaxformer.model import transformer
from jaxformer.train import accumulation, loop
from jaxformer.train import state as states
from jaxformer.train import step as steps

V, Y, B, T = 15, 3, 8, 12
DRY = {'model.dropout.residual': 0.0, 'model.dropout.embedding': 0.0}
TEXT = {'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((T,),)}
FAMILIES = {
    'seq2seq': {},
    'lm': TEXT,
    'mlm': TEXT | {'train.masking.rate': 0.5},
    'classifier': TEXT | {'data.name': 'stdlib_labels', 'data.labels': 'syntax', 'model.head.pooling': 'tokens'},
}
# Of two parts the rows 0, 2, 4, 6 are one; of four the rows 3 and 7 are one, in which there is nothing but padding.
LENGTHS = (12, 1, 10, 0, 11, 2, 9, 0)


def make(family='seq2seq', **more):
    changes = {name.replace('__', '.'): value for name, value in more.items()}
    # Adam divides rounding by rounding where a gradient vanishes; a great epsilon keeps it from doing so.
    base = {'model.family': family, 'train.batch_size': B, 'optim.epsilon': 0.1, 'optim.warmup_steps': 0}
    return small.make(base | FAMILIES[family] | DRY | changes)


def batch_of(family, lengths=LENGTHS):
    rng = np.random.default_rng(5)
    real = np.arange(T) < np.array(lengths)[:, None]
    draw = lambda: jnp.asarray(np.where(real, rng.integers(5, V, real.shape), 0), jnp.int32)  # noqa: E731
    batch = {'example_id': jnp.where(jnp.any(real, axis=1), jnp.arange(len(lengths)), -1)}
    if family == 'seq2seq':
        return batch | {'source': draw(), 'target': draw()}
    if family == 'classifier':
        return batch | {'tokens': draw(), 'label': jnp.where(real, draw() % Y, -1)}
    return batch | {'tokens': draw()}


def step_of(cfg):
    """(step as a function of state and batch, fresh state)."""
    model = transformer.build(cfg.model, V, Y)
    step = steps.of(cfg, model)
    return lambda state, batch: step(state, batch, hyperparameters.of(cfg)), states.create(model, optim.build(cfg), 1)


def assert_close(found, expected, rtol=1e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-3, float(np.abs(b).max())))


@pytest.mark.parametrize('family', FAMILIES)
def test_the_update_is_that_of_the_batch_as_one(family):
    """B17. Of mlm the masked tokens are the same, too: they belong to the examples."""
    batch = batch_of(family)
    step, fresh = step_of(make(family))
    state, expected = jit(step)(fresh, batch)
    assert 20 < expected['tokens'] <= sum(LENGTHS) and expected['grad_norm'] > 0.1
    for parts in (2, 4):
        found, metrics = jit(step_of(make(family, train__accumulation=parts))[0])(fresh, batch)
        assert_close(metrics, expected)
        assert_close(found, state)
        assert metrics['tokens'] == expected['tokens'] and found.step == 1


def test_a_label_weighs_the_same_in_a_short_part_and_in_a_long_one():
    """B17: 10 labels of mean 2 and 100 of mean 1 are a mean of 12/11, not of 1.5; a part without labels is no part."""
    rows = {'mean': jnp.array([2.0, 1.0, 7.0]), 'labels': jnp.array([10.0, 100.0, 0.0])}

    def loss(params, rows, part):
        labels = jnp.sum(rows['labels'])
        return params * jnp.sum(rows['mean'] * rows['labels']) / jnp.maximum(labels, 1), labels

    for parts in (1, 3):
        mean, labels, gradient = accumulation.value_and_grad(loss, parts, jnp.float32(3.0), rows)
        assert (float(mean), float(labels), float(gradient)) == pytest.approx((36 / 11, 110, 12 / 11), rel=1e-6)
    nothing = {'mean': jnp.zeros(2), 'labels': jnp.zeros(2)}
    assert [float(x) for x in accumulation.value_and_grad(loss, 2, jnp.float32(3.0), nothing)] == [0, 0, 0]


def test_gradients_are_summed_in_float32_and_come_as_the_parameters():
    """Sixteen gradients of 1/256 and one of 1 are 1 + 1/16; in bfloat16 each of the small ones would be lost."""
    rows = {'factor': jnp.array([1.0] + [1 / 256] * 16) * 17, 'labels': jnp.ones(17)}
    loss = lambda params, rows, part: (params * jnp.sum(rows['factor']), jnp.sum(rows['labels']))  # noqa: E731
    _, _, gradient = accumulation.value_and_grad(loss, 17, jnp.bfloat16(1.0), rows)
    assert gradient.dtype == jnp.bfloat16 and float(gradient) == 1 + 1 / 16


@pytest.mark.parametrize('kernel', ['plain', 'blockwise'])
def test_dropout_masks_are_those_of_the_batch_as_one(kernel):
    places = {f'model__dropout__{place}': 0.4 for place in hyperparameters.DROPOUT_PLACES}
    more = places | {'model__attention__kernel': kernel, 'model__attention__block': 5}
    batch = batch_of('lm')
    step, fresh = step_of(make('lm', **more))
    state, expected = jit(step)(fresh, batch)
    found, metrics = jit(step_of(make('lm', train__accumulation=4, **more))[0])(fresh, batch)
    assert_close(metrics, expected)
    assert_close(found, state)
    dry = jit(step_of(make('lm'))[0])(fresh, batch)[1]
    assert abs(float(dry['loss'] / expected['loss']) - 1) > 1e-3


@pytest.mark.parametrize('mode', together.MODES)
def test_members_of_a_cohort_work_in_parts_as_a_run_alone_does(mode):
    cfg = make(train__accumulation=2)
    model, values = transformer.build(cfg.model, V, Y), hyperparameters.of(cfg)
    step, state = steps.of(cfg, model), step_of(cfg)[1]
    batches = [batch_of('seq2seq'), batch_of('seq2seq', LENGTHS[::-1])]
    each = [values, values.replace(learning_rate=np.float32(0.5))]
    tree = together.stacked([(state, *pair) for pair in zip(batches, each, strict=True)])
    found_C = jit(together.MODES[mode](step))(*tree, np.array([True, True]))
    for c, pair in enumerate(zip(batches, each, strict=True)):
        assert_close(jax.tree.map(lambda leaf, c=c: leaf[c], found_C), jit(step)(state, *pair))


def test_activations_are_those_of_one_part():
    """Temporary bytes of the compiled step, at a batch whose activations are most of them."""

    def temporary(parts):
        step, state = step_of(make(train__batch_size=64, train__accumulation=parts))
        lowered = jax.jit(step).lower(state, batch_of('seq2seq', LENGTHS * 8))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(8) < temporary(1) / 4


def test_a_run_counts_updates_and_not_parts(tmp_path, quick):
    """B19: schedule, log, checkpoints and the optimiser's count are those of accumulation 1."""
    changes = DRY | {'train.num_steps': 10, 'optim.warmup_steps': 5, 'optim.epsilon': 1e-3}
    for parts in (1, 3):
        loop.train(quick(changes | {'train.accumulation': parts}), tmp_path / str(parts))
    one, three = tmp_path / '1', tmp_path / '3'
    assert small.lines(three, 'train/learning_rate') == small.lines(one, 'train/learning_rate')
    assert small.lines(three, 'example_ids') == small.lines(one, 'example_ids')
    assert small.lines(three, 'train/tokens') == small.lines(one, 'train/tokens')
    for name in ('train/loss', 'train/grad_norm'):
        assert small.lines(three, name) == pytest.approx(small.lines(one, name), rel=1e-5)
    assert list(small.lines(three, 'train/loss')) == list(range(1, 11))
    assert small.checkpoints(three) == small.checkpoints(one) == [5, 10]
    state = small.state(three)
    assert (state['step'], state['opt_state/1/count'], state['data/next_index']) == (10, 10, 10)


# Left to itself, XLA's pool of threads for eight devices of a CPU with few cores may wait for itself in a collective.
CHILD = """
import json, os, sys
sys.path.insert(0, sys.argv[2])
os.environ['XLA_FLAGS'] += ' --xla_cpu_multi_thread_eigen=false'
import jax, numpy as np, test_accumulation as own
from jaxformer import hyperparameters, optim, sharding
from jaxformer.model import transformer
from jaxformer.train import state as states, step as steps
assert jax.device_count() == 8
changes, lengths = json.loads(sys.argv[1])
for parts in (1, 4):
    cfg = own.make(train__accumulation=parts, **changes)
    mesh = sharding.make_mesh(cfg.mesh)
    model = sharding.laid_out(transformer.build(cfg.model, own.V, own.Y, mesh), mesh)
    target = states.abstract(model, optim.build(cfg), mesh)
    state = states.initialise(model, optim.build(cfg), 1, target)
    batch = sharding.put_batch(jax.tree.map(np.asarray, own.batch_of('seq2seq', lengths)), mesh)
    step = steps.compiled_step(cfg, model, target)
    compiled = step._jitted.lower(state, batch, hyperparameters.of(cfg)).compile()
    new, metrics = step(state, batch, hyperparameters.of(cfg))
    print(json.dumps([compiled.memory_analysis().temp_size_in_bytes, float(metrics['loss']),
        float(metrics['grad_norm']), float(optim.optax.tree.norm(new.params))]))
"""


def test_each_device_has_its_share_of_every_part():
    """On data=2, fsdp=4: the numbers of one device, and less memory per device than the batch as one takes."""
    changes = {'mesh__data': 2, 'mesh__fsdp': 4, 'model__d_model': 24, 'train__batch_size': 256}
    lengths = LENGTHS * 32
    done = small.run_process('-c', CHILD, json.dumps([changes, lengths]), str(small.ROOT / 'tests'), devices=8)
    assert done.returncode == 0, done.stderr[-3000:]
    (whole, *expected), (parts, *found) = map(json.loads, done.stdout.splitlines())
    assert found == pytest.approx(expected, rel=1e-5) and parts < whole / 2
    step, state = step_of(make(model__d_model=24))
    new, metrics = jit(step)(state, batch_of('seq2seq', lengths))
    alone = [metrics['loss'], metrics['grad_norm'], optim.optax.tree.norm(new.params)]
    assert found == pytest.approx([float(number) for number in alone], rel=1e-5)
