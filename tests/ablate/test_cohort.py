"""Runs that are trained together: each as if it were alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxformer import claims, hyperparameters
from jaxformer.ablate import cohort, members, together
from jaxformer.errors import RunError, UserError
from jaxformer.train import loop, program
from jaxformer.train.per_example import read

sys.path.insert(0, str(Path(__file__).parents[1] / 'train'))
import small  # noqa: E402 - the small runs of the tests of training

BASE = {
    **small.QUICK,
    'data.num_examples': 60,
    'train.num_steps': 50,
    'train.checkpoint_every': 20,
    'train.log_every': 1,
    'train.log_example_ids': True,
    'train.inspect_every': 20,
    'eval.every': 20,
    'optim.schedule': 'constant',
    'optim.warmup_steps': 4,
    'optim.learning_rate': 4e-3,
    'optim.weight_decay': 0.01,
    'optim.label_smoothing': 0.1,
    'model.dropout.residual': 0.1,
    'model.dropout.embedding': 0.2,
}
MEMBERS = (
    {'seed': 1},
    {'seed': 2, 'optim.learning_rate': 1e-3, 'optim.label_smoothing': 0.2},
    {'seed': 2, 'optim.beta1': 0.5, 'optim.beta2': 0.9, 'optim.weight_decay': 0.1},
    {'seed': 3, 'model.dropout.residual': 0.3, 'model.dropout.embedding': 0.05},
)


def configs(*more, **common):
    """The members with further changes, all alike (or one after the other)."""
    changes = {key.replace('__', '.'): value for key, value in common.items()}
    each = more or ({},) * len(MEMBERS)
    return [small.make({**BASE, **member, **changes, **extra}) for member, extra in zip(MEMBERS, each, strict=True)]


def directories(where):
    return [where / f'run-{number}' for number in range(len(MEMBERS))]


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
    """The four runs, one by one, with the command's own function; nobody changes their directories."""
    paths = directories(tmp_path_factory.mktemp('alone'))
    compiled = program.Program(configs()[0])
    for cfg, path in zip(configs(), paths, strict=True):
        loop.train(cfg, path, compiled)
    assert compiled.compilations() == {'train': 1, 'eval': 1, 'decode': 1, 'layers': 1}
    return paths


@pytest.fixture(scope='module', params=['map', 'vmap'])
def mode(request):
    return request.param


@pytest.fixture(scope='module')
def trainer(mode):
    """One for all tests of a mode: what it has compiled is used again."""
    return cohort.Trainer()


@pytest.fixture(scope='module')
def cohort_of_four(tmp_path_factory, mode, trainer):
    """(directories, outcomes) of the four as one cohort."""
    paths = directories(tmp_path_factory.mktemp(mode))
    return paths, trainer.train(configs(cohort__mode=mode), paths)


METRICS = (
    *('train/loss', 'train/grad_norm', 'train/learning_rate', 'dev/loss'),
    *('layers/gradient_norm/decoder.1', 'layers/output_rms/encoder.1', 'layers/attention_entropy_least/cross.1'),
)


def assert_close(path, other, metrics=METRICS):
    for metric in metrics:
        found, expected = small.lines(path, metric), small.lines(other, metric)
        assert found.keys() == expected.keys() and found
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5, err_msg=metric)


def test_a_member_has_the_numbers_of_its_run_alone_at_each_of_50_steps(cohort_of_four, alone):
    """Seeds, learning rate, weight decay, betas, smoothing and dropout rates are the member's own."""
    paths, outcomes = cohort_of_four
    for path, other, metrics in zip(paths, alone, outcomes, strict=True):
        assert len(small.lines(path, 'train/loss')) == 50
        assert_close(path, other)
        assert small.lines(path, 'example_ids') == small.lines(other, 'example_ids')
        assert metrics == small.status(path)['metrics'] and metrics.keys() == small.status(other)['metrics'].keys()
    losses = [small.lines(path, 'train/loss')[50] for path in paths]
    assert len(set(losses)) == 4
    ids = [small.lines(path, 'example_ids')[1] for path in paths]
    assert ids[1] == ids[2] and ids[0] != ids[1]  # by seed


