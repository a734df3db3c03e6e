"""Which keys a pattern shows, by brute force; scores and mixers that weigh values, by NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxformer import config
from jaxformer.errors import UserError
from jaxformer.model import ops

B, T, D = 2, 5, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
VALID = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def f64(params):
    return {name: np.asarray(leaf, np.float64) for name, leaf in params.items()}


# Patterns

QUERY, KEY = np.array([[3, 4, 5], [0, 1, 9]]), np.arange(10)[None]
AT = jnp.asarray(QUERY)[:, :, None], jnp.asarray(KEY)[:, None, :]


@pytest.mark.parametrize('window', [1, 2, 4, 20])
def test_local_shows_the_keys_within_the_window(window):
    mask = np.asarray(ops.local_mask(*AT, window))
    assert mask.shape == (2, 3, 10)
    for b, t, s in np.ndindex(2, 3, 10):
        assert mask[b, t, s] == (abs(QUERY[b, t] - s) <= window)


@pytest.mark.parametrize('globals_', [(0,), (2, 7), (9, 4, 100)])
def test_global_local_shows_the_rows_and_columns_of_some_positions_besides(globals_):
    mask = np.asarray(ops.global_local_mask(*AT, 1, globals_))
    for b, t, s in np.ndindex(2, 3, 10):
        seen = abs(QUERY[b, t] - s) <= 1 or QUERY[b, t] in globals_ or s in globals_
        assert mask[b, t, s] == seen


def windows_of_swin(height, width, window, shift):
    """[p, q] True where Swin lets p see q (Liu et al. 2021, 3.2 and Figure 4), step by step as the authors do it.

    The grid is padded at the bottom and right to whole windows, rolled up and left by the shift, cut into windows, and
    within a window those see each other that were neighbours before the roll.
    """
    padded_height, padded_width = -(-height // window) * window, -(-width // window) * window
    number = np.full((padded_height, padded_width), -1)
    number[:height, :width] = np.arange(height * width).reshape(height, width)
    region = np.zeros((padded_height, padded_width), int)  # as the authors number them: in the rolled grid
    bands = (slice(0, -window), slice(-window, -shift or None), slice(-shift, None) if shift else slice(0, 0))
    for i, rows in enumerate(bands):
        for j, columns in enumerate(bands):
            region[rows, columns] = 3 * i + j
    number = np.roll(number, (-shift, -shift), axis=(0, 1))
    seen = np.zeros((height * width, height * width), bool)
    for top in range(0, padded_height, window):
        for left in range(0, padded_width, window):
            cut = (slice(top, top + window), slice(left, left + window))
            inside = [(p, r) for p, r in zip(number[cut].ravel(), region[cut].ravel(), strict=True) if p >= 0]
            for p, r in inside:
                for q, other in inside:
                    seen[p, q] = r == other
    return seen


@pytest.mark.parametrize(('height', 'width'), [(4, 4), (6, 6), (5, 7), (7, 3), (3, 8), (2, 5), (1, 6)])
@pytest.mark.parametrize('window', [1, 2, 3, 4])
def test_window2d_is_the_shifted_window_of_swin_on_any_grid(height, width, window):
    position = jnp.arange(height * width)
    for shift in range(window):
        mask = ops.window2d_mask(position[:, None], position, window, width, shift)
        np.testing.assert_array_equal(mask, windows_of_swin(height, width, window, shift), str(shift))


def test_window2d_shifts_in_every_other_layer(make_mixer):
    run, params = make_mixer(
        'attention',
        False,
        attention__pattern='window2d',
        attention__window=2,
        attention__grid_width=4,
        attention__shift=1,
    )
    x = jnp.asarray(np.random.default_rng(1).standard_normal((1, 12, D)), jnp.float32)
    for layer in range(4):
        weights = np.asarray(run(params, x, layer=layer)[2]['self'])[0]
        seen = windows_of_swin(3, 4, 2, layer % 2)
        np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('mixer', ['attention', 'static'])
@pytest.mark.parametrize('pattern', config.CHOICES['model.attention.pattern'])
def test_patterns_direction_and_padding_combine_by_and(make_mixer, pattern, mixer, causal):
    settings = {'window': 2, 'global_positions': (1,), 'grid_width': 2, 'shift': int(pattern == 'window2d')}
    run, params = make_mixer(
        mixer, causal, attention__pattern=pattern, **{f'attention__{name}': value for name, value in settings.items()}
    )
    at = jnp.arange(T)[:, None], jnp.arange(T)
    alone = {
        'full': np.ones((T, T), bool),
        'local': ops.local_mask(*at, 2),
        'global_local': ops.global_local_mask(*at, 2, (1,)),
        'window2d': ops.window2d_mask(*at, 2, 2, 1),
    }[pattern]
    seen = np.asarray(alone) & VALID[:, None, :]
    if causal:
        seen &= np.tril(np.ones((T, T), bool))
    weights = np.asarray(run(params, X, VALID, layer=1)[2]['self'])
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen[:, None], weights.shape))


# Scores and projections


def test_additive_scores_are_the_formula():
    """v · tanh(q + k), query head h with key head h // (H / G) (Bahdanau et al. 2015, A.1.2)."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 6, 5), (2, 7, 3, 5), (6, 5)))
    found = ops.additive_scores(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v))
    assert found.shape == (2, 6, 4, 7) and found.dtype == jnp.float32
    for b, h, t, s in np.ndindex(2, 6, 4, 7):
        expected = v[h].astype(np.float64) @ np.tanh(q[b, t, h].astype(np.float64) + k[b, s, h // 2])
        np.testing.assert_allclose(found[b, h, t, s], expected, atol=1e-5)


def attention_by_hand(p, x, score, valid, causal):
    """[B, T, D] in float64 by the definition, one head at a time."""
    x = np.asarray(x, np.float64)
    H, K = p['query'].shape[1:]
    G = p['key'].shape[1]
    y = np.zeros(x.shape)
    for b, h in np.ndindex(x.shape[0], H):
        g = h // (H // G)
        q = x[b] @ p['query'][:, h] + p.get('query_bias', np.zeros((H, K)))[h]
        k = x[b] @ p['key'][:, g] + p.get('key_bias', np.zeros((G, K)))[g]
        v = x[b] @ p['value'][:, g] + p.get('value_bias', np.zeros((G, p['value'].shape[2])))[g]
        scores = {
            'dot': lambda q=q, k=k: q @ k.T,
            'scaled_dot': lambda q=q, k=k: q @ k.T / np.sqrt(K),
            'additive': lambda q=q, k=k, h=h: np.tanh(q[:, None] + k[None]) @ p['score'][h],
        }[score]()
        seen = np.tril(np.ones((T, T), bool)) & valid[b] if causal else np.broadcast_to(valid[b], (T, T))
        y[b] += scipy.special.softmax(np.where(seen, scores, -np.inf), axis=-1) @ v @ p['out'][h]
    return y + p.get('out_bias', 0)


@pytest.mark.parametrize('bias', config.CHOICES['model.attention.bias'])
@pytest.mark.parametrize(
    ('score', 'kv_heads', 'causal'), [('scaled_dot', 1, True), ('dot', 3, False), ('additive', 1, False)]
)
def test_self_attention_is_its_formula(make_mixer, score, kv_heads, causal, bias):
    run, params = make_mixer(
        'attention', causal, attention__score=score, num_kv_heads=kv_heads, attention__bias=bias, position='none'
    )
    biases = {'none': set(), 'qkv': {'query_bias', 'key_bias', 'value_bias'}}
    biases['all'] = biases['qkv'] | {'out_bias'}
    matrices = {'query', 'key', 'value', 'out'} | ({'score'} if score == 'additive' else set())
    assert set(params) == matrices | biases[bias]
    found = run(params, X, VALID)[0]
    np.testing.assert_allclose(found, attention_by_hand(f64(params), X, score, VALID, causal), atol=2e-5)


def test_rotary_turns_no_value(make_mixer):
    """Where every position sees itself alone, positions change nothing."""
    (run, params), (plain, _) = (
        make_mixer('attention', False, position=position, attention__pattern='window2d', attention__window=1, d_k=6)
        for position in ('rotary', 'none')
    )
    np.testing.assert_array_equal(run(params, X)[0], plain(params, X)[0])
    wide, plain = (make_mixer('attention', False, position=position, d_k=6)[0] for position in ('rotary', 'none'))
    assert not np.allclose(wide(params, X)[0], plain(params, X)[0], atol=1e-2)


# The static matrix


def test_a_static_matrix_is_the_same_for_every_input(make_mixer):
    run, params = make_mixer('static', False)
    one, two = run(params, X), run(params, 3 - 2 * X)
    np.testing.assert_array_equal(one[2]['self'], two[2]['self'])
    assert not np.allclose(one[0], two[0], atol=0.1)
    p = f64(params)
    expected = scipy.special.softmax(p['mixing'][:, :T, :T], axis=-1)
    np.testing.assert_allclose(one[2]['self'][0], expected, atol=1e-6)
    y = sum(expected[h] @ (np.asarray(X, np.float64) @ p['value'][:, h]) @ p['out'][h] for h in range(3))
    np.testing.assert_allclose(one[0], y, atol=1e-5)
    attention, params = make_mixer('attention', False)
    assert not np.allclose(attention(params, X)[2]['self'], attention(params, 3 - 2 * X)[2]['self'], atol=0.1)


@pytest.mark.parametrize(('mixer', 'what'), [('static', 'the static matrix'), ('linformer', "Linformer's projection")])
def test_a_table_by_position_refuses_longer_inputs_and_takes_those_up_to_it(make_mixer, mixer, what):
    run, params = make_mixer(mixer, False)
    assert run(params, jnp.ones((1, 64, D)))[0].shape == (1, 64, D)
    with pytest.raises(UserError, match=f'config.model.max_length=64: an input of 65 positions is longer than {what}'):
        run(params, jnp.ones((1, 65, D)))


def test_a_static_matrix_refuses_a_cache_that_is_longer(make_model):
    model, params = make_model(family='lm', mixer='static')
    cache = model.apply({'params': params}, 1, 65, method='start_cache')
    with pytest.raises(UserError, match='config.model.max_length=64: an input of 65 positions'):
        model.apply({'params': params}, jnp.ones((1, 1), jnp.int32), cache, method='extend')


# Linformer (B66)


@pytest.mark.parametrize('score', ['scaled_dot', 'additive'])
def test_linformer_attends_to_projected_keys_and_values(make_mixer, score):
    """softmax(q (E k)ᵀ / √K) (F v) (Wang et al. 2020, eq. 7), E and F cut to the length of the input."""
    run, params = make_mixer('linformer', False, linformer__rank=3, num_kv_heads=1, attention__score=score)
    p, x = f64(params), np.asarray(X, np.float64)
    assert p['key_projection'].shape == p['value_projection'].shape == (3, 64)
    expected = np.zeros(x.shape)
    for b, h in np.ndindex(B, 3):
        real = VALID[b][:, None]
        q, k, v = x[b] @ p['query'][:, h], real * (x[b] @ p['key'][:, 0]), real * (x[b] @ p['value'][:, 0])
        k, v = p['key_projection'][:, :T] @ k, p['value_projection'][:, :T] @ v
        scores = q @ k.T / np.sqrt(5) if score == 'scaled_dot' else np.tanh(q[:, None] + k[None]) @ p['score'][h]
        expected[b] += scipy.special.softmax(scores, axis=-1) @ v @ p['out'][h]
    found, cache, maps = run(params, X, VALID)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert cache is None and maps == {}  # a slot is no key


def test_linformer_does_not_see_what_padding_holds(make_mixer):
    run, params = make_mixer('linformer', False, linformer__rank=3)
    other = X.at[1, 3:].set(7.0)
    found, moved = run(params, X, VALID)[0], run(params, other, VALID)[0]
    np.testing.assert_array_equal(found[VALID], moved[VALID])
    longer = run(params, jnp.pad(X, ((0, 0), (0, 4), (0, 0)), constant_values=5), np.pad(VALID, ((0, 0), (0, 4))))[0]
    np.testing.assert_allclose(longer[:, :T][VALID], found[VALID], atol=1e-6)
    assert not np.allclose(run(params, other)[0][1, :3], found[1, :3], atol=0.1)  # were it real, it would matter
    assert not np.any(run(params, X, VALID & [[True], [False]])[0][1])  # a row of padding attends to nothing


@pytest.mark.parametrize('family', ['lm', 'seq2seq'])
def test_linformer_in_a_decoder_is_refused_with_the_reason(make_config, family):
    with pytest.raises(UserError, match="config.model.decoder_mixer='linformer': .*would hold the future"):
        make_config(family=family, mixer='linformer')
