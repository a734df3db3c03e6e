"""Greedy search: what it takes, when it stops (B32), and that a row does not depend on its neighbours (B27)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import config
from jaxformer.data.ids import BOS, EOS, PAD, Ids
from jaxformer.decode.greedy import first_greatest, greedy, outputs
from jaxformer.model import transformer

V = 9
OWN = Ids()


def starts(B):
    return jnp.full((B,), BOS, jnp.int32)


def scripted(*rows):
    """An `extend` that makes row b's symbol at step t `rows[b][t]` likely; its cache is the step."""
    script = jnp.array(rows)

    def extend(tokens_B1, step):
        return 5.0 * jax.nn.one_hot(script[:, step], V)[:, None], step + 1

    return extend


PROBABILITY = float(jax.nn.log_softmax(5.0 * jax.nn.one_hot(0, V))[0])


def test_after_the_end_there_is_padding_and_no_probability():
    extend = scripted([4, 5, EOS, 6, 6, 6, 6, 6], [EOS] + [7] * 7, [4] * 8)
    tokens, logprob, _, truncated = jax.jit(lambda: greedy(extend, jnp.int32(0), starts(3), 8, V, OWN))()
    np.testing.assert_array_equal(tokens, [[4, 5, EOS] + [PAD] * 5, [EOS] + [PAD] * 7, [4] * 8])
    np.testing.assert_allclose(logprob, [3 * PROBABILITY, PROBABILITY, 8 * PROBABILITY], rtol=1e-6)
    assert truncated.tolist() == [False, False, True]


def test_padding_the_start_symbol_and_rows_beyond_the_vocabulary_are_never_put_out():
    logits = jnp.zeros((1, 1, V)).at[..., jnp.array([PAD, BOS, V - 1, V - 2, 6])].set(jnp.array([9, 8, 7, 6, 1]))

    def extend(tokens, cache):
        return logits, cache

    tokens, logprob, *_ = greedy(extend, jnp.int32(0), starts(1), 3, V - 2, OWN)
    np.testing.assert_array_equal(tokens, [[6, 6, 6]])
    np.testing.assert_allclose(logprob[0], 3 * jax.nn.log_softmax(logits)[0, 0, 6], rtol=1e-6)


def test_an_id_that_begins_and_ends_a_text_ends_it_and_rows_are_filled_with_no_id():
    """As GPT-2's: one id for begin and end, none for padding."""
    special = Ids(pad=-1, bos=5, eos=5, unk=-1, mask=-1)
    extend = scripted([4, 0, 5, 6, 6], [1, 2, 3, 0, 1])
    tokens, *_ = greedy(extend, jnp.int32(0), starts(2), 5, V, special)
    np.testing.assert_array_equal(tokens, [[4, 0, 5, -1, -1], [1, 2, 3, 0, 1]])
    np.testing.assert_array_equal(np.flatnonzero(~outputs(V, 8, Ids(pad=3, bos=6, eos=0))), [3, 6, 8])


def test_each_symbol_is_the_next_input_and_the_first_input_is_the_start_symbol():
    def extend(tokens, seen):
        seen = jnp.concatenate([seen[:, 1:], tokens], axis=1)
        return 9.0 * jax.nn.one_hot(tokens + 3, V), seen

    tokens, *_ = greedy(extend, jnp.zeros((1, 2), jnp.int32), starts(1), 2, V, OWN)
    np.testing.assert_array_equal(tokens, [[BOS + 3, BOS + 6]])


def test_of_equals_the_first_is_taken_as_argmax_takes_it():
    logits = np.random.default_rng(0).integers(0, 4, (50, 7)).astype(np.float32)
    logits[0], logits[1, :3] = -np.inf, -np.inf
    logits[2, 2:6], logits[3] = np.nan, np.nan
    np.testing.assert_array_equal(first_greatest(jnp.asarray(logits)), np.argmax(logits, axis=1))


def test_it_stops_when_every_row_has_ended():
    calls = []

    def extend(tokens, step):
        jax.debug.callback(lambda s: calls.append(int(s)), step)
        return scripted([4, EOS, 4, 4, 4, 4, 4], [EOS] * 7)(tokens, step)

    jax.block_until_ready(greedy(extend, jnp.int32(0), starts(2), 7, V, OWN))
    jax.effects_barrier()
    assert sorted(calls) == [0, 1]


SOURCES = [[5, 6, EOS], [4, 5, 6, 7, 8, 4, 5, 6, EOS]]
LENGTH = 6


@pytest.mark.parametrize('position', config.CHOICES['model.position'])
def test_alone_in_a_batch_and_without_a_cache_the_same_symbols_come_out(position):
    edited = config.load(Path(__file__).parents[2] / 'configs' / 'base.py')
    d_k = 6 if position == 'rotary' else 5
    small = {'d_model': 16, 'num_heads': 3, 'd_k': d_k, 'd_v': 7, 'd_ff': 11, 'num_layers': 1, 'max_length': 64}
    varied = {
        'vocab_size': 0,
        'embedding.softmax': 'untied',
        'residual': 'pre',
        'position': position,
    }  # else it repeats its input
    config.override(edited, {f'model.{name}': value for name, value in (small | varied).items()})
    cfg = config.resolve(edited).model
    model, rng = transformer.build(cfg, V), np.random.default_rng(8 if position != 't5_relative' else 3)

    def draw(path, leaf):
        name = path[-1].key
        norm = name in ('scale', 'bias')
        values = np.full(leaf.shape, name == 'scale') if norm else rng.standard_normal(leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    params = jax.tree_util.tree_map_with_path(draw, transformer.abstract_params(cfg, V))

    @jax.jit
    def search(params, source_BS):
        apply = lambda method, *args: model.apply({'params': params}, *args, method=method)  # noqa: E731
        cache = apply('start_cache', source_BS, LENGTH)
        return greedy(
            lambda tokens, cache: apply('extend', tokens, cache), cache, starts(source_BS.shape[0]), LENGTH, V, OWN
        )

    padded = jnp.array([row + [PAD] * (9 - len(row)) for row in SOURCES])
    together, logprob, *_ = search(params, padded)
    assert len(np.unique(together)) > 3  # the seed is chosen so: one symbol for ever would hide any mistake
    for row, source in enumerate(SOURCES):
        alone, logprob_alone, *_ = search(params, jnp.array([source]))
        np.testing.assert_array_equal(together[row], alone[0])
        np.testing.assert_allclose(logprob[row], logprob_alone[0], atol=1e-4)

    forward = jax.jit(lambda params, target: jax.nn.log_softmax(model.apply({'params': params}, padded, target)[0]))
    target, total, done = np.zeros((2, LENGTH), np.int32), np.zeros(2), np.zeros(2, bool)
    for step in range(LENGTH):
        log_p = np.asarray(forward(params, target)[:, step])
        choice = EOS + np.argmax(log_p[:, EOS:], axis=-1)  # PAD and BOS come before it
        target[:, step] = np.where(done, PAD, choice)
        total += np.where(done, 0, log_p[[0, 1], choice])
        done |= choice == EOS
    np.testing.assert_array_equal(target, together)
    np.testing.assert_allclose(total, logprob, atol=1e-4)