def test_a_member_leaves_the_directory_of_a_run_alone(cohort_of_four, alone):
    paths, _ = cohort_of_four
    names = lambda path: {  # noqa: E731
        str(file.relative_to(path)) for file in path.rglob('*')
        if 'events' not in file.name and '.claim' not in file.parts and 'checkpoints' not in file.parts
    }  # fmt: skip
    for path, other in zip(paths, alone, strict=True):
        assert names(path) == names(other)
        assert small.checkpoints(path) == small.checkpoints(other)
        assert small.status(path)['status'] == 'done'
        assert small.lines(path, 'compilations')[50] == {'train': 1, 'eval': 1, 'decode': 1, 'layers': 1}
        ours, theirs = read(path, 'dev'), read(other, 'dev')
        assert ours.keys() == theirs.keys() and ours['nll'] == pytest.approx(theirs['nll'], rel=1e-4)
        a, b = small.state(path), small.state(other)
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=2e-3, atol=2e-5, err_msg=name)
        (record,) = json.loads((path / 'environment.json').read_text())
        assert record['runs_together'] == 4
        assert loop.train(configs()[paths.index(path)], path) == small.status(path)['metrics']  # done: left alone


def test_a_member_that_is_not_finite_stops_and_does_not_touch_the_others(cohort_of_four, mode, trainer, tmp_path):
    """B43: bit-equal with and without it."""
    paths, _ = cohort_of_four
    broken = directories(tmp_path)
    outcomes = trainer.train(configs({}, {'optim.learning_rate': 1e30}, {}, {}, cohort__mode=mode), broken)
    assert isinstance(outcomes[1], RunError) and 'loss nan' in str(outcomes[1])
    status = small.status(broken[1])
    assert status['status'] == 'failed' and status['step'] < 6 and f'step {status["step"] + 1}' in status['reason']
    for number in (0, 2, 3):
        assert outcomes[number] == small.status(paths[number])['metrics']
        small.assert_bit_equal(small.state(broken[number]), small.state(paths[number]))
        assert small.series(broken[number]) == small.series(paths[number])


def test_a_cohort_that_is_stopped_goes_on_even_from_different_steps(
    cohort_of_four, mode, trainer, tmp_path, monkeypatch
):
    """Stopped by a signal at step 17; then one of the four alone reaches step 31, and all go on together."""
    paths = directories(tmp_path)
    update = members.Progress.update

    def at(step, monkeypatch):
        def watched(self, now, *args):
            if now == step:
                monkeypatch.setattr(members.Progress, 'update', update)
                signal.raise_signal(signal.SIGTERM)
            update(self, now, *args)

        monkeypatch.setattr(members.Progress, 'update', watched)

    at(16, monkeypatch)
    with pytest.raises(loop.Preempted, match='step 17 is saved'):
        trainer.train(configs(cohort__mode=mode), paths)
    assert {(small.status(path)['status'], small.status(path)['step']) for path in paths} == {('preempted', 17)}
    at(30, monkeypatch)
    with pytest.raises(loop.Preempted, match='step 31 is saved'):
        trainer.train(configs(cohort__mode=mode)[2:], paths[2:])
    assert [small.status(path)['step'] for path in paths] == [17, 17, 31, 31]
    trainer.train(configs(cohort__mode=mode), paths)
    for path, other in zip(paths, cohort_of_four[0], strict=True):
        assert_close(path, other)
        assert small.lines(path, 'example_ids') == small.lines(other, 'example_ids')
        if mode == 'map':  # the same program for each, whatever their number
            small.assert_bit_equal(small.state(path), small.state(other))


@pytest.fixture
def free_evaluation(monkeypatch):
    monkeypatch.setattr(program, 'Evaluator', small.NoEvaluator)
    monkeypatch.setattr(program, 'Decoder', small.NoEvaluator)


def test_what_cannot_be_taken_or_fails_to_begin_is_an_outcome_of_its_own(tmp_path, free_evaluation):
    short = {'train.num_steps': 6, 'train.checkpoint_every': 6}
    paths = directories(tmp_path)
    four = configs(*[short] * 4, cohort__mode='map')
    loop.train(four[0], paths[0])
    finished = small.snapshot(paths[0])
    loop.train(small.make({**BASE, **short, 'seed': 7}), paths[2])  # another run's directory
    code = 'import sys; from jaxformer import claims; h = claims.hold(sys.argv[1]); h.__enter__()'
    code += '; print(1, flush=True); input()'
    paths[1].mkdir()
    with subprocess.Popen([sys.executable, '-c', code, str(paths[1])], stdin=-1, stdout=-1, text=True) as holder:
        holder.stdout.readline()
        outcomes = cohort.Trainer().train(four, paths)
        holder.communicate('\n')
    assert outcomes[0] == small.status(paths[0])['metrics'] and small.snapshot(paths[0]) == finished
    assert isinstance(outcomes[1], claims.BusyError)
    assert isinstance(outcomes[2], UserError) and 'config.seed is 7 there and 2 here' in str(outcomes[2])
    assert outcomes[3] == small.status(paths[3])['metrics'] and small.status(paths[3])['step'] == 6


