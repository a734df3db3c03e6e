import pytest
import small

from jaxformer.train import loop, member, program


@pytest.fixture(scope='session')
def straight(tmp_path_factory):
    """A whole run: 27 steps, 3 epochs, 2 buckets, evaluated and decoded; nobody changes its directory."""
    workdir = tmp_path_factory.mktemp('run') / 'straight'
    metrics = loop.train(small.make(), workdir)
    return workdir, metrics


@pytest.fixture
def quick(monkeypatch):
    """Makes configs of one bucket, and evaluation free: for tests that look at training alone."""
    monkeypatch.setattr(program, 'Evaluator', small.NoEvaluator)
    monkeypatch.setattr(program, 'Decoder', small.NoEvaluator)
    return lambda more=None: small.make({**small.QUICK, **(more or {})})


@pytest.fixture(scope='session')
def quick_straight(tmp_path_factory):
    """20 steps of `quick`, straight through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, 'Evaluator', small.NoEvaluator)
        patch.setattr(program, 'Decoder', small.NoEvaluator)
        workdir = tmp_path_factory.mktemp('run') / 'quick'
        loop.train(small.make(small.QUICK), workdir)
    return workdir


@pytest.fixture
def at_step(monkeypatch):
    """`at_step(n, action)`: does something when a run takes the batch of step n, once."""

    def arrange(step, action):
        make_iterator = member.pipeline.train_iterator

        class Watched:
            def __init__(self, *args):
                self._iterator = make_iterator(*args)

            def __next__(self):
                batch = next(self._iterator)
                if self._iterator.get_state() == {'next_index': step}:
                    monkeypatch.setattr(member.pipeline, 'train_iterator', make_iterator)
                    action()
                return batch

            def __getattr__(self, name):
                return getattr(self._iterator, name)

        monkeypatch.setattr(member.pipeline, 'train_iterator', Watched)

    return arrange
