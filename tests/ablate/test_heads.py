"""Importance of heads: the loss without each, its gradient by finite differences, curves that end where they must."""

import numpy as np
import pytest

from jaxformer.ablate import heads
from jaxformer.data import corpus
from jaxformer.decode.open import open_run
from jaxformer.inspection import prune
from jaxformer.train import loop


@pytest.fixture(scope='module')
def study(tmp_path_factory):
    from jaxformer import config

    edited = config.load('configs/tiny.py')
    changes = {'data.dir': str(tmp_path_factory.mktemp('data')), 'data.buckets': ((9, 9),), 'train.num_steps': 60}
    config.override(edited, changes | {'model.num_heads': 2, 'eval.every': 0, 'train.checkpoint_every': 60})
    workdir = tmp_path_factory.mktemp('runs') / 'run'
    loop.train(config.resolve(edited), workdir)
    run = open_run(workdir)
    return heads.Study(run, corpus.load(run.cfg.data).split('test'))


@pytest.fixture(scope='module')
def importance(study):
    return study.importance(resamples=200)


def loss(study, masked):
    nll, tokens = study.losses(masked)
    return nll.sum() / tokens.sum()


def test_every_head_has_its_change_of_the_loss_in_an_interval(study, importance):
    assert [str(head) for head in importance.heads][:3] == ['encoder.1.1', 'encoder.1.2', 'encoder.2.1']
    assert len(importance.heads) == 2 * 2 * 3
    for number in (0, 5, 11):
        change = loss(study, [importance.heads[number]]) - importance.loss
        assert importance.masking.value[number] == pytest.approx(change, abs=1e-6)
    for found in (importance.masking, importance.gradient):
        assert np.all(found.low <= found.value) and np.all(found.value <= found.high) and np.any(found.low < found.high)
    assert np.ptp(importance.masking.value) > 0.01
    ordered = importance.order()
    assert loss(study, ordered[-1:]) > loss(study, ordered[:1])


def test_the_gradient_is_that_of_the_loss_by_what_a_head_adds(study, importance):
    slope_RN = study.slopes()
    np.testing.assert_allclose(importance.gradient.value, np.abs(slope_RN).mean(1), rtol=1e-5)
    run, model = study.run, study.run.cfg.model
    for number in (1, 6, 10):
        head, ends = importance.heads[number], []
        for factor in (0.99, 1.01):
            weight = prune.mask(model, ())
            weight[head.kind][head.layer, head.head] = factor
            params = prune.weighed(run.params, model, weight)
            ends.append(study._evaluator.examples(params, study.split)['nll'])
        np.testing.assert_allclose((ends[1] - ends[0]) / 0.02, slope_RN[number], atol=0.05)
    assert np.abs(slope_RN[[1, 6, 10]]).max() > 0.5


def test_curves_go_from_the_whole_model_to_none_of_its_heads(study, importance):
    curves = study.curves(importance, steps=3, draws=2)
    assert list(curves) == ['masking', 'gradient', 'random 1', 'random 2']
    for points in curves.values():
        assert [left for left, _ in points] == [12, 8, 4, 0]
        assert points[0][1] == pytest.approx(importance.loss) and points[-1][1] == pytest.approx(
            loss(study, importance.heads)
        )
    assert curves['masking'][1][1] == pytest.approx(loss(study, importance.order()[:4]))
    assert curves['random 1'] != curves['random 2']
    text = heads.as_text(importance, curves)
    assert str(importance.order()[-1]) in text.splitlines()[1]  # the one that matters most comes first
    names = text.splitlines()[-1].split('--heads=')[1]
    assert prune.parse(names, study.run.cfg.model) == importance.order()[:6]