def test_a_member_ahead_goes_on_alone_where_those_behind_fail(tmp_path, free_evaluation, mode, trainer):
    """It waits for them, and must not be called done where they leave it."""
    short = {'train.num_steps': 9, 'train.checkpoint_every': 4}
    paths, stop = directories(tmp_path)[:2], RuntimeError('stop')

    def at_five(self, now, *args):
        if now == 5:
            raise stop

    ahead, broken = configs(short, short | {'optim.learning_rate': 1e30}, {}, {}, cohort__mode=mode)[:2]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match='stop'):
        patch.setattr(loop.Progress, 'update', at_five)
        loop.train(ahead, paths[0])
    assert small.checkpoints(paths[0]) == [4]
    outcomes = trainer.train([ahead, broken], paths)
    assert isinstance(outcomes[1], RunError)
    assert outcomes[0] == small.status(paths[0])['metrics'] != {}
    assert (small.status(paths[0])['status'], small.status(paths[0])['step']) == ('done', 9)
    assert list(small.lines(paths[0], 'train/loss')) == list(range(1, 10))


def test_the_size_of_a_cohort_follows_from_memory(tmp_path, free_evaluation, monkeypatch, caplog):
    short = {'train.num_steps': 3, 'train.checkpoint_every': 3}
    four = configs(*[short] * 4, cohort__mode='map')
    shared = together.Shared(four[0])
    values = together.stacked([hyperparameters.of(cfg) for cfg in four])
    assert shared.fitting(four) == 4
    (largest,) = [together.needed_bytes(found) for found in shared.step(4)._compiled.values()]
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in __import__('jax').tree.leaves(shared.program.target))
    assert largest > 4 * state and values.seed.tolist() == [1, 2, 2, 3]
    monkeypatch.setattr(together, 'free_bytes', lambda device: largest - 1)
    sizes = []
    step = together.Together.__call__
    monkeypatch.setattr(
        together.Together, '__call__', lambda self, *args: (sizes.append(len(args[3])), step(self, *args))[1]
    )
    trainer, paths = cohort.Trainer(), directories(tmp_path)
    first = trainer.train(four, paths)
    assert sizes == [2] * 3 and len(first) == 2 and all(isinstance(outcome, dict) for outcome in first)
    assert [path.exists() for path in paths] == [True, True, False, False]
    assert len(trainer.train(four[2:], paths[2:])) == 2 and sizes == [2] * 6
    assert 'half of them are tried' in caplog.text
    assert shared.fitting(four[:2]) == 2 and shared.fitting(four[:2], workers=2) == 1  # the host's memory is shared


def test_free_memory_is_a_share_of_the_machines():
    import jax

    total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    assert 0 < together.free_bytes(jax.devices()[0]) < 0.6 * total


def test_off_and_a_mesh_of_several_devices_mean_one_at_a_time():
    (cfg,) = configs()[:1]
    assert together.mode_of(cfg) == 'map'  # this backend is CPU
    assert together.mode_of(small.make({'cohort.mode': 'vmap'})) == 'vmap'
    assert together.mode_of(small.make({'cohort.mode': 'off'})) is None
    assert together.mode_of(small.make({'model.decoder_mixer': 'conv'})) is None  # slow inside of a loop
    assert together.mode_of(small.make({'mesh.data': 1, 'mesh.model': 2})) is None
    assert together.mode_of(small.make({'mesh.strategy': 'fsdp'})) is None
    assert together.mode_of(small.make({'train.nan_policy': 'restore'})) is None  # who goes back does so alone
    assert together.mode_of(small.make({'cohort.mode': 'vmap'}), 'cpu') == 'vmap'


