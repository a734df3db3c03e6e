"""Blocks: where residual and norm stand (B12), and what a feed-forward is."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import config
from jaxformer.model import layers, ops

B, T, D = 2, 4, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
CONTEXT = layers.Context(self_mask=ops.causal_mask(T, T))


def same(x):
    return x


def block_and_params(cfg, cross=False, zero=()):
    """A block, and its parameters with every leaf drawn except those whose last name is in `zero`."""
    block = layers.Block(cfg, cross)
    params = jax.jit(lambda: block.init(jax.random.key(0), X, 0, None, CONTEXT, False)['params'])()

    def draw(path, leaf):
        values = np.random.default_rng(len(path[-1].key)).standard_normal(leaf.shape).astype(np.float32)
        return jnp.zeros_like(leaf) if path[-1].key in zero else leaf + 0.3 * values

    return block, jax.tree_util.tree_map_with_path(draw, params)


def run(block, params, x=X, context=CONTEXT):
    return jax.jit(lambda: block.apply({'params': params}, x, 0, None, context, False)[0])()


def norm_of(params, name):
    return lambda x: ops.layer_norm(x, params[name]['scale'], params[name]['bias'], 1e-6)


OUTPUTS = ('out', 'outer', 'outer_bias')


def test_pre_norm_block_that_adds_nothing_is_the_identity(make_config):
    """B12: the residual is the input itself, not the normalised input."""
    block, params = block_and_params(make_config(residual='pre'), zero=OUTPUTS)
    np.testing.assert_array_equal(run(block, params), X)


def test_post_norm_block_that_adds_nothing_is_its_two_norms(make_config):
    block, params = block_and_params(make_config(residual='post'), zero=OUTPUTS)
    expected = norm_of(params, 'feed_forward_norm')(norm_of(params, 'self_attention_norm')(X))
    np.testing.assert_allclose(run(block, params), expected, atol=1e-6)
    assert not np.allclose(expected, X, atol=0.1)


def test_branch_norm_block_that_adds_nothing_adds_the_biases_of_its_norms(make_config):
    block, params = block_and_params(make_config(residual='branch'), zero=OUTPUTS)
    expected = X + params['self_attention_norm']['bias'] + params['feed_forward_norm']['bias']
    np.testing.assert_allclose(run(block, params), expected, atol=1e-6)


def test_block_without_residual_that_passes_nothing_forgets_its_input(make_config):
    block, params = block_and_params(make_config(residual='none'), zero=OUTPUTS)
    np.testing.assert_allclose(run(block, params), jnp.broadcast_to(params['feed_forward_norm']['bias'], X.shape))


@pytest.mark.parametrize('order', config.CHOICES['model.residual'])
def test_residual_orders_are_their_formulas(order):
    branch, norm = lambda x: 3 * x + 1, lambda x: x * x
    expected = {
        'post': norm(2 + branch(2)),
        'pre': 2 + branch(norm(2)),
        'branch': 2 + norm(branch(2)),
        'none': norm(branch(2)),
    }
    assert len(set(expected.values())) == 4
    assert layers.residual(order, 2, branch, norm) == expected[order]


@pytest.mark.parametrize('norm', config.CHOICES['model.norm'])
def test_norms_have_the_parameters_they_need(make_config, norm):
    params = layers.Norm(make_config(norm=norm)).init(jax.random.key(0), X).get('params', {})
    assert set(params) == {'layernorm': {'scale', 'bias'}, 'rmsnorm': {'scale'}, 'none': set()}[norm]


def feed_forward(cfg):
    module = layers.FeedForward(cfg)
    params = jax.jit(lambda: module.init(jax.random.key(0), X, same)['params'])()
    params = {name: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape) for name, leaf in params.items()}
    return params, jax.jit(lambda x: module.apply({'params': params}, x, same))(X)


def test_feed_forward_is_two_convolutions_of_width_one(make_config):
    params, y = feed_forward(make_config())
    first, second = nn.Conv(11, kernel_size=(1,)), nn.Conv(D, kernel_size=(1,))
    hidden = first.apply({'params': {'kernel': params['inner'][None], 'bias': params['inner_bias']}}, X)
    expected = second.apply(
        {'params': {'kernel': params['outer'][None], 'bias': params['outer_bias']}}, nn.relu(hidden)
    )
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize('kind', sorted(layers.ACTIVATIONS))
def test_feed_forward_kinds_are_their_formulas(make_config, kind):
    params, y = feed_forward(make_config(feed_forward=kind))
    activation = {'relu': jax.nn.relu, 'gelu': jax.nn.gelu, 'silu': jax.nn.silu}
    inner = X @ params['inner'] + params['inner_bias']
    if kind in activation:
        hidden = activation[kind](inner)
        assert 'gate' not in params
    else:
        hidden = {'geglu': jax.nn.gelu, 'swiglu': jax.nn.silu}[kind](inner) * (X @ params['gate'])
    np.testing.assert_allclose(y, hidden @ params['outer'] + params['outer_bias'], atol=1e-5)


def test_a_block_without_feed_forward_has_none(make_config):
    block, params = block_and_params(make_config(feed_forward='none'))
    assert set(params) == {'self_attention', 'self_attention_norm'}


def test_dropout_stands_on_the_branch_and_not_on_the_residual(make_config):
    """With everything dropped but one element in a thousand, a pre-norm block is nearly the identity."""
    block, params = block_and_params(make_config(residual='pre', dropout__residual=0.999))
    y = run(block, params, context=CONTEXT.replace(key_2=jnp.array([1, 2], jnp.uint32)))
    unchanged = np.asarray(y == X)
    assert unchanged.mean() > 0.95
    assert not np.any(np.asarray(run(block, params) == X))
