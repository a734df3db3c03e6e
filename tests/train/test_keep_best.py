"""Checkpoints that are kept for their evaluation, beside the newest (B41)."""

import math

import pytest
import small

from jaxformer.train import loop, program


def scoring(losses):
    """An evaluator that gives these losses in turn."""

    class Scoring(small.NoEvaluator):
        def totals(self, examples, split=None):
            return {'loss': next(losses), 'per': 0.5, 'wer': 0.75}

    return Scoring


def train(workdir, quick, monkeypatch, losses, num_steps, **more):
    losses = iter(losses)
    monkeypatch.setattr(program, 'Evaluator', scoring(losses))
    changes = {'optim.schedule': 'constant', 'train.checkpoint_every': 1, 'train.keep_checkpoints': 1, 'eval.every': 1}
    loop.train(quick({**changes, 'train.num_steps': num_steps, 'train.keep_best': 2, **more}), workdir)
    assert not list(losses)
    return small.checkpoints(workdir)


def test_the_newest_stays_where_each_evaluation_is_worse(tmp_path, quick, monkeypatch):
    assert train(tmp_path / 'run', quick, monkeypatch, [1.0, 2.0, 3.0, 4.0, 5.0], 5) == [1, 2, 5]
    # It goes on from the newest, and knows what was best before it: 2 goes for 6.
    assert train(tmp_path / 'run', quick, monkeypatch, [1.5, 9.0], 7) == [1, 6, 7]
    assert sorted(small.lines(tmp_path / 'run', 'train/loss')) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_what_is_no_number_is_never_best(tmp_path, quick, monkeypatch, bad):
    assert train(tmp_path / 'run', quick, monkeypatch, [bad, 2.0, bad, 3.0, bad], 5) == [2, 4, 5]


def test_a_checkpoint_without_an_evaluation_is_not_best(tmp_path, quick, monkeypatch):
    assert train(tmp_path / 'run', quick, monkeypatch, [1.0, 2.0, 3.0], 5, **{'eval.every': 2}) == [2, 4, 5]
    assert train(
        tmp_path / 'none', quick, monkeypatch, [1.0, 2.0, 3.0], 5, **{'eval.every': 2, 'train.keep_best': 0}
    ) == [5]
