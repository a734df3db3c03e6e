"""Deletion equals deleting by hand, gradients equal differences, paths are complete, rollout equals a walk by hand."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import OpenRun, open_run
from jaxformer.errors import UserError
from jaxformer.inspection import attribution, example
from jaxformer.inspection.rollout import cross_rollout, rollout
from jaxformer.model import transformer

TEXT = '3 1 4 1 5'


@pytest.fixture(scope='module')
def run(trained):
    return open_run(trained, 60)


@pytest.fixture(scope='module')
def found(run):
    return attribution.of_run(run, TEXT)


@pytest.fixture(scope='module')
def of_family(make_cfg):
    """A run of another family, with random parameters."""

    def make(family, pooling='first', **changes):
        named = {'lm': 'text', 'mlm': 'text', 'classifier': 'labelled'}[family]
        cfg = make_cfg(
            model__family=family, data__name=named, data__source='any', data__tokenizer='characters',
            data__buckets=((9,),), model__position='learned', model__max_length=13, **changes,
        )  # fmt: skip
        head = dataclasses.replace(cfg.model.head, pooling=pooling)
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, head=head))
        vocab = Vocabulary.learn('characters', ['abcdefg'], 0)
        if family == 'classifier':
            vocab = dataclasses.replace(vocab, classes=('no', 'yes', 'perhaps'))
        model = transformer.build(cfg.model, len(vocab), len(vocab.classes))
        row = jnp.ones((1, 5), jnp.int32)
        params = model.init(jax.random.key(3), row)['params']
        params = jax.tree.map(lambda leaf: leaf + 0.05 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params)
        return OpenRun(epath.Path('any'), cfg, vocab, model, params, 0)

    return make


@functools.partial(jax.jit, static_argnums=0)
def passed(model, params, *rows):
    return model.apply({'params': params}, *rows)[0][0]


def logprobs(run, *rows):
    """[R, V] of one text without any padding, by a pass of its own; the formula written out."""
    logits = np.asarray(passed(run.model, run.params, *[np.asarray([row]) for row in rows]), np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_shapes_and_scores(run, found):
    given = example.of_text(run, TEXT)
    assert found.inputs[:-1] == tuple(TEXT.split()) and len(found.inputs) == 6
    R, C = len(given.labels), 6
    assert set(found.by) == {'gradient_x_input', 'integrated_gradients', 'occlusion', *attribution.ATTENTION}
    assert all(array.shape == (R, C) and np.all(np.isfinite(array)) for array in found.by.values())
    for name in ('attention', 'last_layer'):
        np.testing.assert_allclose(found.by[name].sum(axis=1), 1, atol=1e-5)
    assert np.all(found.by['rollout'].sum(axis=1) < 1)  # the rest is of the decoder's own inputs
    by_hand = logprobs(run, given.source, given.labels)[np.arange(R), given.labels]
    np.testing.assert_allclose(found.scores_R, by_hand, atol=1e-5)


def test_occlusion_is_deletion_by_hand(run, found):
    given = example.of_text(run, TEXT)
    R = np.arange(len(given.labels))
    for c in range(len(given.source)):
        without = [id_ for place, id_ in enumerate(given.source) if place != c]
        fall = found.scores_R - logprobs(run, without, given.labels)[R, given.labels]
        np.testing.assert_allclose(found.by['occlusion'][:, c], fall, atol=2e-5)
    assert np.abs(found.by['occlusion']).max() > 0.1


def test_occlusion_of_a_language_model(of_family):
    run = of_family('lm')
    found, labels = attribution.of_run(run, 'abcab'), example.of_text(run, 'abcab').labels
    assert found.inputs[1:] == tuple('abcab') and found.outputs == (*'abcab', '</s>')
    assert np.all(np.isnan(found.by['occlusion'][:, 0]))
    for t in range(len(labels)):
        for c in range(1, len(labels)):
            fall = 0.0
            if c <= t:  # input c is label c − 1
                shorter = [*labels[: c - 1], *labels[c:]]
                assert shorter[t - 1] == labels[t]
                fall = found.scores_R[t] - logprobs(run, shorter)[t - 1, labels[t]]
            assert found.by['occlusion'][t, c] == pytest.approx(fall, abs=2e-5), (t, c)
    for name in ('gradient_x_input', 'integrated_gradients', 'attention', 'rollout'):
        assert not np.any(np.triu(found.by[name], 1)), name  # nothing depends on what comes later
        assert np.all(np.tril(found.by[name])[np.tril_indices(len(labels))] != 0), name


@pytest.mark.parametrize('pooling', ['first', 'mean', 'tokens'])
def test_classes_and_places(of_family, pooling):
    run = of_family('classifier', pooling)
    found, source = attribution.of_run(run, 'abca'), list(example.of_text(run, 'abca').source)
    R = len(source) if pooling == 'tokens' else 1
    assert found.by['occlusion'].shape == found.by['rollout'].shape == (R, len(source))
    assert set(found.outputs) <= set(run.vocab.classes)
    np.testing.assert_allclose(found.by['rollout'].sum(axis=1), 1, atol=1e-6)
    ids = [run.vocab.classes.index(name) for name in found.outputs]
    for c in range(len(source)):
        rows = logprobs(run, source[:c] + source[c + 1 :])
        for t in range(R):
            place = 0 if pooling != 'tokens' else t - (t > c)
            if pooling == 'tokens' and t == c:
                assert np.isnan(found.by['occlusion'][t, c])
            else:
                fall = found.scores_R[t] - rows[place, ids[t]]
                assert found.by['occlusion'][t, c] == pytest.approx(fall, abs=2e-5)


def test_masked_language_model_has_an_output_for_each_place(of_family):
    found = attribution.of_run(of_family('mlm'), 'abca')
    assert all(array.shape == (4, 4) for array in found.by.values())
    assert np.array_equal(np.isnan(found.by['occlusion']), np.eye(4, dtype=bool))


def test_gradient_x_input_is_the_derivative_of_scaling_an_input(run, found):
    run = attribution.in_float32(run)
    given = example.of_text(run, TEXT)
    inputs = example.arrays(run, [given.source], [given.labels])
    x = attribution._forward(run.model, run.params, inputs)[1]
    ids, step = np.asarray(given.labels), 3e-3
    for c in (0, 3):
        ends = []
        for sign in (1, -1):
            logits = attribution._forward(run.model, run.params, inputs, x.at[:, c].multiply(1 + sign * step))[0]
            ends.append(np.asarray(attribution._scores(logits[0], ids), np.float64))
        numeric = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found.by['gradient_x_input'][:, c], numeric, atol=0.01 * np.abs(numeric).max())


def test_integrated_gradients_are_complete(run, found):
    change = found.scores_R - found.baseline_R
    assert np.abs(change).max() > 0.5
    gap = change - found.by['integrated_gradients'].sum(axis=1)
    assert np.all(np.abs(gap) <= np.maximum(0.01 * np.abs(change), 1e-3))
    np.testing.assert_allclose(found.gap_R, gap, atol=1e-4)
    # The baseline is the score with a table of zeros for the source, which here is that of the target, too: by hand.
    assert not np.allclose(found.baseline_R, found.scores_R)
    other = np.abs(change - found.by['gradient_x_input'].sum(axis=1))
    assert other.max() > 0.05  # which is why they are integrated


def test_too_few_points_are_a_warning(run, monkeypatch, caplog):
    monkeypatch.setattr(attribution, 'LIMIT', 4)
    monkeypatch.setattr(attribution, 'TOLERANCE', 1e-9)
    monkeypatch.setattr(attribution, 'FLOOR', 1e-9)
    found = attribution.of_run(run, TEXT)
    assert found.points == 4 and 'integrated gradients: 4 points miss up to' in caplog.text


def test_halved_pieces_come_to_what_many_points_give(run, monkeypatch):
    monkeypatch.setattr(attribution, 'TOLERANCE', 1e-4)
    monkeypatch.setattr(attribution, 'FLOOR', 1e-4)
    found = attribution.of_run(run, TEXT)
    assert found.points > 4
    run, given = attribution.in_float32(run), example.of_text(run, TEXT)
    inputs, ids = example.arrays(run, [given.source], [given.labels]), np.asarray(given.labels)
    x = attribution._forward(run.model, run.params, inputs)[1]
    shares = (np.arange(400) + 0.5) / 400  # the rule of the middle
    mean = np.mean([attribution._gradients(run, inputs, ids, share * x)[0] for share in shares], axis=0)
    expected = np.einsum('RCD,CD->RC', mean, x[0])[:, : len(given.source)]
    np.testing.assert_allclose(found.by['integrated_gradients'], expected, atol=5e-3)


def test_bfloat16_is_attributed_in_float32(run, found):
    cfg = run.cfg.model
    rough = dataclasses.replace(cfg, precision=dataclasses.replace(cfg.precision, compute='bfloat16'))
    model = transformer.build(rough, len(run.vocab))
    other = dataclasses.replace(run, model=model, cfg=dataclasses.replace(run.cfg, model=rough))
    np.testing.assert_array_equal(attribution.of_run(other, TEXT).scores_R, found.scores_R)


def test_mixer_without_maps_has_the_other_measures(of_family):
    found = attribution.of_run(of_family('classifier', model__mixer='conv'), 'abca')
    assert set(found.by) == {'gradient_x_input', 'integrated_gradients', 'occlusion'}


def weights(rng, N, H, T, S):
    raw = np.exp(rng.normal(size=(N, H, T, S)))
    return raw / raw.sum(-1, keepdims=True)


def test_rollout_is_a_walk_from_layer_to_layer():
    own = weights(np.random.default_rng(0), 3, 2, 4, 4)
    mean = own.mean(axis=1)
    walk = np.zeros((4, 4))
    for start in range(4):  # all ways of staying (1/2) or moving (1/2 times the weight), from the last layer down
        for a in range(4):
            for b in range(4):
                for end in range(4):
                    step = lambda layer, i, j: 0.5 * (i == j) + 0.5 * mean[layer, i, j]  # noqa: E731
                    walk[start, end] += step(2, start, a) * step(1, a, b) * step(0, b, end)
    np.testing.assert_allclose(rollout(own), walk, atol=1e-12)
    np.testing.assert_allclose(rollout(own).sum(axis=1), 1)
    assert not np.allclose(rollout(own), rollout(own[::-1]))


def test_cross_rollout_is_a_product_of_block_matrices():
    rng = np.random.default_rng(1)
    encoder, decoder, cross = weights(rng, 2, 3, 5, 5), weights(rng, 2, 3, 4, 4), weights(rng, 2, 3, 4, 5)
    state = np.block([[np.eye(4), np.zeros((4, 5))], [np.zeros((5, 4)), rollout(encoder)]])
    for own, other in zip(decoder.mean(axis=1), cross.mean(axis=1), strict=True):
        looks = np.block([[0.5 * (np.eye(4) + own), np.zeros((4, 5))], [np.zeros((5, 4)), np.eye(5)]])
        reads = np.block([[0.5 * np.eye(4), 0.5 * other], [np.zeros((5, 4)), np.eye(5)]])
        state = reads @ looks @ state
    np.testing.assert_allclose(cross_rollout(encoder, decoder, cross), state[:4, 4:], atol=1e-12)
    np.testing.assert_allclose(state[:4].sum(axis=1), 1)


def test_texts_of_one_bucket_have_one_shape(make_cfg):
    """Sides of unlike length do not go by buckets of their own, so that there are as many programs as buckets."""
    run = types.SimpleNamespace(cfg=make_cfg(data__buckets=((5, 6), (9, 12))))
    shapes = [[x.shape[1] for x in example.arrays(run, [[3] * s], [[3] * t])] for s, t in ((4, 6), (4, 7), (8, 2))]
    assert shapes == [[5, 6], [9, 12], [9, 12]]
    assert [x.shape[1] for x in example.arrays(run, [[3] * 10, [3]], [[3] * 2] * 2)] == [10, 12]


def test_mistakes_are_named(run):
    with pytest.raises(UserError, match='holds no symbol'):
        attribution.of_run(run, '  ')
    with pytest.raises(UserError, match="'nope' is not in the vocabulary"):
        attribution.of_run(run, TEXT, 'nope')
