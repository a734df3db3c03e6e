"""Beam search is exhaustive search where nothing is pruned, stops without a loss, and minds no neighbour (B29, B30)."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import jit

from jaxformer.data.ids import Ids
from jaxformer.decode.beam import beam, divisors

V, T, EOS, PAD = 4, 4, 3, -1
IDS = Ids(pad=PAD, bos=-1, eos=EOS)
ALPHAS = (0.0, 0.6, 1.0, -0.5)


def log_softmax(logits):
    return np.array(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))


def tables(B, sharp=1.0, seed=0, size=V):
    """[B, 1 + V, V] log-probabilities of each row's next symbol in each state; a search begins in the last one."""
    logits = sharp * np.random.default_rng(seed).standard_normal((B, size + 1, size))
    return log_softmax(logits)


def toy(table_B):
    """(extend, cache) of a model whose next symbol depends on all symbols read, by a state that its cache holds."""
    tables_BVV = jnp.asarray(table_B)
    B, states, _ = table_B.shape

    def extend(tokens_B1, cache):
        own = cache['layers']['self']
        state_B = (2 * own['state'][0] + tokens_B1[:, 0]) % states
        layers = {'self': own | {'state': state_B[None]}}
        logits_BV = 3.0 + tables_BVV[own['table'][0], state_B]
        return logits_BV[:, None], cache | {'layers': layers, 'index': cache['index'] + 1}

    own = {'table': jnp.arange(B)[None], 'state': jnp.zeros((1, B), jnp.int32)}
    return extend, {'layers': {'self': own}, 'index': jnp.int32(0)}


def continued(table, symbols):
    """Log-probability of symbols after the start."""
    total, state = 0.0, len(table) - 1
    for symbol in symbols:
        total += float(table[state, symbol])
        state = (2 * state + symbol) % len(table)
    return total


def search(table_B, beam_size, alpha, num_best=1, divisor='gnmt', max_length=T):
    return jax.device_get(compiled(table_B, beam_size, alpha, num_best, divisor, max_length))


@functools.partial(jit, static_argnums=(1, 2, 3, 4, 5))
def compiled(table_B, beam_size, alpha, num_best, divisor, max_length):
    extend, cache = toy(table_B)
    options = {'beam_size': beam_size, 'length_penalty': alpha, 'length_divisor': divisor, 'num_best': num_best}
    B, states, size = table_B.shape
    return beam(extend, cache, jnp.full((B,), states - 1), max_length, size, IDS, **options)


def exhaustive(table, alpha, base, max_length=T):
    """[(score, log-probability, symbols)] of all there are, best first: that end, or have all of max_length symbols."""
    size = table.shape[-1]
    found = []
    for length in range(1, max_length + 1):
        for symbols in itertools.product(range(size), repeat=length):
            ended = symbols[-1] == EOS
            if EOS in symbols[:-1] or not (ended or length == max_length):
                continue
            logprob = continued(table, symbols)
            found.append((logprob / base(length) ** alpha, logprob, symbols))
    return sorted(found, reverse=True)


def gnmt(L):
    return (5 + L) / 6


@pytest.mark.parametrize('alpha', ALPHAS)
def test_with_room_for_all_it_is_exhaustive_search(alpha):
    """B29: all 121 hypotheses in the order of their scores, with log-probabilities and which of them are cut."""
    table_B = tables(7)
    found = search(table_B, 256, alpha, num_best=121)
    best = search(table_B, 256, alpha)  # which may stop early
    for row, table in enumerate(table_B):
        expected = exhaustive(table, alpha, gnmt)
        assert len(expected) == 121
        np.testing.assert_allclose(found.score[row], [score for score, _, _ in expected], rtol=1e-5)
        padded = [(*symbols, *[PAD] * (T - len(symbols))) for _, _, symbols in expected]
        logprob = dict(zip(padded, (logprob for _, logprob, _ in expected), strict=True))
        assert tuple(best.tokens[row, 0]) == padded[0] and best.score[row, 0] == found.score[row, 0]
        for rank, tokens in enumerate(map(tuple, found.tokens[row].tolist())):
            assert found.logprob[row, rank] == pytest.approx(logprob.pop(tokens), abs=1e-5)
            assert found.truncated[row, rank] == (EOS not in tokens)
        assert not logprob


def test_penalties_choose_differently():
    """Else nothing above would tell one from another."""
    table_B = tables(60)
    best = {alpha: search(table_B, 256, alpha).tokens[:, 0].tolist() for alpha in ALPHAS}
    assert all(best[a] != best[b] for a, b in itertools.combinations(ALPHAS, 2))


def test_the_divisor_counts_the_end():
    """B30: at L = 10 and 0.6 it is 1.73286."""
    assert divisors(12, 0.6, 'gnmt')[10] == pytest.approx(1.73286, abs=1e-5)
    assert divisors(12, -0.5, 'length')[9] == pytest.approx(1 / 3)
    table = np.full((1, V + 1, V), -9.0, np.float32)
    table[0, V, 2], table[0, 0, EOS] = -0.25, -0.5  # 2 and then the end
    table = log_softmax(table)
    found = search(table, 2, 0.6)
    assert found.tokens[0, 0].tolist() == [2, EOS, PAD, PAD]
    assert found.score[0, 0] == pytest.approx((table[0, V, 2] + table[0, 0, EOS]) / (7 / 6) ** 0.6, rel=1e-6)


