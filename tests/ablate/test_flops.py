"""The formula against the products that the programs hold, against XLA's own count, and by hand for AIAYN's base."""

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxformer import config, losses
from jaxformer.ablate import flops
from jaxformer.model import transformer

sys.path.append(str(Path(__file__).parents[1] / 'model'))
import space  # noqa: E402

SYMBOLS, CLASSES = 13, 5
CONFIGS = Path(__file__).parents[2] / 'configs'


def traced(jaxpr):
    """Operations of the products in a program: a scan's body as often as it runs, a switch by its largest branch."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [_open(value) for name, value in equation.params.items() if name not in ('branches', 'cond_jaxpr')]
        inside = sum(traced(one) for one in inner if one is not None)
        if equation.primitive.name == 'scan':
            inside *= equation.params['length']
        elif equation.primitive.name == 'cond':
            inside = max(traced(branch.jaxpr) for branch in equation.params['branches'])
        elif equation.primitive.name == 'dot_general':
            ((contracted, _), _), (left, _) = equation.params['dimension_numbers'], equation.invars
            width = math.prod(left.aval.shape[axis] for axis in contracted)
            inside = 2 * width * math.prod(equation.outvars[0].aval.shape)
        elif equation.primitive.name == 'conv_general_dilated':
            kernel, numbers = equation.invars[1].aval.shape, equation.params['dimension_numbers']
            inside = 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
        total += inside
    return total


def _open(value):
    value = getattr(value, 'jaxpr', value)
    return value if hasattr(value, 'eqns') else None


def functions(model):
    """(forward pass, training step) of a model, their arguments as shapes, for one example in a shape."""
    build = transformer.build(model, SYMBOLS, CLASSES)
    params = transformer.abstract_params(model, SYMBOLS, CLASSES)

    def forward(params, *inputs):
        return build.apply({'params': params}, *inputs)[0]

    def loss(params, *inputs):
        logits = forward(params, *inputs)
        labels = jnp.zeros(logits.shape[:2], jnp.int32)
        return losses.cross_entropy(logits, labels, jnp.ones(labels.shape, jnp.float32))

    return params, forward, jax.value_and_grad(loss)


def shaped(shape):
    return [jax.ShapeDtypeStruct((1, size), jnp.int32) for size in shape]


NUMBERS = [*range(40), 54, 66]


@pytest.mark.parametrize('number', NUMBERS)
def test_designs_of_every_kind_take_what_their_program_holds(number):
    # A kernel that works out its weights twice does no further work, and counts as the plain one.
    cfg = space.resolved(space.valid_changes(number) | {'model.attention.kernel': 'plain'})
    params, forward, step = functions(cfg.model)
    shape = cfg.data.buckets[0]
    counted = traced(jax.make_jaxpr(forward)(params, *shaped(shape)).jaxpr)
    assert flops.forward(cfg.model, SYMBOLS, CLASSES, shape) == counted
    mixers = {cfg.model.encoder_mixer, cfg.model.decoder_mixer}
    # Of convolutions the backward pass also multiplies what pads them; the weights of a mean have no gradient.
    if cfg.model.remat == 'none' and cfg.model.head.pooling != 'mean' and 'conv' not in mixers:
        counted = traced(jax.make_jaxpr(step)(params, *shaped(shape)).jaxpr)
        assert flops.training(cfg.model, SYMBOLS, CLASSES, shape) == counted


def test_the_designs_have_every_mixer_and_family():
    models = [space.resolved(space.valid_changes(number)).model for number in NUMBERS]
    seen = {model.encoder_mixer for model in models if model.family != 'lm'}
    assert seen == set(config.CHOICES['model.mixer'])
    assert {model.decoder_mixer for model in models if model.family in ('seq2seq', 'lm')} == seen - {'linformer'}
    assert {model.family for model in models} == set(config.CHOICES['model.family'])
    assert {model.attention.score for model in models} == set(config.CHOICES['model.attention.score'])


def test_base_by_hand():
    """AIAYN's base on 25 + 25 tokens: 6 layers of 512, 2048 inside, 37,000 symbols."""
    cfg = config.resolve(config.load(CONFIGS / 'base.py'))
    n, D, F, V = 25, 512, 2048, 37_000
    projections = 4 * 2 * n * D * D
    attention = projections + 2 * (2 * n * n * D)
    inner = 2 * (2 * n * D * F)
    by_hand = 6 * (attention + inner) + 6 * (2 * attention + inner) + 2 * n * D * V
    assert flops.forward(cfg.model, V, 0, (n, n)) == by_hand
    # Six operations for each parameter in a matrix and token: 44,040,192 in the blocks, and the softmax's.
    blocks = 6 * n * (6 * (4 * D * D + 2 * D * F) + 6 * (8 * D * D + 2 * D * F) + D * V)
    assert flops.training(cfg.model, V, 0, (n, n)) == blocks + 3 * 18 * 2 * (2 * n * n * D)


@pytest.mark.parametrize('mixer', ['attention', 'static', 'conv'])
def test_xla_counts_little_more_where_it_need_not_loop(mixer):
    """Its cost analysis has every operation, and a loop's body once: so with the layers unrolled."""
    loaded = config.load(CONFIGS / 'gpt_tiny.py')
    sizes = {'d_model': 128, 'num_heads': 4, 'd_ff': 512, 'num_layers': 3, 'scan_unroll': 0, 'mixer': mixer}
    sizes |= {'position': 'none', 'vocab_size': SYMBOLS}
    config.override(loaded, {f'model.{name}': value for name, value in sizes.items()})
    model = config.resolve(loaded).model
    params, forward, _ = functions(model)
    found = jax.jit(forward).lower(params, *shaped((64,))).cost_analysis()['flops']
    assert 1 <= found / flops.forward(model, SYMBOLS, 0, (64,)) < 1.1
