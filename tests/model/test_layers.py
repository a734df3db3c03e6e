"""Blocks: where residual and norm stand (B12), and what a feed-forward is."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxformer import config
from jaxformer.model import layers, ops
from jaxformer.model.context import Context
from jaxformer.model.masks import Sight

B, T, D = 2, 4, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
POSITIONS = jnp.arange(T)[None]
CONTEXT = Context(jnp.ones((B, T), bool), Sight(causal=True), POSITIONS, POSITIONS)


def same(x):
    return x


def block_and_params(cfg, mixer='attention', zero=()):
    """A causal block, and its parameters with every leaf drawn except those whose last name is in `zero`."""
    block = layers.Block(cfg, mixer, causal=True, cross=False)
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


def test_sandwich_block_that_adds_nothing_adds_the_biases_of_its_outer_norms(make_config):
    block, params = block_and_params(make_config(residual='sandwich'), zero=OUTPUTS)
    expected = X + params['self_attention_out_norm']['bias'] + params['feed_forward_out_norm']['bias']
    np.testing.assert_allclose(run(block, params), expected, atol=1e-6)


def test_deepnorm_block_that_adds_nothing_is_its_two_norms_of_scaled_inputs(make_config):
    block, params = block_and_params(make_config(residual='deepnorm', decoder_layers=3), zero=OUTPUTS)
    alpha = (3 * 3) ** 0.25
    expected = norm_of(params, 'feed_forward_norm')(alpha * norm_of(params, 'self_attention_norm')(alpha * X))
    np.testing.assert_allclose(run(block, params), expected, atol=1e-6)


def test_block_without_residual_that_passes_nothing_forgets_its_input(make_config):
    block, params = block_and_params(make_config(residual='none'), zero=OUTPUTS)
    np.testing.assert_allclose(run(block, params), jnp.broadcast_to(params['feed_forward_norm']['bias'], X.shape))


@pytest.mark.parametrize('order', config.CHOICES['model.residual'])
def test_residual_orders_are_their_formulas(order):
    branch, norm, out_norm = lambda x: 3 * x + 1, lambda x: x * x, lambda x: x**3 - 5
    expected = {
        'post': norm(2 + branch(2)),
        'pre': 2 + branch(norm(2)),
        'branch': 2 + norm(branch(2)),
        'sandwich': 2 + out_norm(branch(norm(2))),
        'deepnorm': norm(7 * 2 + branch(2)),
        'none': norm(branch(2)),
    }
    assert len(set(expected.values())) == 6
    assert layers.residual(order, 2, branch, norm, out_norm, alpha=7) == expected[order]


@pytest.mark.parametrize(
    ('family', 'causal', 'alpha', 'beta'),
    [  # Wang et al. 2022, Figure 2, with N = 18 encoder and M = 6 decoder layers
        ('mlm', False, 36**0.25, 144**-0.25),  # encoder-only: (2N)^(1/4), (8N)^(-1/4)
        ('classifier', False, 36**0.25, 144**-0.25),
        ('lm', True, 12**0.25, 48**-0.25),  # decoder-only: (2M)^(1/4), (8M)^(-1/4)
        ('seq2seq', False, 0.81 * (18**4 * 6) ** (1 / 16), 0.87 * (18**4 * 6) ** (-1 / 16)),
        ('seq2seq', True, 18**0.25, 72**-0.25),  # its decoder: (3M)^(1/4), (12M)^(-1/4)
    ],
)
def test_the_constants_of_deepnorm_are_those_of_the_paper(make_config, family, causal, alpha, beta):
    depth = {'encoder_layers': 18, 'decoder_layers': 6}
    of_family = {'lm': ('decoder_layers',), 'seq2seq': tuple(depth)}.get(family, ('encoder_layers',))
    depth = {name: depth[name] for name in of_family}
    np.testing.assert_allclose(
        layers.deepnorm(make_config(family=family, residual='deepnorm', **depth), causal), (alpha, beta), rtol=1e-12
    )
    assert layers.deepnorm(make_config(family=family, residual='post', **depth), causal) == (1.0, 1.0)


def test_deepnorm_shrinks_the_start_of_values_outputs_and_feed_forward_alone(make_config):
    """Wang et al. 2022, Figure 2: xavier_normal(gain=β) there, none on queries and keys."""
    spread = {}
    for order in ('deepnorm', 'post'):
        cfg = make_config(family='mlm', residual=order, d_model=64, d_ff=96, num_layers=2, encoder_layers=2)
        block = layers.Block(cfg, 'attention', causal=False, cross=False)
        x = jnp.ones((1, T, 64))
        params = jax.jit(lambda block=block, x=x: block.init(jax.random.key(0), x, 0, None, CONTEXT, False))()['params']
        leaves = {**params['self_attention'], **params['feed_forward']}
        spread[order] = {name: float(jnp.std(leaf)) for name, leaf in leaves.items() if leaf.ndim > 1}
    beta = 16**-0.25
    expected = {'query': 1, 'key': 1, 'value': beta, 'out': beta, 'inner': beta, 'outer': beta}
    found = {name: spread['deepnorm'][name] / spread['post'][name] for name in expected}
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


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


def gelu(x, kind):
    """Hendrycks and Gimpel 2016: x Φ(x), and the approximation by tanh."""
    if kind == 'exact':
        return x * 0.5 * (1 + scipy.special.erf(x / 2**0.5))
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize('approximation', config.CHOICES['model.gelu'])
@pytest.mark.parametrize('biases', config.CHOICES['model.feed_forward_bias'])
@pytest.mark.parametrize('kind', sorted(layers.ACTIVATIONS))
def test_feed_forward_kinds_are_their_formulas(make_config, kind, biases, approximation):
    params, y = feed_forward(make_config(feed_forward=kind, feed_forward_bias=biases, gelu=approximation))
    p = {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}
    x = np.asarray(X, np.float64)
    assert set(p) == {'inner', 'outer'} | ({'gate'} if kind in ('geglu', 'swiglu') else set()) | (
        {'inner_bias', 'outer_bias'} if biases == 'on' else set()
    )
    inner = x @ p['inner'] + p.get('inner_bias', 0)
    relu, silu = np.maximum(inner, 0), inner / (1 + np.exp(-inner))
    hidden = {'relu': relu, 'silu': silu, 'swiglu': silu}.get(kind, gelu(inner, approximation))
    if 'gate' in p:
        hidden = hidden * (x @ p['gate'])
    np.testing.assert_allclose(y, hidden @ p['outer'] + p.get('outer_bias', 0), atol=1e-5)


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
