"""Weights of chosen layers, heads and rows are those of all, in their order; the others are never laid side by side."""

import jax
import numpy as np
import pytest

from jaxformer.model import transformer
from jaxformer.model.keep import Keep

SOURCE = np.array([[5, 7, 9, 4, 2, 0, 0], [3, 3, 8, 6, 7, 9, 2]], np.int32)
TARGET = np.array([[6, 8, 2, 0, 0], [9, 9, 5, 4, 2]], np.int32)


@pytest.fixture(scope='module')
def model(make_config):
    built = transformer.build(make_config(num_layers=4, num_heads=3), 11)
    return built, transformer.init(built, 0)


def collected(model, collect):
    built, params = model
    logits, found = jax.jit(lambda p: built.apply({'params': p}, SOURCE, TARGET, collect=collect))(params)
    return np.asarray(logits), jax.device_get(found)


def test_what_is_chosen_is_cut_out_of_the_whole_in_its_order(model):
    logits, whole = collected(model, ('attention',))
    keep = Keep(layers=(3, 1), heads=(2, 0), rows=(4, 1, 0))
    same, found = collected(model, (('cross', keep), ('encoder', Keep(heads=(1,)))))
    assert set(found) == {'cross', 'encoder'} and found['cross'].shape == (2, 2, 2, 3, 7)
    np.testing.assert_array_equal(found['cross'], whole['cross'][[3, 1]][:, :, [2, 0]][:, :, :, [4, 1, 0]])
    np.testing.assert_array_equal(found['encoder'], whole['encoder'][:, :, [1]])
    np.testing.assert_array_equal(same, logits)
    assert np.ptp(whole['cross'], axis=0).max() > 0.01  # layers differ, or else any would pass


def test_what_is_worked_out_of_the_weights_is_kept_in_their_place(model):
    largest = Keep(layers=(2,), reduce=lambda weights_BHTS: weights_BHTS.max(-1))
    _, whole = collected(model, ('attention',))
    _, found = collected(model, (('decoder', largest),))
    np.testing.assert_array_equal(found['decoder'], whole['decoder'][[2]].max(-1))


def test_a_layer_of_many_takes_the_memory_of_one(make_config):
    built = transformer.build(make_config(num_layers=8, num_heads=4, family='lm'), 11)
    params = jax.eval_shape(lambda: transformer.init(built, 0))
    tokens = jax.ShapeDtypeStruct((1, 257), np.int32)

    def bytes_of(collect):
        run = jax.jit(lambda p, tokens: built.apply({'params': p}, tokens, collect=collect)[1])
        memory = run.lower(params, tokens).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    layer = 4 * 4 * 257 * 257
    whole, one = bytes_of(('attention',)), bytes_of((('decoder', Keep(layers=(5,), heads=(0,), rows=(256,))),))
    assert whole - one > 7 * layer
    assert one < 5 * layer  # the scores of the layer at hand, and what becomes of them
