"""Importance of heads: the loss without each, its gradient by finite differences, curves that end where they must."""

import jax
import numpy as np
import pytest

from jaxformer import sharding
from jaxformer.ablate import heads
from jaxformer.data import corpus
from jaxformer.decode.open import open_run
from jaxformer.decode.predict import Decoder
from jaxformer.errors import UserError
from jaxformer.inspection import prune
from jaxformer.model import transformer
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


def test_heads_that_go_in_turn_leave_the_least_loss_each_time(study):
    gone = study.in_turn(2)
    assert loss(study, gone[:1]) == min(loss(study, [head]) for head in study.heads)
    assert loss(study, gone) == min(loss(study, [gone[0], head]) for head in study.heads if head != gone[0])


def test_error_rates_are_those_of_the_pruned_model(study, importance):
    """With as many heads left in each layer, so that pruning takes all of them out."""
    model, judged = study.run.cfg.model, study.split
    one_each = [head for head in study.heads if head.head == head.layer]
    orders = {'by hand': one_each, 'random 1': importance.order(), 'random 2': importance.order()[::-1]}
    found = study.decoded(orders, 6, judged)
    assert list(found) == ['all heads', *orders] and len({str(rates) for rates in found.values()}) > 2
    cfg, params = prune.pruned(study.run.cfg, study.run.params, one_each)
    fewer = transformer.build(cfg.model, len(study.run.vocab))
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    for name, decoder, weights in (
        ('by hand', Decoder(cfg, fewer, study.run.vocab, mesh), params),
        ('all heads', Decoder(study.run.cfg, study.run.model, study.run.vocab, mesh), study.run.params),
    ):
        expected = decoder.split_error_rates(weights, judged)
        assert {rate: found[name][rate] for rate in expected} == pytest.approx(expected)
    assert cfg.model.kept_heads.cross == ((1,), (0,)) != model.kept_heads.cross
    text = heads.decoded_text(found, 6).splitlines()
    rates = [100 * next(iter(found[name].values())) for name in ('random 1', 'random 2')]
    assert f'{np.mean(rates):.2f} ± {abs(rates[0] - rates[1]) / 2**0.5:.2f}' in text[-1]
    for left in (-1, 12):
        with pytest.raises(UserError, match=f'--keep={left}: a number from 0 to 11'):
            study.refuse_left(left, study.split)
