"""What is asked of each family: which labels count, and the recipe of masked tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxformer import objectives

PAD, MASK, V = 0, 4, 97


def masked(tokens_BT, key_2=None, example_id=None, rate=0.15, replaced=0.8, random=0.1):
    ids = np.arange(len(tokens_BT)) if example_id is None else example_id
    batch = {'tokens': jnp.asarray(tokens_BT), 'example_id': jnp.asarray(ids, jnp.int32)}
    recipe = {'pad': PAD, 'mask': MASK, 'num_symbols': V, 'rate': rate, 'replaced': replaced, 'random': random}
    (shown_BT,), labels_BT, weights_BT = objectives.masked_tokens(batch, key_2, **recipe)
    return np.asarray(shown_BT), np.asarray(labels_BT), np.asarray(weights_BT)


KEY = jnp.array([3, 5], jnp.uint32)
TOKENS = np.random.default_rng(0).integers(5, V, (300, 201)).astype(np.int32)


def test_the_recipe_of_bert_in_its_shares():
    shown, labels, weights = masked(TOKENS, KEY)
    chosen = weights == 1
    n = TOKENS.size
    within = lambda share, p, n: abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5  # noqa: E731
    assert np.array_equal(labels, TOKENS) and set(np.unique(weights)) == {0, 1}
    assert within(chosen.mean(), 0.15, n)
    assert np.array_equal(shown[~chosen], TOKENS[~chosen])
    as_mask = shown[chosen] == MASK
    other = (shown[chosen] != MASK) & (shown[chosen] != TOKENS[chosen])
    assert within(as_mask.mean(), 0.8 + 0.1 / V, chosen.sum())
    assert within(other.mean(), 0.1 * (V - 2) / V, chosen.sum())
    drawn = np.delete(np.bincount(shown[chosen][other], minlength=V), MASK)
    assert stats.chisquare(drawn).pvalue > 1e-3  # of all symbols alike


def test_masking_is_anew_in_each_step_and_apart_in_each_example():
    first, again = masked(TOKENS, KEY)[2], masked(TOKENS, KEY)[2]
    other = masked(TOKENS, KEY + 1)[2]
    assert np.array_equal(first, again)
    assert (first != other).mean() == pytest.approx(2 * 0.15 * 0.85, abs=0.01)
    assert (first[0] != first[1]).mean() == pytest.approx(2 * 0.15 * 0.85, abs=0.08)


def test_evaluation_masks_the_same_tokens_whatever_the_batch():
    whole = masked(TOKENS)
    rows = masked(TOKENS[7:9], example_id=[7, 8])
    for part, all_ in zip(rows, whole, strict=True):
        np.testing.assert_array_equal(part, all_[7:9])
    shown, _, weights = whole
    assert np.all(shown[weights == 1] == MASK) and 0.14 < weights.mean() < 0.16
    assert not np.array_equal(weights[0], weights[1])


def test_padding_is_never_to_be_guessed():
    tokens = TOKENS[:9].copy()
    tokens[:, 20:] = PAD
    shown, _, weights = masked(tokens, KEY, rate=1.0)
    assert np.all(weights[:, 20:] == 0) and np.all(weights[:, :20] == 1) and np.all(shown[:, 20:] == PAD)


def test_shares_of_nothing_and_of_all():
    shown, _, weights = masked(TOKENS[:20], KEY, rate=1.0, replaced=0.0, random=0.0)
    assert np.array_equal(shown, TOKENS[:20]) and weights.mean() == 1
    shown, _, _ = masked(TOKENS[:20], KEY, rate=1.0, replaced=1.0, random=0.0)
    assert np.all(shown == MASK)


def test_masking_does_not_depend_on_the_rows_of_a_batch_under_jit():
    recipe = {'pad': PAD, 'mask': MASK, 'num_symbols': V, 'rate': 0.3, 'replaced': 0.8, 'random': 0.1}
    run = jax.jit(lambda t, ids: objectives.masked_tokens({'tokens': t, 'example_id': ids}, KEY, **recipe))
    shown = run(TOKENS[:6], jnp.arange(6))[0][0]
    later = run(TOKENS[3:9], jnp.arange(3, 9))[0][0]
    np.testing.assert_array_equal(shown[3:], later[:3])


def test_labels_that_count():
    batch = {'tokens': jnp.array([[5, 6, 2, 0], [0, 0, 0, 0]]), 'segment': jnp.array([[1, 1, 1, 0], [0] * 4])}
    inputs, labels, weights = objectives.next_token(batch, None, pad=0)
    assert len(inputs) == 2 and np.array_equal(weights, [[1, 1, 1, 0], [0] * 4])
    assert len(objectives.next_token({'tokens': batch['tokens']}, None, pad=0).inputs) == 1
    recipe = {'pad': 0, 'mask': MASK, 'num_symbols': V, 'rate': 0.3, 'replaced': 0.8, 'random': 0.1}
    shown, segment = objectives.masked_tokens({**batch, 'example_id': jnp.arange(2)}, None, **recipe).inputs
    assert segment is batch['segment'] and shown.shape == segment.shape
    source, target = jnp.array([[5, 2, 0]]), jnp.array([[7, 8, 2, 0]])
    inputs, labels, weights = objectives.sequence({'source': source, 'target': target}, None, pad=0)
    assert inputs[0] is source and inputs[1] is target and np.array_equal(weights, [[1, 1, 1, 0]])


def test_classes_of_texts_and_of_tokens_leave_out_negative_ones():
    tokens = jnp.array([[1, 5, 2], [0, 0, 0]])
    _, labels, weights = objectives.classes({'tokens': tokens, 'label': jnp.array([3, -1])}, None)
    assert np.array_equal(labels, [[3], [0]]) and np.array_equal(weights, [[1], [0]])
    per_token = jnp.array([[-1, 2, -1], [-1, -1, -1]])
    _, labels, weights = objectives.classes({'tokens': tokens, 'label': per_token}, None)
    assert np.array_equal(labels, [[0, 2, 0], [0, 0, 0]]) and np.array_equal(weights, [[0, 1, 0], [0, 0, 0]])
