"""Sampling: what each rule leaves is worked out by hand, and draws are as frequent as the distribution says."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxformer.data.ids import Ids
from jaxformer.decode import sampling
from jaxformer.decode.sampling import Shape, sample

V = 7
IDS = Ids(pad=-1, bos=-1, eos=6)
PROBABILITIES = np.array([0.30, 0.05, 0.25, 0.15, 0.20, 0.04, 0.01])
LOGITS = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32))[None]


NONE = Shape(repetition_penalty=1.0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
shape_of = functools.partial(dataclasses.replace, NONE)


def kept(logits_BV):
    return np.flatnonzero(np.isfinite(logits_BV[0])).tolist()


def test_each_rule_by_hand():
    logits = jnp.array([[2.0, -1.0, 0.5, 0.0]])
    said = jnp.array([[True, True, False, True]])
    np.testing.assert_allclose(sampling.repetition_penalty(logits, said, 1.5), [[2 / 1.5, -1.5, 0.5, 0.0]], rtol=1e-6)
    assert kept(sampling.top_k(LOGITS, 3)) == [0, 2, 4] and kept(sampling.top_k(LOGITS, 99)) == [*range(V)]
    assert kept(sampling.top_k(jnp.array([[1.0, 3.0, 1.0, 0.0]]), 2)) == [0, 1, 2]  # equals stay together
    for p, symbols in ((0.01, [0]), (0.29, [0]), (0.31, [0, 2]), (0.74, [0, 2, 4]), (0.76, [0, 2, 3, 4])):
        assert kept(sampling.top_p(LOGITS, p)) == symbols, p
    for p, symbols in ((0.5, [0, 2, 3, 4]), (0.6, [0, 2, 4]), (1.0, [0]), (0.01, [*range(V)])):
        assert kept(sampling.min_p(LOGITS, p)) == symbols, p
    left = sampling.top_p(LOGITS, 0.5)  # what stays keeps its logits
    np.testing.assert_array_equal(left[0, jnp.array(kept(left))], LOGITS[0, jnp.array(kept(left))])


def test_rules_come_one_after_the_other():
    """Each looks at what the one before left: of three symbols by top-k, 0.6 of their probability is two."""
    assert kept(shape_of(top_k=3, top_p=0.6).of(LOGITS, None)) == [0, 2] == kept(sampling.top_p(LOGITS, 0.54))
    assert kept(sampling.top_p(LOGITS, 0.6)) == [0, 2, 4]
    assert kept(shape_of(temperature=0.2, top_p=0.6).of(LOGITS, None)) == [0]  # 0.3 ** 5 of 0.0038
    assert kept(shape_of(temperature=0.5, min_p=0.5).of(LOGITS, None)) == [0, 2]
    said = jnp.arange(V)[None] == 0
    assert kept(shape_of(repetition_penalty=3.0, top_k=2).of(LOGITS, said)) == [2, 4]
    np.testing.assert_array_equal(NONE.of(LOGITS, None), LOGITS)


def constant(tokens_B1, cache):
    return jnp.broadcast_to(LOGITS, (tokens_B1.shape[0], V))[:, None], cache


def draws(count, length, shape=NONE, seed=0, first=0, extend=constant):
    read = jnp.full((count, 1), V - 2)
    example = jnp.arange(first, first + count)
    return jax.device_get(sample(extend, {}, read, example, length, V, IDS, seed=seed, shape=shape))


@pytest.mark.parametrize(
    ('shape', 'expected'),
    [
        (NONE, PROBABILITIES),
        (shape_of(temperature=2.0), PROBABILITIES**0.5),
        (shape_of(temperature=0.5, top_k=4), [0.30**2, 0, 0.25**2, 0.15**2, 0.20**2, 0, 0]),
        (shape_of(top_p=0.7), [0.30, 0, 0.25, 0, 0.20, 0, 0]),
        (shape_of(min_p=0.15), [0.30, 0.05, 0.25, 0.15, 0.20, 0, 0]),
        (shape_of(repetition_penalty=2.0), [0.30, 0.05, 0.25, 0.15, 0.20, 0.04**2, 0.01]),  # 5 was read
    ],
    ids=str,
)
def test_frequencies_are_the_probabilities(shape, expected):
    """Chi-square of 6,000 first symbols at the level of one in a thousand; the seed is fixed."""
    found = np.bincount(draws(6000, 1, shape).tokens[:, 0], minlength=V)
    expected = np.asarray(expected) / np.sum(expected)
    assert not found[expected == 0].any()
    assert stats.chisquare(found[expected > 0], 6000 * expected[expected > 0]).pvalue > 1e-3


def test_positions_examples_and_seeds_draw_on_their_own():
    """Two columns, two neighbouring rows and two seeds are independent, by the table of their pairs."""
    tokens = draws(4000, 2, shape_of(top_k=3)).tokens
    other = draws(4000, 2, shape_of(top_k=3), seed=1).tokens
    for a, b in ((tokens[:, 0], tokens[:, 1]), (tokens[:-1, 0], tokens[1:, 0]), (tokens[:, 0], other[:, 0])):
        table = np.zeros((V, V))
        np.add.at(table, (a, b), 1)
        assert stats.chi2_contingency(table[np.ix_([0, 2, 4], [0, 2, 4])]).pvalue > 1e-3


def test_a_row_is_the_same_in_any_batch():
    """Draws are a function of (seed, example, position): alone, among others, at another place of the batch."""
    whole = draws(30, 9, shape_of(temperature=1.5))
    assert len(np.unique(whole.tokens, axis=0)) == 30 and 0 < whole.truncated.sum() < 30
    for first, count in ((0, 7), (7, 1), (23, 7)):
        part = draws(count, 9, shape_of(temperature=1.5), first=first)
        for name in whole._fields:
            np.testing.assert_array_equal(
                getattr(part, name), getattr(whole, name)[first : first + count], err_msg=name
            )


def test_log_probabilities_are_the_models_own_and_stop_at_the_end():
    found = draws(20, 8, shape_of(temperature=3.0, top_k=6, top_p=0.9))
    for tokens, logprob, truncated in zip(found.tokens, found.logprob, found.truncated, strict=True):
        end = np.flatnonzero(tokens == IDS.eos)
        said = tokens[: end[0] + 1] if len(end) else tokens
        assert logprob == pytest.approx(np.log(PROBABILITIES[said]).sum(), rel=1e-5)
        assert truncated == (len(end) == 0) and (tokens[len(said) :] == IDS.pad).all()


def test_what_was_put_out_before_counts_as_said():
    """With a penalty that leaves nothing else, no symbol comes twice until each has come, and none that was read."""
    unlikely = lambda tokens, cache: (constant(tokens, cache)[0] - 5, cache)  # noqa: E731
    tokens = draws(50, 5, shape_of(repetition_penalty=1000.0), extend=unlikely).tokens
    for row in tokens:
        said = row[row != IDS.pad].tolist()
        assert len(set(said)) == len(said) and V - 2 not in said
