"""Convolutions against SciPy, recurrent cells against their published formulas; padding, direction, documents."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from scipy.special import expit as sigmoid

B, T, D = 2, 7, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((B, T, D)), jnp.float32)
VALID = np.array([[1] * 7, [1, 1, 1, 1, 0, 0, 0]], bool)
OTHERS = ('conv', 'rnn', 'lstm', 'gru')
RECURRENT = ('rnn', 'lstm', 'gru')


def f64(params):
    return {k: f64(v) if isinstance(v, dict) else np.asarray(v, np.float64) for k, v in params.items()}


# Convolution


def convolved(p, x, dilation, causal):
    """Taps `dilation` apart, correlated by SciPy column by column; then half of the columns gate the other half."""
    W, D, R = p['kernel'].shape
    spread = np.zeros(((W - 1) * dilation + 1, D, R))
    spread[::dilation] = p['kernel']
    behind = len(spread) - 1 if causal else len(spread) - 1 - (len(spread) - 1) // 2
    y = np.tile(p['bias'], (len(x), 1))
    for d, r in np.ndindex(D, R):
        whole = scipy.signal.correlate(np.pad(x[:, d], len(spread)), spread[:, d, r], mode='valid')
        y[:, r] += whole[len(spread) - behind :][: len(x)]
    return y[:, : R // 2] * sigmoid(y[:, R // 2 :])


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize(('width', 'dilation'), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3), (5, 1)])
def test_convolution_is_that_of_scipy(make_mixer, width, dilation, causal):
    run, params = make_mixer('conv', causal, conv__width=width, conv__dilations=(dilation,))
    assert params['kernel'].shape == (width, D, 2 * D) and params['bias'].shape == (2 * D,)
    y = run(params, X, VALID)[0]
    for b in range(B):
        expected = convolved(f64(params), np.asarray(X[b], np.float64) * VALID[b][:, None], dilation, causal)
        np.testing.assert_allclose(y[b], expected, atol=2e-5)


def test_layers_take_the_dilations_in_turn(make_mixer):
    run, params = make_mixer('conv', True, conv__width=3, conv__dilations=(1, 2, 4))
    one, two, four = (
        make_mixer('conv', True, conv__width=3, conv__dilations=(dilation,))[0](params, X)[0] for dilation in (1, 2, 4)
    )
    assert not np.allclose(one, two, atol=0.1) and not np.allclose(two, four, atol=0.1)
    for layer, expected in enumerate((one, two, four, one, two)):
        np.testing.assert_allclose(run(params, X, layer=layer)[0], expected, atol=1e-6)


# Recurrent cells


def cell_by_hand(kind, p, state, x):
    """(state, output) by the formulas in the documentation of flax.linen's SimpleCell, LSTMCell and GRUCell."""
    i = lambda name: x @ p[name]['kernel'] + p[name].get('bias', 0)  # noqa: E731
    h = lambda name, y: y @ p[name]['kernel'] + p[name].get('bias', 0)  # noqa: E731
    if kind == 'rnn':  # h' = tanh(W_i x + b_i + W_h h)
        new = np.tanh(i('i') + h('h', state))
        return new, new
    if kind == 'gru':  # r, z; n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h' = (1 − z) n + z h
        r, z = sigmoid(i('ir') + h('hr', state)), sigmoid(i('iz') + h('hz', state))
        n = np.tanh(i('in') + r * h('hn', state))
        new = (1 - z) * n + z * state
        return new, new
    c, y = state  # i, f, g, o; c' = f c + i g; h' = o tanh(c')
    gates = {name: i(f'i{name}') + h(f'h{name}', y) for name in 'ifgo'}
    c = sigmoid(gates['f']) * c + sigmoid(gates['i']) * np.tanh(gates['g'])
    y = sigmoid(gates['o']) * np.tanh(c)
    return (c, y), y


