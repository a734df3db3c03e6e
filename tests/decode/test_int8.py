"""int8 weights: what rounding may and may not change, channel by channel."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from test_lines import CONFIGS

from jaxformer import config, sharding
from jaxformer.decode import int8
from jaxformer.model import transformer

DRAW = np.random.default_rng(5)


@pytest.mark.parametrize('dtype', [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize('axes', [(1,), (0, 2), (2,)])
def test_each_channel_has_its_scale_and_nothing_is_further_than_half_of_it(axes, dtype):
    array = (DRAW.normal(size=(3, 5, 7)) * 10.0 ** DRAW.integers(-6, 6, size=(3, 5, 7))).astype(dtype)
    found = int8.of_array(array, axes)
    q, scale = found['int8'], found['scale']
    assert (
        q.dtype == np.int8 and scale.dtype == dtype and scale.size == array.size // np.prod(np.take(array.shape, axes))
    )
    assert np.abs(array.astype(np.float64) - scale.astype(np.float64) * q).max(axis=axes).shape
    assert np.all(np.abs(array.astype(np.float64) - scale.astype(np.float64) * q) <= scale.astype(np.float64) / 2)
    np.testing.assert_array_equal(np.abs(q).max(axis=axes), 127)
    np.testing.assert_array_equal(int8.of_array(-array, axes)['int8'], -q)
    for index in np.ndindex(*scale.shape):  # a channel knows of no other
        alone = tuple(slice(None) if axis in axes else i for axis, i in enumerate(index))
        part = array[alone]
        expected = np.rint(part.astype(np.float64) / float(np.abs(part.astype(np.float64)).max() / 127))
        assert np.abs(q[alone] - expected).max() <= (0 if dtype == np.float32 else 1)


def test_zeros_and_what_is_whole_steps_are_exact():
    array = np.array([[0, 0, 0], [0, -127, 64], [0.5, 0, -0.25], [1e-45, 0, 0]], np.float32)
    found = int8.of_array(array, (1,))
    back = np.asarray(int8.floats({'w': found})['w'])
    np.testing.assert_array_equal(back == 0, [[True] * 3, [True, False, False], [False, True, False], [True] * 3])
    np.testing.assert_array_equal(back[1], array[1])
    assert back[2, 0] == 0.5 and np.isfinite(back).all()
    whole = np.float32(3 / 127) * DRAW.integers(-127, 128, (4, 9)).astype(np.float32)
    whole[:, 0] = np.float32(3 / 127) * np.float32(127)
    np.testing.assert_allclose(int8.floats(int8.of_array(whole, (1,))), whole, rtol=1e-6)


def models():
    yield 'tiny', {}
    yield 'tiny', {'model.encoder_mixer': 'linformer', 'model.max_length': 13}
    for mixer in ('conv', 'lstm', 'static'):
        yield 'tiny', {'model.mixer': mixer, 'model.max_length': 13}
    yield 'gpt_tiny', {}
    yield 'llama_tiny', {}
    yield 'bert_tiny', {}
    yield 'classifier_tiny', {}


@pytest.mark.parametrize(('name', 'changes'), list(models()))
def test_every_matrix_of_every_model_is_rounded_and_nothing_else(name, changes):
    """A matrix is what grows with two sizes of the model; a channel is one output: its scale has its letters alone."""
    edited = config.load(CONFIGS / f'{name}.py')
    config.override(edited, changes)
    shapes = transformer.abstract_params(config.resolve(edited).model, 300, 7)
    params = jax.tree.map(lambda leaf: DRAW.normal(size=leaf.shape).astype(np.float32), shapes)
    rounded = int8.rounded(params)
    stays = r'(norm/(scale|bias)|_?bias|/mixing|position/table|token_types|/score)$'
    for path, leaf in jax.tree_util.tree_leaves_with_path(rounded, is_leaf=int8.is_rounded):
        path = sharding.path_name(path)
        assert int8.is_rounded(leaf) != bool(re.search(stays, path)), path
        if int8.is_rounded(leaf):
            letters = sharding.letters(path)
            kept = ''.join(letter for letter, size in zip(letters, leaf['scale'].shape, strict=True) if size > 1)
            summed = ''.join(sorted(set(letters) - set(kept) - {'N'}))
            layer = path.rsplit('/', 1)[-1]
            expected = {
                'embedding': 'D',
                'out': 'EH',
                'inner': 'D',
                'gate': 'D',
                'outer': 'F',
                'query': 'D',
                'key': 'D',
            }
            if 'self_lstm' not in path and layer in expected:
                assert summed == expected[layer], path
    floats = int8.floats(rounded)
    assert jax.tree.map(jnp.shape, floats) == jax.tree.map(jnp.shape, params)
    assert int8.any_rounded(rounded) and not int8.any_rounded(floats) and not int8.any_rounded(params)
