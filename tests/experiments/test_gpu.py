"""The script for an accelerator: what it measures, that it runs from end to end, and what it says without one."""

import json

import pytest

from experiments import gpu
from experiments.gpu import Length
from jaxformer.ablate import flops, together

KERNELS = ('plain',)


def test_without_an_accelerator_it_says_in_one_line_what_it_needs(tmp_path, capsys):
    assert gpu.main([f'--output={tmp_path / "out"}']) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'needs one GPU' in line and '1 x cpu' in line and '--allow-cpu' in line
    assert not (tmp_path / 'out').exists()


@pytest.fixture(scope='module')
def found(tmp_path_factory):
    """(gpu.json, gpu.md) of the tiny size."""
    output = tmp_path_factory.mktemp('gpu')
    flags = ['--allow-cpu', '--size=tiny', '--rounds=2', '--steps=2', '--warm-up=1']
    assert gpu.main([f'--output={output}', *flags, '--kernel', *KERNELS]) == 0
    return json.loads((output / 'gpu.json').read_text()), (output / 'gpu.md').read_text()


def test_every_kernel_is_measured(found):
    content, text = found
    rows = {row['kernel']: row for row in content['kernels']}
    assert tuple(rows) == KERNELS
    for kernel, row in rows.items():
        assert f'| sentences | {kernel} |' in text
        assert all(warned in text for warned in row['warnings'])
        cfg = gpu.resolved(gpu.base.get_config(), gpu.KERNEL_CASES['tiny']['sentences'])
        assert row['flops'] == 2 * flops.training(cfg.model, 71, 0, (5, 7)) and row['tokens'] == 2 * (5 + 7)
        assert row['step_ms']['min'] <= row['step_ms']['median'] <= row['step_ms']['max']
        fastest = row['tokens'] / row['tokens_per_second']['max']
        assert 1000 * fastest == pytest.approx(row['step_ms']['min'])
        assert row['share_of_peak'] is None  # that of a CPU is not known
    assert rows['plain']['x plain'] == {'median': 1.0, 'min': 1.0, 'max': 1.0}


def test_a_cohort_is_measured_in_each_mode_against_turns(found):
    content, text = found
    rows = {row['way']: row for row in content['cohorts']}
    assert set(rows) == {'turns', *together.MODES}
    for way, row in rows.items():
        assert f'| quickstart | {way} |' in text and row['step_ms']['min'] > 0
    assert rows['turns']['x turns'] == {'median': 1.0, 'min': 1.0, 'max': 1.0} and rows['turns']['bytes'] is None
    assert rows['vmap']['bytes'] > rows['map']['bytes'] > 0  # of eight at once, and of one at a time


def test_sides_take_the_same_batches_in_alternating_order():
    taken = []

    def side(name, seconds):
        return lambda block, warm_up: taken.append((name, block, warm_up)) or seconds

    found = gpu.in_turns({'a': side('a', 6.0), 'b': side('b', 3.0)}, Length(rounds=2, steps=3, warm_up=2))
    assert found == {'a': [2.0, 2.0], 'b': [1.0, 1.0]}
    first, second = slice(0, 5), slice(5, 10)
    assert taken == [('a', first, 2), ('b', first, 2), ('b', second, 2), ('a', second, 2)]


def test_the_peak_goes_by_the_name_of_the_device():
    assert gpu.peak_of('NVIDIA H200') == 989.5e12
    assert gpu.peak_of('NVIDIA A100-SXM4-80GB') == 312e12
    assert gpu.peak_of('cpu') is None


def test_a_kernel_that_gives_way_is_written_down(caplog):
    with gpu.Warnings() as said:
        gpu.logging.getLogger('absl').warning('%s instead', 'blockwise')
        gpu.logging.getLogger('absl').info('nothing of note')
    gpu.logging.getLogger('absl').warning('afterwards')
    assert said == ['blockwise instead']
