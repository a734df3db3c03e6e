"""What each family is called with and gives; positions of padded rows, and the room of a cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path
from quick import jit

from jaxformer import config, optim
from jaxformer.errors import UserError
from jaxformer.model import transformer

V, Y, PAD, BOS, EOS = 13, 3, 0, 1, 2
TOKENS = jnp.array([[5, 6, 7, 8, 9, 10, EOS], [11, 12, EOS, PAD, PAD, PAD, PAD]], jnp.int32)


def logits_of(model, params, *inputs, **more):
    return np.asarray(jit(lambda params: model.apply({'params': params}, *inputs, **more)[0])(params))


# What a family gives

SHAPES = {
    'lm': (2, 7, V),
    'mlm': (2, 7, V),
    'classifier': (2, 1, Y),
}


@pytest.mark.parametrize('family', sorted(SHAPES))
def test_shapes_of_logits(make_model, family):
    model, params = make_model(family=family)
    assert logits_of(model, params, TOKENS).shape == SHAPES[family]


def test_a_language_model_sees_what_came_before_and_a_masked_one_both_sides(make_model):
    for family, unchanged in (('lm', 4), ('mlm', 0)):
        model, params = make_model(family=family)
        before, after = (logits_of(model, params, tokens)[0] for tokens in (TOKENS, TOKENS.at[0, 3].set(4)))
        np.testing.assert_array_equal(before[:unchanged], after[:unchanged])
        assert np.all(np.any(before[unchanged:] != after[unchanged:], axis=-1))


def test_poolings_are_the_first_the_mean_and_all(make_model):
    """With one class matrix the logits of the mean are the mean of the logits of the real tokens."""
    logits = {}
    for pooling in ('first', 'mean'):
        model, params = make_model(family='classifier', head__pooling=pooling)
        logits[pooling] = logits_of(model, params, TOKENS)
    hidden = np.asarray(model.apply({'params': params}, TOKENS, method='hidden'))
    each = hidden @ np.asarray(params['classes']) + np.asarray(params['classes_bias'])
    np.testing.assert_allclose(logits['first'][:, 0], each[:, 0], atol=1e-5)
    expected = [each[0].mean(0), each[1, :3].mean(0)]
    np.testing.assert_allclose(logits['mean'][:, 0], expected, atol=1e-5)


def test_the_pooler_and_the_transform_are_their_formulas(make_model):
    model, params = make_model(family='classifier', head__pooler='on')
    hidden = np.asarray(model.apply({'params': params}, TOKENS, method='hidden'), np.float64)[:, 0]
    p = {name: np.asarray(leaf, np.float64) for name, leaf in params.items() if not isinstance(leaf, dict)}
    pooled = np.tanh(hidden @ p['pooler'] + p['pooler_bias'])
    np.testing.assert_allclose(
        logits_of(model, params, TOKENS)[:, 0], pooled @ p['classes'] + p['classes_bias'], atol=1e-5
    )

    model, params = make_model(family='mlm', head__transform='on', embedding__softmax_bias='on')
    hidden = np.asarray(model.apply({'params': params}, TOKENS, method='hidden'), np.float64)
    p = {name: np.asarray(leaf, np.float64) for name, leaf in params.items() if not isinstance(leaf, dict)}
    h = hidden @ p['transform'] + p['transform_bias']
    h = 0.5 * h * (1 + np.tanh((2 / np.pi) ** 0.5 * (h + 0.044715 * h**3)))
    h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)
    h = h * np.asarray(params['transform_norm']['scale']) + np.asarray(params['transform_norm']['bias'])
    expected = h @ p['embedding'].T + p['softmax_bias']
    np.testing.assert_allclose(logits_of(model, params, TOKENS), expected, atol=2e-5)


def test_logits_are_divided_by_the_root_of_the_width(make_model):
    (model, params), (scaled, _) = (
        make_model(family='lm', embedding__logit_scale=scale) for scale in ('none', 'rsqrt_d_model')
    )
    np.testing.assert_allclose(logits_of(scaled, params, TOKENS), logits_of(model, params, TOKENS) / 16**0.5, atol=1e-5)


def test_types_of_tokens_are_added_to_their_embeddings(make_model):
    model, params = make_model(family='mlm', embedding__token_types=3)
    none, zeros = (logits_of(model, params, TOKENS, type_BT=types) for types in (None, jnp.zeros_like(TOKENS)))
    np.testing.assert_array_equal(none, zeros)
    types = jnp.zeros_like(TOKENS).at[:, 2:].set(2)
    moved = {**params, 'embedding': params['embedding'], 'token_types': params['token_types'][jnp.array([2, 1, 2])]}
    np.testing.assert_array_equal(
        logits_of(model, params, TOKENS, type_BT=jnp.full_like(TOKENS, 2)), logits_of(model, moved, TOKENS)
    )
    assert np.any(logits_of(model, params, TOKENS, type_BT=types) != none)


@pytest.mark.parametrize('mixer', config.CHOICES['model.mixer'])
def test_maps_are_there_where_a_mixer_has_a_weight_for_every_key(make_model, mixer):
    model, params = make_model(family='mlm', mixer=mixer)
    maps = model.apply({'params': params}, TOKENS, collect=('attention',))[1]
    assert {name: value.shape for name, value in maps.items()} == (
        {'encoder': (2, 2, 3, 7, 7)} if mixer in ('attention', 'static') else {}
    )


def test_classes_follow_the_data_or_have_room_for_it(make_config):
    assert transformer.build(make_config(family='classifier'), V, 5).num_classes == 5
    roomy = make_config(family='classifier', head__num_classes=6)
    assert transformer.build(roomy, V, 5).num_classes == 6
    with pytest.raises(UserError, match='config.model.head.num_classes=6: the data has 7 classes'):
        transformer.build(roomy, V, 7)
    with pytest.raises(UserError, match='config.model.head.num_classes=0: the data has 0 classes'):
        transformer.build(make_config(family='classifier'), V)


# Fresh parameters


@pytest.mark.parametrize('mixer', config.CHOICES['model.mixer'])
def test_fresh_parameters_are_finite_and_what_starts_constant_is_never_decayed(make_config, mixer):
    """In bfloat16, too. Norms start at one and biases at zero, so that their names need not be known (B22)."""
    on = {'head__transform': 'on', 'embedding__softmax_bias': 'on', 'embedding__norm': 'on', 'residual': 'sandwich'}
    cfg = make_config(family='mlm', mixer=mixer, attention__bias='all', precision__parameters='bfloat16', **on)
    model = transformer.build(cfg, V)
    params = jit(lambda: transformer.init(model, 3))()
    decayed = optim.decay_mask(params)
    for (path, leaf), decays in zip(tree_leaves_with_path(params), jax.tree.leaves(decayed), strict=True):
        values = np.asarray(leaf, np.float32)
        assert leaf.dtype == jnp.bfloat16 and np.all(np.isfinite(values))
        assert decays == (np.ptp(values) > 0), path


def test_an_id_that_is_not_there_hides_nothing(make_model):
    """model.ids.pad = -1: symbol 0 is a token like others."""
    for family in ('lm', 'mlm'):
        (model, params), (without, _) = (make_model(family=family, ids__pad=pad) for pad in (0, -1))
        np.testing.assert_array_equal(logits_of(without, params, TOKENS[:1]), logits_of(model, params, TOKENS[:1]))
        zeros = TOKENS[:1].at[0, 2].set(0)
        assert not np.allclose(logits_of(without, params, zeros), logits_of(model, params, zeros), atol=1e-3)


# Left padding (B03, B27)

LEFT = [
    *((position, 'attention') for position in config.CHOICES['model.position']),
    ('none', 'conv'),
    ('sinusoidal', 'lstm'),
    ('learned', 'gru'),
    ('none', 'rnn'),
]


@pytest.mark.parametrize(('position', 'mixer'), LEFT)
def test_a_left_padded_row_is_the_unpadded_one_where_positions_are_counted_from_its_first_token(
    make_model, position, mixer
):
    model, params = make_model(family='lm', position=position, mixer=mixer)
    text = jnp.array([[5, 6, 7, EOS]], jnp.int32)
    padded = jnp.pad(text, ((0, 1), (3, 0))).at[1].set(jnp.array([4, 5, 6, 7, 8, 9, EOS]))
    positions = jnp.arange(7)[None] - jnp.array([[3], [0]])
    found = logits_of(model, params, padded, position_BT=positions)
    np.testing.assert_allclose(found[0, 3:], logits_of(model, params, text)[0], atol=1e-5)
    np.testing.assert_allclose(found[1], logits_of(model, params, padded[1:])[0], atol=1e-5)
    assert np.all(np.isfinite(found))


# The cache (B04, B24)


def decoder(model, params):
    """(start_cache, extend and extend compiled) of a model."""
    call = lambda method: lambda *args: model.apply({'params': params}, *args, method=method)  # noqa: E731
    return call('start_cache'), call('extend'), jit(call('extend'))


def test_chunks_see_the_keys_up_to_their_own_position(make_model):
    """B04: five tokens at once, then three, then one."""
    model, params = make_model(family='lm', num_kv_heads=1)
    tokens = jnp.asarray(np.random.default_rng(0).integers(4, V, (2, 9)), jnp.int32)
    inputs, _ = transformer.decoder_inputs(tokens, model.cfg)
    start_cache, _, extend = decoder(model, params)
    cache, parts = start_cache(2, 12), []
    for chunk in (inputs[:, :5], inputs[:, 5:8], inputs[:, 8:]):
        logits, cache = extend(chunk, cache)
        parts.append(logits)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), logits_of(model, params, tokens), atol=1e-5)
    assert cache['index'] == 9 and not np.any(cache['layers']['self']['key'][:, :, :, 9:])


@pytest.mark.parametrize('family', ['lm', 'seq2seq'])
def test_tokens_beyond_the_room_of_a_cache_are_refused_with_their_numbers(make_model, family):
    """B24: in a room of eight with a prompt of six, two more fit and four do not."""
    model, params = make_model(family=family)
    start_cache, extend, compiled = decoder(model, params)
    empty = jit(lambda: start_cache(*((TOKENS[:1], 8) if family == 'seq2seq' else (1, 8))))()
    tokens = jnp.full((1, 6), 5, jnp.int32)
    _, prompt = compiled(tokens, empty)
    with pytest.raises(UserError, match='a cache of 8 positions: 6 are written and 4 more do not fit'):
        extend(tokens[:, :4], prompt)
    _, full = compiled(tokens[:, :2], prompt)
    assert full['index'] == 8
    with pytest.raises(UserError, match='a cache of 8 positions: 8 are written and 1 more'):
        extend(tokens[:, :1], full)
