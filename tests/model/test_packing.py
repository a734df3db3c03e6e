"""B07: documents that share a row are as they are apart: logits, loss, and the gradient of every parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import jit

from jaxformer import losses
from jaxformer.data.vocab import EOS, PAD

LENGTHS = (3, 5, 4)


def documents():
    """(packed [1, 13], segment [1, 13], apart [3, 5]): three documents that end with EOS, behind them padding."""
    rng = np.random.default_rng(0)
    texts = [[*rng.integers(5, 13, length - 1), EOS] for length in LENGTHS]
    packed = jnp.asarray([[*sum(texts, []), PAD]], jnp.int32)
    segment = jnp.asarray([[*np.repeat((1, 2, 3), LENGTHS), 0]], jnp.int32)
    return packed, segment, jnp.asarray([text + [PAD] * (5 - len(text)) for text in texts], jnp.int32)


def graded(model, params, *inputs):
    """(logits of the real tokens in their order, loss, gradients)."""
    tokens, real = inputs[0], np.asarray(inputs[0] != PAD)

    def loss(params):
        logits, _ = model.apply({'params': params}, *inputs)
        return losses.cross_entropy(logits, tokens, jnp.asarray(real, jnp.float32), 0.1) / real.sum(), logits

    (value, logits), gradients = jit(jax.value_and_grad(loss, has_aux=True))(params)
    return np.asarray(logits)[real], value, gradients


CASES = [  # with everything else in test_space.py
    ('lm', 'attention', 'rotary', 'global_local'),
    ('lm', 'attention', 't5_relative', 'window2d'),
    ('lm', 'lstm', 'none', 'full'),
    ('mlm', 'attention', 'learned', 'local'),
    ('mlm', 'gru', 'sinusoidal', 'full'),
]


@pytest.mark.parametrize(('family', 'mixer', 'position', 'pattern'), CASES)
def test_documents_in_one_row_are_as_they_are_apart(make_model, family, mixer, position, pattern):
    model, params = make_model(
        family=family, mixer=mixer, position=position, attention__pattern=pattern, num_kv_heads=1, residual='pre'
    )
    packed, segment, apart = documents()
    found, expected = graded(model, params, packed, segment), graded(model, params, apart)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    mixed = np.asarray(model.apply({'params': params}, packed)[0])[np.asarray(packed != PAD)]
    assert not np.allclose(mixed, expected[0], atol=1e-2)  # it takes the segments to do so


def test_the_first_token_of_a_document_is_said_from_the_start_symbol_alone(make_model):
    """No loss crosses a boundary: what stood before in the row is neither input nor looked at."""
    model, params = make_model(family='lm')
    packed, segment, apart = documents()
    logits = np.asarray(model.apply({'params': params}, packed, segment)[0][0])
    first = [logits[at] for at in np.cumsum((0, *LENGTHS[:-1]))]
    alone = np.asarray(model.apply({'params': params}, apart[:1, :1])[0][0, 0])
    np.testing.assert_allclose(first, [alone] * 3, atol=1e-5)