@pytest.mark.parametrize(
    ('change', 'same'),
    [
        ({'seed': 9}, True),
        ({'optim.learning_rate': 0.5, 'optim.beta1': 0.1}, True),
        ({'model.dropout.residual': 0.7}, True),
        ({'model.dropout.residual': 0.0}, False),  # nothing is dropped: another program
        ({'model.dropout.attention': 0.1}, False),
        ({'optim.weight_decay': 0.0}, False),
        ({'optim.epsilon': 1e-6}, False),
        ({'model.num_heads': 1}, False),
        ({'train.num_steps': 51}, False),
    ],
)
def test_a_cohort_is_of_runs_with_one_program(change, same):
    assert (
        hyperparameters.program(small.make(BASE)) == hyperparameters.program(small.make({**BASE, **change}))
    ) is same


CHILD = """
import json, sys, threading
sys.path[:0] = sys.argv[2:]
import jax, small, test_cohort
from jaxformer.ablate import cohort, members, together
from jaxformer.train import program
assert jax.device_count() == 3
program.Evaluator = program.Decoder = small.NoEvaluator
spread = []
call = together.Together.__call__
def watched(self, state, *others):
    spread.append(sorted({shard.device.id for shard in jax.tree.leaves(state)[1].addressable_shards}))
    return call(self, state, *others)
together.Together.__call__ = watched
for mode in ('map', 'vmap'):
    paths = [f'{sys.argv[1]}/{mode}-{number}' for number in range(4)]
    found = cohort.Trainer().train(test_cohort.configs(*[{'train.num_steps': 6}] * 4, cohort__mode=mode), paths)
    assert all(isinstance(one, dict) for one in found), found
    assert spread == [[0, 1, 2]] * 6, spread
    spread.clear()

at_once, evaluate = threading.Barrier(3), members.Member.evaluate
def met(run, *arguments):
    evaluate(run, *arguments)
    if run.workdir.name != 'met-0':  # the first compiles for all of them
        at_once.wait(60)
    if run.workdir.name == 'met-2':
        raise OSError('its own')
members.Member.evaluate = met
paths = [f'{sys.argv[1]}/met-{number}' for number in range(4)]
found = cohort.Trainer().train(test_cohort.configs(*[{'train.num_steps': 1}] * 4), paths)
assert [isinstance(one, OSError) for one in found] == [False, False, True, False], found
"""


def test_on_several_devices_the_members_are_spread_over_them_also_where_these_do_not_divide_them(tmp_path, alone):
    here = Path(__file__).parent
    environment = {**os.environ, 'XLA_FLAGS': '--xla_force_host_platform_device_count=3'}
    command = [sys.executable, '-c', CHILD, str(tmp_path), str(here), str(here.parent / 'train')]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for mode in ('map', 'vmap'):
        for number, other in enumerate(alone):
            found = small.lines(tmp_path / f'{mode}-{number}', 'train/loss')
            expected = small.lines(other, 'train/loss')
            np.testing.assert_allclose(list(found.values()), [expected[step] for step in found], rtol=1e-5)


CORES = """
import os, sys
import jax
from jaxformer import runtime
assert runtime.cores_as_devices() is (sys.argv[1] == 'True')
assert jax.local_device_count() == int(sys.argv[2]), jax.devices()
assert runtime.cores_as_devices() is False  # it has started
"""


@pytest.mark.parametrize(
    ('flags', 'made', 'devices'),
    [('', True, 2), ('--xla_force_host_platform_device_count=3', False, 3)],
)
def test_cores_become_devices_where_nobody_asked_for_others(flags, made, devices):
    environment = {**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
    code = f'import os\nos.sched_getaffinity = lambda _: {{0, 1}}\n{CORES}'
    subprocess.run([sys.executable, '-c', code, str(made), str(devices)], env=environment, check=True)


def test_a_run_alone_is_on_one_device_whatever_the_cohorts_have(tmp_path, monkeypatch):
    monkeypatch.setattr(cohort.runtime, 'cores_as_devices', lambda: True)
    monkeypatch.setattr(cohort.jax, 'local_devices', lambda: [jax.devices()[0], 'another core'])
    asked = []

    def program(cfg, devices=None):
        asked.append(devices)
        raise UserError('that is all')

    monkeypatch.setattr(cohort, 'Program', program)
    cohort.Trainer().train(configs()[:1], directories(tmp_path)[:1])
    assert asked == [[jax.devices()[0]]]
