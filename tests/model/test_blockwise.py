"""Blockwise attention has the numbers of plain attention, in memory that grows with the length and not its square."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model import blockwise, ops
from jaxformer.model.masks import Sight

B, T, S, H, G, K, E = 3, 13, 17, 4, 2, 5, 3


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


Q, K_, V = draw(B, T, H, K), draw(B, S, G, K, seed=1), draw(B, S, G, E, seed=2)
KEYS = np.arange(S) < np.array([S, 6, 0])[:, None]  # of one text no key is real
SIGHTS = {
    'all': Sight(),
    'padding': Sight(jnp.asarray(KEYS)),
    'causal': Sight(start=S - T, causal=True),
    'causal and padding': Sight(jnp.asarray(KEYS), start=S - T, causal=True),
    'documents': Sight(segment_BT=jnp.asarray(np.sort(np.random.default_rng(3).integers(1, 4, (B, S)), axis=1))),
}
KEY_2 = ops.fold(jnp.zeros(2, jnp.uint32), 5)


def plain(q, k, v, bias_HTS, sight, rate):
    drop = lambda weights: ops.dropout(weights, rate, KEY_2) if rate else weights  # noqa: E731
    scores = ops.dot_scores(q, k, K**-0.5) + bias_HTS
    return ops.attend(scores, v, sight.mask(jnp.arange(T), jnp.arange(S)), dropout=drop)[0]


def scores_of(q, k, query_T, key_S, bias_HTS, given):
    rows = jnp.take(bias_HTS, query_T, axis=1, mode='clip')
    return ops.dot_scores(q, k, K**-0.5) + jnp.take(rows, key_S, axis=2, mode='clip')


def by_block(q, k, v, bias_HTS, sight, rate, block):
    mask = lambda query_T, key_S, sight: sight.mask(query_T, key_S)  # noqa: E731
    drop = (lambda weights, origin, whole, _: ops.dropout(weights, rate, KEY_2, origin, whole)) if rate else None
    return blockwise.attention(blockwise.Look(scores_of, mask, drop, block), q, k, v, bias_HTS, sight)


def with_gradients(function):
    """(value, gradients of queries, keys, values and bias) of a sum with weights of its own at every output."""
    weights = draw(B, T, H, E, seed=9)

    def total(q, k, v, bias):
        y = function(q, k, v, bias)
        return jnp.sum(y * weights), y

    (_, y), gradients = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))(Q, K_, V, draw(H, T, S, seed=4))
    return y, gradients


@pytest.mark.parametrize(('name', 'block', 'rate'), [
    *itertools.product(SIGHTS, (4,), (0.0,)),
    *(('causal and padding', block, 0.3) for block in (1, 6, 13, 64)),
])  # fmt: skip
def test_values_and_gradients_are_those_of_plain_attention(name, block, rate):
    """Grouped heads, a bias that is learned, lengths that no block divides, rows that may look at nothing."""
    sight = SIGHTS[name]
    y, gradients = with_gradients(lambda *arrays: by_block(*arrays, sight, rate, block))
    expected, expected_gradients = with_gradients(lambda *arrays: plain(*arrays, sight, rate))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    for found, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)
    if 'padding' in name:
        assert not np.any(y[2])


def test_a_sight_says_the_same_of_parts_as_of_the_whole():
    rng = np.random.default_rng(6)
    segment = jnp.asarray(np.sort(rng.integers(1, 4, (B, S)), axis=1))
    sight = Sight(jnp.asarray(KEYS), segment, start=2, causal=True)
    whole = np.broadcast_to(sight.mask(S, S), (B, 1, S, S))
    expected = KEYS[:, None, None, :] & (np.arange(S) <= np.arange(S)[:, None] + 2)
    expected = expected & (np.asarray(segment)[:, None, :, None] == np.asarray(segment)[:, None, None, :])
    np.testing.assert_array_equal(whole, expected)
    part = sight.mask(jnp.arange(5, 9), jnp.arange(3, 8))
    np.testing.assert_array_equal(part, whole[:, :, 5:9, 3:8])


def test_dropout_of_a_block_is_the_part_of_the_whole():
    x = draw(2, 3, 7, 11)
    whole = ops.dropout(x, 0.4, KEY_2)
    part = ops.dropout(x[:, :, 2:5, 4:9], 0.4, KEY_2, (0, 0, jnp.int32(2), 4), x.shape)
    np.testing.assert_array_equal(part, whole[:, :, 2:5, 4:9])


def temporary_bytes(function, length):
    """Of forward and backward together, as the compiler says."""
    arrays = [jax.ShapeDtypeStruct((1, length, 1, 64), jnp.float32)] * 3
    compiled = jax.jit(jax.grad(lambda *qkv: jnp.sum(function(*qkv)), (0, 1, 2))).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_of_forward_and_backward_is_a_twentieth_at_length_8192():
    sight = Sight(causal=True)
    look = blockwise.Look(
        lambda q, k, query_T, key_S, learned, given: ops.dot_scores(q, k, 64**-0.5),
        lambda query_T, key_S, given: sight.mask(query_T, key_S),
        None,
        512,
    )
    block = lambda q, k, v: blockwise.attention(look, q, k, v, None, None)  # noqa: E731

    def whole(q, k, v):
        return ops.scaled_dot_product_attention(q, k, v, sight.mask(q.shape[1], k.shape[1]))[0]

    by_length = {length: temporary_bytes(block, length) for length in (4096, 8192)}
    all_at_once = temporary_bytes(whole, 8192)
    print(f'plain {all_at_once / 2**20:.0f} MiB, blockwise {by_length[8192] / 2**20:.1f} MiB')
    assert by_length[8192] < all_at_once / 20
    assert by_length[8192] < 2.2 * by_length[4096]
