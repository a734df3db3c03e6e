"""Which dtype each part of the model computes in, read off its program: nothing runs here in more than it was asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model import encoders, transformer

TOKENS = jnp.array([[5, 6, 7, 8, 2], [5, 2, 0, 0, 0]], jnp.int32)

DESIGNS = [
    {'position': 't5_relative', 'attention__bias': 'all', 'num_kv_heads': 1, 'residual': 'sandwich'},
    {'family': 'lm', 'position': 'rotary', 'feed_forward': 'geglu', 'gelu': 'exact', 'norm': 'rmsnorm'},
    {'family': 'lm', 'position': 'alibi', 'attention__score': 'additive', 'residual': 'deepnorm'},
    {'family': 'lm', 'mixer': 'static', 'position': 'learned', 'attention__pattern': 'local'},
    {'family': 'lm', 'mixer': 'conv', 'conv__dilations': (1, 2), 'embedding__softmax': 'untied'},
    {'mixer': 'rnn', 'embedding__tables': 'separate'},
    {'mixer': 'lstm', 'attention__score': 'dot'},
    {'mixer': 'gru', 'feed_forward': 'swiglu'},
    {
        'family': 'mlm',
        'mixer': 'linformer',
        'head__transform': 'on',
        'embedding__softmax_bias': 'on',
        'embedding__logit_scale': 'rsqrt_d_model',
        'embedding__norm': 'on',
        'embedding__token_types': 2,
    },
    {'family': 'classifier', 'head__pooling': 'mean', 'head__pooler': 'on', 'residual': 'pre'},
]


def equations(jaxpr):
    """All equations of a program, those of its scans, branches and functions, too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, 'jaxpr', part)
                if hasattr(inner, 'eqns'):
                    yield from equations(inner)


def program(cfg):
    """(equations, dtype of the logits) of a forward pass with dropout."""
    model, params = transformer.build(cfg, 13, 3), transformer.abstract_params(cfg, 13, 3)
    inputs = (TOKENS, TOKENS) if cfg.family == 'seq2seq' else (TOKENS,)
    key_2 = jnp.array([1, 2], jnp.uint32)
    traced = jax.make_jaxpr(lambda params: model.apply({'params': params}, *inputs, key_2=key_2)[0])(params)
    return list(equations(traced.jaxpr)), traced.out_avals[0].dtype


def operands(found, *names):
    """The dtypes of the inputs of all equations of these names."""
    return {str(v.aval.dtype) for e in found if e.primitive.name in names for v in e.invars}


RATES = {f'dropout__{site}': 0.1 for site in ('attention', 'residual', 'feed_forward', 'embedding')}


@pytest.mark.parametrize('parameters', ['float32', 'bfloat16'])
@pytest.mark.parametrize('softmax', ['float32', 'compute'])
@pytest.mark.parametrize('design', DESIGNS, ids=str)
def test_products_and_activations_are_in_bfloat16_norms_and_softmax_as_documented(
    make_config, design, softmax, parameters
):
    precision = {'compute': 'bfloat16', 'softmax': softmax, 'parameters': parameters}
    cfg = make_config(**design, **RATES, **{f'precision__{name}': value for name, value in precision.items()})
    found, logits = program(cfg)
    assert logits == jnp.float32
    assert operands(found, 'dot_general', 'conv_general_dilated') == {'bfloat16'}
    assert operands(found, 'tanh', 'logistic', 'erf') <= {'bfloat16'}
    assert operands(found, 'rsqrt') == {'float32'}  # norms
    weighs = cfg.family == 'seq2seq' or {'attention', 'static', 'linformer'} & {cfg.mixer}
    assert operands(found, 'exp') == ({'float32' if softmax == 'float32' else 'bfloat16'} if weighs else set())


@pytest.mark.parametrize('design', DESIGNS, ids=str)
def test_nothing_is_in_bfloat16_that_was_not_asked_to_be(make_config, design):
    found, _ = program(make_config(**design, **RATES))
    dtypes = {str(v.aval.dtype) for e in found for v in (*e.invars, *e.outvars)}
    assert 'float32' in dtypes and not dtypes & {'bfloat16', 'float16', 'float64'}


def test_a_mean_over_many_tokens_is_counted_and_summed_in_float32():
    """bfloat16 knows no 1,001: counted or summed in it the mean would not be what it is."""
    y, valid = jnp.full((1, 1200, 2), 3.0, jnp.bfloat16).at[:, ::7].set(1.0), jnp.arange(1200)[None] < 1001
    mean = encoders.mean_pooling(y, valid)
    assert mean.shape == (1, 1, 2) and mean.dtype == jnp.bfloat16
    expected = np.asarray(y, np.float64)[:, :1001].mean(1, keepdims=True)
    np.testing.assert_array_equal(mean, jnp.asarray(expected, jnp.bfloat16))