@pytest.mark.parametrize('alpha', ALPHAS)
def test_the_batch_changes_nothing(alpha):
    """Tokens and scores of 30 rows are the same to the bit by one, by 7 and at once; some end long before others."""
    table_B = tables(30, 2.0, seed=3, size=9)
    table_B[:10, :, EOS] += 4  # rows that end at once
    table_B[20:, :, EOS] -= 4
    table_B = log_softmax(table_B)
    options = {'alpha': alpha, 'num_best': 3, 'max_length': 12}
    whole = search(table_B, 4, **options)
    assert len({len(row[row != PAD]) for row in whole.tokens[:, 0]}) > 4
    for size in (1, 7):
        parts = [search(table_B[first : first + size], 4, **options) for first in range(0, 30, size)]
        for name in whole._fields:
            found = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(found, getattr(whole, name), err_msg=f'{name} by {size}')


@pytest.mark.parametrize('divisor', ['gnmt', 'length'])
@pytest.mark.parametrize('alpha', [*ALPHAS, 2.0])
def test_stopping_early_loses_nothing(alpha, divisor):
    """The n best of a search in steps of NumPy that never stops before the limit, in rows pruned to four beams."""
    table_B = tables(7, 2.0, seed=4, size=9)
    found = search(table_B, 4, alpha, num_best=3, divisor=divisor, max_length=9)
    base = {'gnmt': gnmt, 'length': float}[divisor]
    for row, table in enumerate(table_B):
        expected = without_a_stop(table, 4, alpha, base, 9)[:3]
        for rank, (score, symbols) in enumerate(expected):
            assert found.tokens[row, rank].tolist() == [*symbols, *[PAD] * (9 - len(symbols))]
            assert found.score[row, rank] == pytest.approx(score, abs=1e-5)


def without_a_stop(table, beam_size, alpha, base, max_length):
    """[(score, symbols)], best first, of all hypotheses that ever were among the first K continuations."""
    going, ended = [(0.0, ())], []
    for length in range(1, max_length + 1):
        more = [(continued(table, (*s, v)), (*s, v)) for _, s in going for v in range(9)]
        more = sorted(more, reverse=True)[: 2 * beam_size]
        ends = lambda s: s[-1] == EOS or length == max_length  # noqa: B023, E731
        ended += [(a / base(length) ** alpha, s) for a, s in more[:beam_size] if ends(s)]
        going = [(a, s) for a, s in more if s[-1] != EOS][:beam_size]
    return sorted(ended, reverse=True)


@pytest.mark.parametrize(('alpha', 'first', 'then', 'best'), [
    # 1: the end at once has -0.635; 0 with three more would have -0.799 / 1.5, and with one more -0.799 / 1.17
    (1.0, {EOS: 0.53, 0: 0.45}, 0, [0, 0, 0, 0]),
    # -0.5: the end at once has -0.799; 0 and the end would have -0.693 * 1.08, and at the limit -0.693 * 1.22
    (-0.5, {EOS: 0.45, 0: 0.5}, EOS, [0, EOS, PAD, PAD]),
])  # fmt: skip
def test_what_is_behind_may_win_at_another_length(alpha, first, then, best):
    """B29: a bound by the length so far, or by the limit, would end these searches too early."""
    table = np.full((1, V + 1, V), 1e-4)
    table[0, V, list(first)] = list(first.values())
    table[0, :V, then] = 1.0
    found = search(np.log(table / table.sum(axis=-1, keepdims=True)), 2, alpha)
    assert found.tokens[0, 0].tolist() == best and found.score[0, 0] > np.log(first[EOS]) + 0.01


def test_it_stops_when_no_beam_can_win_and_not_before():
    """Steps are counted: an end that nothing can beat needs one; a penalty that favours length needs them all."""
    table = np.full((2, V + 1, V), -20.0, np.float32)
    table[:, :, EOS] = 0.0  # almost surely the end
    table = log_softmax(table)
    steps = []

    def run(alpha, max_length):
        extend, cache = toy(table)

        def counted(tokens, cache):
            jax.debug.callback(lambda index: steps.append(int(index)), cache['index'])
            return extend(tokens, cache)

        options = {'beam_size': 2, 'length_penalty': alpha, 'length_divisor': 'gnmt', 'num_best': 1}
        jax.block_until_ready(beam(counted, cache, jnp.full((2,), V), max_length, V, IDS, **options))
        jax.effects_barrier()
        found = len(steps)
        steps.clear()
        return found

    assert [run(alpha, T) for alpha in (0.0, 1.0, -0.5)] == [1, 1, 1]
    table[0] = np.log([0.4, 0.2, 0.2, 0.2])  # row 0 goes on, and row 1 waits
    assert run(0.0, T) > 1 and run(2.0, T) == T


def test_the_end_can_come_first_and_what_is_never_put_out_is_not():
    """B32 for beams: an empty hypothesis is one, and padding, begin and rows beyond the symbols are none."""
    ids = Ids(pad=0, bos=1, eos=2)
    logits = jnp.zeros((1, 7)).at[0, jnp.array([0, 1, 6])].set(9.0).at[0, 2].set(2.0)
    extend = lambda tokens, cache: (jnp.tile(logits[None], (tokens.shape[0], 1, 1)), cache)  # noqa: E731
    cache = {'layers': {'self': jnp.zeros((1, 1))}}
    options = {'beam_size': 3, 'length_penalty': 0.0, 'length_divisor': 'gnmt', 'num_best': 3}
    found = jax.device_get(beam(extend, cache, jnp.array([1]), 2, 6, ids, **options))
    assert found.tokens[0].tolist() == [[2, 0], [3, 2], [4, 2]]
    logprob = jax.nn.log_softmax(logits)[0]
    np.testing.assert_allclose(found.score[0, :2], [logprob[2], logprob[3] + logprob[2]], rtol=1e-6)
    few = jax.device_get(beam(extend, cache, jnp.array([1]), 1, 3, ids, **options))  # the end is all there is
    assert few.score[0].tolist() == [pytest.approx(logprob[2]), -np.inf, -np.inf]
