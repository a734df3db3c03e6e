"""What is logged of the layers is what NumPy and jax.grad say of them, and asking for it changes no update."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from jaxformer import hyperparameters, objectives, optim, sharding
from jaxformer.model import ops, transformer
from jaxformer.train import layerwise, loop
from jaxformer.train import state as states
from jaxformer.train import step as steps
from jaxformer.train.program import Program

V, EOS, PAD = 15, 2, 0
CHANGES = {
    **{f'model.dropout.{place}': 0.3 for place in ('attention', 'residual', 'feed_forward', 'embedding')},
    **{'model.num_layers': 2, 'model.decoder_layers': 3, 'optim.label_smoothing': 0.1, 'model.residual': 'post'},
}
LM = {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((9,),)}


def setup(more=None):
    """(config, model, a state whose parameters all matter)."""
    cfg = small.make(CHANGES | (more or {}))
    model = transformer.build(cfg.model, V)
    mesh = sharding.make_mesh(cfg.mesh)
    state = states.initialise(model, optim.build(cfg), 1, states.abstract(model, optim.build(cfg), mesh))
    leaves, tree = jax.tree.flatten(state.params)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    noisy = [leaf + 0.2 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return cfg, model, mesh, state.replace(params=jax.tree.unflatten(tree, noisy), step=jnp.int32(7))


def batch_of(cfg):
    """Six rows of several lengths, the last of them none."""
    rng = np.random.default_rng(0)
    names = ('source', 'target') if cfg.model.family == 'seq2seq' else ('tokens',)
    batch = {'example_id': jnp.asarray([0, 1, 2, 3, 4, -1])}
    for number, name in enumerate(names):
        rows = rng.integers(4, V, (6, 9))
        rows[np.arange(9) >= np.array([9, 3, 5, 7, 4, 0])[:, None] - number] = PAD
        batch[name] = jnp.asarray(rows, jnp.int32)
    return batch


def numbers(more=None):
    cfg, model, mesh, state = setup(more)
    return layerwise.named(layerwise.Layers(cfg, model, mesh)(state, batch_of(cfg), hyperparameters.of(cfg)))


@pytest.fixture(scope='module')
def plain():
    return numbers()


def test_gradient_norms_are_those_of_jax_grad_layer_by_layer(plain):
    cfg, model, _, state = setup()
    values, batch = hyperparameters.of(cfg), batch_of(cfg)
    key_2 = ops.fold(jnp.zeros(2, jnp.uint32), cfg.seed, 7)
    loss = lambda params: steps.loss_fn(params, batch, key_2, model, objectives.of(cfg, V), values)[0]  # noqa: E731
    grads = jax.device_get(jax.jit(jax.grad(loss))(state.params))
    norm = lambda tree: np.sqrt(sum(np.square(leaf.astype(np.float64)).sum() for leaf in jax.tree.leaves(tree)))  # noqa: E731
    expected = {
        f'{stack}.{n + 1}': norm(jax.tree.map(lambda leaf, n=n: leaf[n], grads[stack]['layers']))
        for stack, N in (('encoder', 2), ('decoder', 3))
        for n in range(N)
    }
    expected['embedding'] = norm(grads['embedding'])
    found = {name.split('/')[2]: value for name, value in plain.items() if 'gradient_norm' in name}
    assert found == pytest.approx(expected, rel=1e-5) and len(set(found.values())) == 6
    _, metrics = jax.jit(steps.of(cfg, model))(state, batch, values)
    assert np.sqrt(sum(value**2 for value in found.values())) == pytest.approx(float(metrics['grad_norm']), rel=1e-5)


def test_outputs_and_entropies_are_those_of_the_maps_and_of_shorter_stacks(plain):
    """What leaves layer n is what a model of n layers says (there is no norm after the last)."""
    cfg, model, _, state = setup()
    batch = batch_of(cfg)
    source, target = np.asarray(batch['source']), np.asarray(batch['target'])
    _, maps = model.apply({'params': state.params}, batch['source'], batch['target'], collect=('attention',))
    for kind, real in (('encoder', source != PAD), ('decoder', target != PAD), ('cross', target != PAD)):
        w = np.asarray(maps[kind], np.float64)
        entropy = -np.sum(np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0), -1)
        for n, of_layer in enumerate(entropy):
            heads = of_layer.transpose(1, 0, 2)[:, real].mean(1)
            assert plain[f'layers/attention_entropy/{kind}.{n + 1}'] == pytest.approx(heads.mean(), rel=1e-5)
            assert plain[f'layers/attention_entropy_least/{kind}.{n + 1}'] == pytest.approx(heads.min(), rel=1e-5)
            assert heads.min() < heads.mean() - 1e-3
    for stack, n, real in (('encoder', 1, source), ('encoder', 2, source), ('decoder', 2, target)):
        cut = {'model.encoder_layers': 2, 'model.decoder_layers': 3, f'model.{stack}_layers': n}
        shorter = transformer.build(small.make(CHANGES | cut).model, V)
        of_stack = jax.tree.map(lambda leaf, n=n: leaf[:n], state.params[stack]['layers'])
        params = {**state.params, stack: {'layers': of_stack}}

        def output(module, stack=stack):
            memory, valid, _ = module._encode(batch['source'], None, {})
            if stack == 'encoder':
                return memory
            inputs, context = transformer.decoder_inputs(batch['target'], module.cfg)
            context = context.replace(memory_BSD=memory, memory_BS=valid)
            return module.decoder(module._embed(inputs, module.embedding), context)[0]

        x = np.asarray(shorter.apply({'params': params}, method=output), np.float64)[real != PAD]
        assert plain[f'layers/output_rms/{stack}.{n}'] == pytest.approx(np.sqrt(np.mean(x**2)), rel=1e-5)
    assert len({round(v, 4) for name, v in plain.items() if 'output_rms' in name}) > 1


@pytest.mark.parametrize(
    'changes',
    [
        {'model.remat': 'block', 'model.scan_unroll': 2, 'train.accumulation': 3},
        {'model.remat': 'dots', 'model.attention.kernel': 'blockwise', 'model.attention.block': 4},
    ],
    ids=str,
)
def test_the_numbers_do_not_depend_on_how_they_are_computed(plain, changes):
    assert numbers(changes) == pytest.approx(plain, rel=2e-5)


def test_each_family_and_mixer_has_what_it_has(plain):
    names = lambda found, what: [name.split('/')[2] for name in found if name.startswith(f'layers/{what}/')]  # noqa: E731
    assert names(plain, 'attention_entropy') == [
        *('cross.1', 'cross.2', 'cross.3', 'decoder.1', 'decoder.2', 'decoder.3', 'encoder.1', 'encoder.2'),
    ]
    lm = numbers(LM | {'model.decoder_mixer': 'static', 'model.residual': 'pre'})
    assert names(lm, 'attention_entropy') == names(lm, 'output_rms') == ['decoder.1', 'decoder.2', 'decoder.3']
    assert set(names(lm, 'gradient_norm')) == {
        *('decoder.1', 'decoder.2', 'decoder.3', 'decoder.final_norm', 'embedding'),
    }
    mlm = numbers(LM | {'model.family': 'mlm', 'model.encoder_mixer': 'conv', 'model.decoder_layers': 2})
    assert names(mlm, 'attention_entropy') == [] and names(mlm, 'output_rms') == ['encoder.1', 'encoder.2']
    assert all(np.isfinite(value) and value > 0 for found in (lm, mlm) for value in found.values())


def layers_of(workdir):
    found = {name: values for name, values in small.series(workdir).items() if name.startswith('layers/')}
    return {step: {name: values[step] for name, values in found.items()} for step in next(iter(found.values()))}


def test_a_run_that_looks_makes_the_updates_of_one_that_does_not(tmp_path):
    """And its gradients are those of the updates: the root of the sum of squares is train/grad_norm."""
    quick = small.QUICK | {'train.num_steps': 9, 'eval.every': 0}
    loop.train(small.make(quick), tmp_path / 'blind')
    loop.train(small.make(quick | {'train.inspect_every': 4}), tmp_path / 'looking')
    small.assert_bit_equal(small.state(tmp_path / 'blind'), small.state(tmp_path / 'looking'))
    blind, looking = small.series(tmp_path / 'blind'), small.series(tmp_path / 'looking')
    assert {name: looking[name] for name in blind} == blind
    found = layers_of(tmp_path / 'looking')
    assert list(found) == [4, 8] and found[4] != found[8]
    for step, values in found.items():
        squares = [value**2 for name, value in values.items() if 'gradient_norm' in name]
        assert np.sqrt(sum(squares)) == pytest.approx(looking['train/grad_norm'][step], rel=1e-5)


MESHES = {
    'fsdp+tp': {'mesh.strategy': 'fsdp+tp'},
    'ring': {'mesh.strategy': 'sp', 'model.attention.kernel': 'blockwise'},
}
OF_MESH = {
    **{'model.d_model': 16, 'model.num_heads': 8, 'model.num_layers': 2, 'model.d_ff': 24, 'model.vocab_size': 24},
    **{'train.batch_size': 16, 'data.buckets': ((16, 16),), 'train.inspect_every': 1, 'model.dropout.residual': 0.2},
}


def main():
    """Run with eight virtual devices: prints the numbers of each mesh as JSON."""
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(4, V, (16, 16)).astype(np.int32) for name in ('source', 'target')}
    batch['source'][3, 5:] = batch['target'][-1] = PAD
    batch['example_id'] = np.arange(16, dtype=np.int32)
    start = None
    for name, changes in {'alone': {}, **MESHES}.items():
        program = Program(cfg := small.make(OF_MESH | changes), jax.devices()[: None if changes else 1])
        start = jax.device_get(program.initialise(3)) if start is None else start
        state = jax.device_put(start, jax.tree.map(lambda leaf: leaf.sharding, program.target))
        found = program.layers(state, program.placed(batch), hyperparameters.of(cfg))
        print(json.dumps([name, layerwise.named(found)]), flush=True)


def test_on_every_mesh_the_numbers_are_those_of_one_device():
    result = small.run_process(__file__, devices=8)
    assert result.returncode == 0, result.stderr[-3000:]
    found = dict(json.loads(line) for line in result.stdout.splitlines() if line.startswith('['))
    assert found.keys() == {'alone', *MESHES}
    for name in MESHES:
        assert found[name] == pytest.approx(found['alone'], rel=1e-4), name


if __name__ == '__main__':
    sys.exit(main())
