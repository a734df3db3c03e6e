"""`jaxformer verify-resume` proves what holds, and finds what does not."""

import numpy as np
import pytest
import small

from jaxformer import main
from jaxformer.train import member, verify

ARGUMENTS = ['verify-resume', *small.arguments('unused', {'data.buckets': ((9, 9),)})[1:], '--steps=6']
ARGUMENTS = [argument for argument in ARGUMENTS if not argument.startswith('--workdir')]


def test_a_resumed_run_is_the_straight_one(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    monkeypatch.setattr('tempfile.tempdir', None)
    assert main.main(ARGUMENTS) == 0
    said = capsys.readouterr().out
    assert 'stopped by SIGTERM after step 3, gone on to 6' in said and said.endswith('resume is exact\n')
    counted = dict(line.split(':')[1].split(maxsplit=1)[::-1] for line in said.splitlines() if 'equal' in line)
    assert counted['example ids'] == '36' and counted['data position'] == '1'
    parameters, moments = (int(counted[name].replace(',', '')) for name in ('parameters', 'optimiser state'))
    assert moments >= 2 * parameters > 1000
    assert int(counted['logged numbers']) > 6 * 4
    assert not list(tmp_path.glob('jaxformer-verify-*'))


class Forgetful:
    """An iterator that does not go where it is told."""

    make = staticmethod(member.pipeline.train_iterator)

    def __init__(self, *args):
        self._iterator = self.make(*args)

    def __next__(self):
        return next(self._iterator)

    def set_state(self, state):
        self._iterator.set_state({'next_index': state['next_index'] - 1})

    def __getattr__(self, name):
        return getattr(self._iterator, name)


def test_an_iterator_that_forgets_is_found_at_its_first_step(capsys, monkeypatch):
    monkeypatch.setattr(member.pipeline, 'train_iterator', Forgetful)
    assert main.main(ARGUMENTS) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith('jaxformer: ')]
    assert len(said) == 1 and 'resume is not exact: example_ids of step 4: [' in said[0]


def test_a_state_that_comes_back_otherwise_is_found(capsys, monkeypatch):
    newest = member.Member._newest

    def other(self):
        state = newest(self)
        return state.replace(skipped=state.skipped + 1) if self.step else state

    monkeypatch.setattr(member.Member, '_newest', other)
    assert main.main(ARGUMENTS) == 1
    assert 'resume is not exact: train/learning_rate of step 4: ' in capsys.readouterr().err  # of an update before


def test_one_bit_of_an_array_is_a_difference():
    a, b, c = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    assert verify._difference(a, a.copy()) == ''
    b[1, 0] = -0.0
    assert verify._difference(a, b) == '1 of 6 numbers, the first 0.0 straight, -0.0 resumed'
    assert verify._difference(a, c) == 'float32(2, 3) straight, float32(3, 2) resumed'
    assert verify._difference(a, None) and verify._difference(None, a)


@pytest.mark.parametrize('steps', ['3', '0', '-1'])
def test_too_few_steps_are_refused(steps, capsys):
    assert main.main([*ARGUMENTS, f'--steps={steps}']) == 2
    assert f'--steps={steps}' in capsys.readouterr().err