def run_by_hand(kind, p, x, valid, starts):
    """[T, R]: the outputs of a cell over the rows that are no padding, anew at each of `starts`."""
    zero = np.zeros(9) if kind != 'lstm' else (np.zeros(9), np.zeros(9))
    state, outputs = zero, np.zeros((len(x), 9))
    for t in range(len(x)):
        state = zero if t in starts else state
        if valid[t]:
            state, outputs[t] = cell_by_hand(kind, p, state, x[t])
    return outputs


SEGMENT = np.array([[1, 1, 2, 2, 2, 3, 3], [1, 1, 1, 2, 0, 0, 0]])
STARTS = ({2, 5}, {3})


@pytest.mark.parametrize('documents', [False, True])
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('kind', RECURRENT)
def test_recurrent_mixers_are_their_formulas(make_mixer, kind, causal, documents):
    run, params = make_mixer(kind, causal, recurrent__width=9)
    p, x = f64(params), np.asarray(X, np.float64)
    assert set(p) == {'forward', 'out', 'out_bias'} | (set() if causal else {'backward'})
    assert p['out'].shape == (9 if causal else 18, D)
    y = np.asarray(run(params, X, VALID, segment_BT=jnp.asarray(SEGMENT) if documents else None)[0])
    for b in range(B):
        starts = STARTS[b] if documents else set()
        h = run_by_hand(kind, p['forward'], x[b], VALID[b], starts)
        if not causal:  # a document that begins at t ends at t − 1, which is T − t rows from the end
            ends = {T - t for t in starts}
            back = run_by_hand(kind, p['backward'], x[b, ::-1], VALID[b, ::-1], ends)[::-1]
            h = np.concatenate([h, back], axis=-1)
        expected = h @ p['out'] + p['out_bias']
        np.testing.assert_allclose(y[b][VALID[b]], expected[VALID[b]], atol=1e-5)


def test_parameters_of_cells_are_as_many_as_published(make_mixer):
    """An LSTM has four times the recurrent parameters of an RNN, a GRU three times."""
    count = {}
    for kind in RECURRENT:
        cell = make_mixer(kind, True, recurrent__width=9)[1]['forward']
        count[kind] = sum(leaf['kernel'].size for name, leaf in cell.items() if name.startswith('h'))
    assert count == {'rnn': 81, 'lstm': 4 * 81, 'gru': 3 * 81}


# What holds for all of them


@pytest.mark.parametrize('mixer', OTHERS)
def test_what_stands_in_padding_changes_nothing_on_either_side(make_mixer, mixer):
    for causal in (True, False):
        run, params = make_mixer(mixer, causal, conv__width=3, conv__dilations=(2,))
        alone = run(params, X)[0]
        for left, right in ((0, 4), (3, 0), (2, 1)):
            around = ((0, 0), (left, right), (0, 0))
            valid = np.pad(np.ones((B, T), bool), around[:2])
            for content in (0.0, 5.0):
                x = jnp.pad(X, around, constant_values=content)
                np.testing.assert_allclose(run(params, x, valid)[0][:, left : left + T], alone, atol=1e-6)
        unmarked = run(params, jnp.pad(X, ((0, 0), (3, 0), (0, 0)), constant_values=5.0))[0]
        assert not np.allclose(unmarked[:, 3:], alone, atol=1e-2)


@pytest.mark.parametrize('mixer', (*OTHERS, 'attention', 'static'))
def test_a_causal_mixer_sees_nothing_that_comes_later_and_another_one_does(make_mixer, mixer):
    changed = X.at[:, 4].set(1.5)
    run, params = make_mixer(mixer, True)
    before, after = run(params, X)[0], run(params, changed)[0]
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.all(np.any(np.asarray(before != after)[:, 4], axis=-1))
    run, params = make_mixer(mixer, False)
    before, after = run(params, X)[0], run(params, changed)[0]
    assert np.all(np.any(np.asarray(before != after)[:, 3], axis=-1))
