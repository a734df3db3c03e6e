"""A run: what it writes, that it resumes exactly, and which directories and configs it refuses."""

import json
import shutil
import signal

import jax
import numpy as np
import pytest
import small
from absl import logging

from jaxformer import checkpoint, files, runtime
from jaxformer.errors import RunError, UserError
from jaxformer.train import directory, loop, program, writer
from jaxformer.train.score import score


def test_what_a_run_leaves(straight):
    workdir, metrics = straight
    names = {path.name for path in workdir.iterdir() if not path.name.startswith('events')}
    assert names == {
        'config.json',
        'data.json',
        'environment.json',
        'metrics.jsonl',
        'status.json',
        'vocab.json',
        'checkpoints',
        '.claim',
        'examples',
    }
    status = small.status(workdir)
    assert (status['status'], status['step'], status['num_steps'], status['reason']) == ('done', 27, 27, None)
    assert status['metrics'] == metrics and set(metrics) >= {'dev/loss', 'dev/perplexity', 'dev/per', 'dev/wer'}
    assert metrics['dev/perplexity'] == pytest.approx(np.exp(metrics['dev/loss']))
    assert small.checkpoints(workdir) == [20, 25, 27]  # keep_checkpoints=3, and the last step always
    assert list(small.lines(workdir, 'dev/loss')) == [10, 20, 27] and list(small.lines(workdir, 'dev/wer')) == [27]
    assert small.lines(workdir, 'dev/loss')[27] == metrics['dev/loss']


def test_steps_learning_rates_and_checkpoints_count_optimizer_updates(straight):
    """B20 and the kind of B19: what is logged at step n is what update n was made with."""
    workdir, _ = straight
    expected = {n: 12**-0.5 * min(n**-0.5, n * 10**-1.5) for n in range(1, 28)}
    assert small.lines(workdir, 'train/learning_rate') == pytest.approx(expected, rel=1e-6)
    state = small.state(workdir)
    assert state['step'] == state['opt_state/1/count'] == state['opt_state/3/count'] == 27
    earlier = small.state(workdir, 20)
    assert earlier['opt_state/1/count'] == earlier['data/next_index'] == 20


def test_each_example_comes_once_per_epoch_in_another_order(straight):
    workdir, _ = straight
    ids = small.lines(workdir, 'example_ids')
    epochs = [sum((ids[step] for step in range(start, start + 9)), []) for start in (1, 10, 19)]
    for epoch in epochs:
        assert sorted(epoch) == [-1, *range(53)]
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_compiled_once_per_bucket(tmp_path, straight):
    """B57: 3 epochs of a set that the batch does not divide; metrics.jsonl has the count. Going on compiles no more."""
    workdir, _ = straight
    assert small.lines(workdir, 'compilations')[27] == {'train': 2, 'eval': 2, 'decode': 2}

    compiled = []

    def listen(event, duration, **details):
        if event == '/jax/core/compile/backend_compile_duration' and details.get('fun_name') == 'jit(traced)':
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        resumed = tmp_path / 'resumed'
        shutil.copytree(workdir, resumed)
        shutil.rmtree(resumed / 'checkpoints' / '27')
        (resumed / 'status.json').unlink()
        loop.train(small.make(), resumed)  # steps 26 and 27: one bucket or two
        counts = small.lines(resumed, 'compilations')[27]
        assert 1 <= counts['train'] <= 2 and counts['eval'] == counts['decode'] == 2
        assert len(compiled) == sum(counts.values())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_same_seed_gives_the_same_bits_and_another_one_other_bits(tmp_path, quick, quick_straight):
    """B59."""
    loop.train(quick(), tmp_path / 'again')
    small.assert_bit_equal(small.state(tmp_path / 'again'), small.state(quick_straight))
    assert small.series(tmp_path / 'again') == small.series(quick_straight)
    loop.train(quick({'seed': 4}), tmp_path / 'other')
    other, first = small.state(tmp_path / 'other'), small.state(quick_straight)
    assert not np.array_equal(other['params/embedding'], first['params/embedding'])
    assert small.lines(tmp_path / 'other', 'example_ids') != small.lines(quick_straight, 'example_ids')


def test_the_environment_is_on_record(straight):
    """B59: backend, versions, flags and level of every start."""
    (record,) = json.loads((straight[0] / 'environment.json').read_text())
    assert record['backend'] == 'cpu' and record['deterministic'] == 'bitwise'
    assert record['versions']['jax'] == jax.__version__ and {'flax', 'optax', 'numpy', 'python'} <= set(
        record['versions']
    )
    assert record['flags']['JAX_PLATFORMS'] == 'cpu' and record['devices']['count'] == 1
    assert record['mesh'] == {'data': 1, 'fsdp': 1, 'model': 1, 'seq': 1}


def test_stopping_and_going_on_is_as_if_nothing_had_happened(tmp_path, straight, at_step):
    """B33, B35: stopped in warm-up and in mid-epoch; data order, rates, moments, dropout, logs and parameters go on."""
    for step in (7, 13):
        at_step(step, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(loop.Preempted, match=f'step {step} is saved') as caught:
            loop.train(small.make(), tmp_path / 'run')
        assert caught.value.exit_status == 143
        status = small.status(tmp_path / 'run')
        assert (status['status'], status['step']) == ('preempted', step)
        assert small.checkpoints(tmp_path / 'run')[-1] == step
    metrics = loop.train(small.make(), tmp_path / 'run')
    workdir, expected = straight
    assert metrics == expected
    small.assert_bit_equal(small.state(tmp_path / 'run'), small.state(workdir))
    assert small.series(tmp_path / 'run') == small.series(workdir)
    assert len(json.loads((tmp_path / 'run' / 'environment.json').read_text())) == 3


@pytest.mark.parametrize('moment', ['progress', 'evaluation'])
def test_a_signal_at_any_moment_leaves_the_last_step_saved(tmp_path, quick, monkeypatch, moment):
    """At step 6, which is no step to save at: while its metrics are looked at, or while it is evaluated."""
    seen = []

    def maybe(step):
        if step == 6 and not seen:
            seen.append(step)
            signal.raise_signal(signal.SIGTERM)

    update = loop.Progress.update
    if moment == 'progress':
        monkeypatch.setattr(loop.Progress, 'update', lambda self, step, *args: (maybe(step), update(self, step, *args)))
    else:
        examples = program.Evaluator.examples
        monkeypatch.setattr(program.Evaluator, 'examples', lambda *args: (maybe(6), examples(*args))[1])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(loop.Preempted):
        loop.train(quick({'eval.every': 6, 'train.checkpoint_every': 100}), tmp_path / 'run')
    assert small.checkpoints(tmp_path / 'run') == [small.status(tmp_path / 'run')['step']] == [7]
    assert 6 in small.lines(tmp_path / 'run', 'dev/loss')
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_before_the_first_step_ends_it_at_once(tmp_path, quick, monkeypatch):
    load = program.corpora.load
    monkeypatch.setattr(program.corpora, 'load', lambda data: (signal.raise_signal(signal.SIGINT), load(data))[1])
    with pytest.raises(loop.Preempted, match='before the first step'):
        loop.train(quick(), tmp_path / 'run')
    assert small.status(tmp_path / 'run')['status'] == 'preempted' and not small.checkpoints(tmp_path / 'run')
    assert not (tmp_path / 'run' / 'config.json').exists()


def test_an_evaluation_that_a_kill_took_is_made_up_for(tmp_path, quick, quick_straight, monkeypatch):
    """A kill between the checkpoint of step 10 and the evaluation after it."""

    def killed(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program.Evaluator, 'examples', killed)
        with pytest.raises(KeyboardInterrupt):
            loop.train(quick(), tmp_path / 'run')
    assert small.status(tmp_path / 'run')['status'] == 'preempted' and small.checkpoints(tmp_path / 'run') == [5, 10]
    loop.train(quick(), tmp_path / 'run')
    assert list(small.lines(tmp_path / 'run', 'dev/loss')) == [10, 20]
    assert small.series(tmp_path / 'run') == small.series(quick_straight)


def test_metrics_of_a_step_are_fetched_after_the_next_one_was_dispatched(tmp_path, quick, monkeypatch):
    """And before a checkpoint or an evaluation, those of the step itself."""
    calls = []
    step = iter(range(1, 100))
    call, fetch, save = runtime.CountedJit.__call__, jax.device_get, checkpoint.save

    def dispatched(self, *args):
        calls.append(f'dispatch {next(step)}')
        state, metrics = call(self, *args)
        return state, {**metrics, 'step': state.step + 0}

    def fetched(tree):
        values = fetch(tree)
        calls.append(f'fetch {values["step"]}')
        return values

    def saved(path, step, *args):
        calls.append(f'save {step}')
        return save(path, step, *args)

    monkeypatch.setattr(runtime.CountedJit, '__call__', dispatched)
    monkeypatch.setattr(jax, 'device_get', fetched)
    monkeypatch.setattr(checkpoint, 'save', saved)
    loop.train(quick({'train.num_steps': 7, 'train.checkpoint_every': 4, 'train.log_every': 100}), tmp_path / 'run')
    assert calls == [
        *('dispatch 1', 'dispatch 2', 'fetch 1', 'dispatch 3', 'fetch 2', 'dispatch 4', 'fetch 3', 'fetch 4', 'save 4'),
        *('dispatch 5', 'dispatch 6', 'fetch 5', 'dispatch 7', 'fetch 6', 'fetch 7', 'save 7'),
    ]
    assert list(small.lines(tmp_path / 'run', 'train/loss')) == [7]  # the last step is always written


def test_a_run_that_is_done_is_returned_and_not_touched(straight, monkeypatch):
    workdir, metrics = straight
    before = small.snapshot(workdir)
    monkeypatch.setattr(loop, 'Member', None)
    assert loop.train(small.make(), workdir) == metrics
    assert loop.train(small.make({'train.log_every': 5, 'data.dir': '/elsewhere'}), workdir) == metrics
    with pytest.raises(UserError, match='config.seed is 3 there and 4 here'):
        loop.train(small.make({'seed': 4}), workdir)
    assert small.snapshot(workdir) == before


@pytest.mark.parametrize(
    ('field', 'there', 'here'),
    [
        ('model.dropout.residual', 0.1, 0.2),
        ('optim.learning_rate', 1.0, 2.0),
        ('train.batch_size', 6, 8),
        ('data.buckets', ((9, 9),), ((5, 5), (9, 9))),
        ('data.shuffle', True, False),
    ],
)
def test_another_config_is_refused_by_field_and_both_values(tmp_path, quick, field, there, here):
    cfg = quick({field: there})
    (tmp_path / 'run').mkdir()
    files.write_json(tmp_path / 'run' / 'config.json', small.config.to_dict(cfg))
    before = small.snapshot(tmp_path / 'run')
    with pytest.raises(UserError) as caught:
        loop.train(quick({field: here}), tmp_path / 'run')
    assert f'config.json: config.{field} is {there!r} there and {here!r} here' in str(caught.value)
    assert '\n' not in str(caught.value)
    after = small.snapshot(tmp_path / 'run')
    assert {name: after[name] for name in before} == before and not small.status(tmp_path / 'run')


def test_free_fields_may_change_and_every_one_exists():
    fields = small.config.flatten(small.make())
    for free in directory.FREE_ON_RESUME:
        assert free in fields or any(name.startswith(free) for name in fields if free.endswith('.'))


def test_a_longer_run_is_a_longer_run(tmp_path, quick, quick_straight):
    """Where the schedule does not know its end: 12 steps, then 20, equal 20 at once. Never fewer than are done."""
    loop.train(quick({'train.num_steps': 12}), tmp_path / 'run')
    loop.train(quick(), tmp_path / 'run')
    small.assert_bit_equal(small.state(tmp_path / 'run'), small.state(quick_straight))
    assert small.lines(tmp_path / 'run', 'train/loss') == small.lines(quick_straight, 'train/loss')
    before = small.snapshot(tmp_path / 'run')
    with pytest.raises(UserError, match='config.train.num_steps=7: .*step 20 already'):
        loop.train(quick({'train.num_steps': 7}), tmp_path / 'run')
    after = small.snapshot(tmp_path / 'run')
    changed = {name for name in before if after.get(name) != before[name]}
    assert all(name.startswith(str(tmp_path / 'run' / '.claim')) for name in changed)


@pytest.mark.parametrize('schedule', ['linear', 'cosine'])
def test_a_schedule_that_knows_its_end_cannot_be_made_longer(tmp_path, quick, schedule):
    (tmp_path / 'run').mkdir()
    cfg = quick({'optim.schedule': schedule})
    files.write_json(tmp_path / 'run' / 'config.json', small.config.to_dict(cfg))
    with pytest.raises(UserError, match='config.train.num_steps is 20 there and 40 here'):
        loop.train(quick({'optim.schedule': schedule, 'train.num_steps': 40}), tmp_path / 'run')


@pytest.mark.parametrize(
    ('mistake', 'says'),
    [
        ({'model.vocab_size': 7}, 'config.model.vocab_size=7: '),
        ({'mesh.data': 3}, 'config.mesh'),
        ({'data.buckets': ((1, 1),)}, 'data.buckets'),
        ({'data.buckets': ((3, 3),)}, 'no example of dev fits'),
    ],
)
def test_a_mistake_does_not_claim_the_directory(tmp_path, mistake, says):
    with pytest.raises(UserError, match=says):
        loop.train(small.make(mistake), tmp_path / 'runs' / 'run')
    assert not list(tmp_path.iterdir())


def test_a_mistake_leaves_a_directory_as_it_was(tmp_path):
    (tmp_path / 'run').mkdir()
    with pytest.raises(UserError, match='config.model.vocab_size=7: '):
        loop.train(small.make({'model.vocab_size': 7}), tmp_path / 'run')
    assert not list((tmp_path / 'run').iterdir())
    files.write_json(tmp_path / 'run' / 'config.json', small.config.to_dict(small.make()))
    with pytest.raises(UserError, match='config.seed is 3 there and 4 here'):
        loop.train(small.make({'seed': 4}), tmp_path / 'run')
    assert [path.name for path in (tmp_path / 'run').iterdir()] == ['config.json']


def test_a_file_that_leaves_dev_empty_is_refused_for_that(tmp_path):
    (tmp_path / 'a').write_text('one line')
    fields = {'data.name': 'parallel', 'data.source': str(tmp_path / 'a'), 'data.target': str(tmp_path / 'a')}
    with pytest.raises(UserError, match=r'data.source=.*: no example for dev; a hash divides its lines .*{split}'):
        loop.train(small.make(fields | {'data.dir': str(tmp_path / 'data')}), tmp_path / 'run')


def test_numbers_about_few_examples_are_warned_of(tmp_path, warnings):
    loop.train(small.make(small.QUICK | {'train.num_steps': 1}), tmp_path / 'run')
    assert [text for text in warnings if 'only' in text] == [
        'config.data.name=reverse: dev has only 5 examples; ask for more, or use another data set'
    ]


@pytest.fixture
def warnings(monkeypatch):
    said = []
    monkeypatch.setattr(logging, 'warning', lambda text, *args: said.append(text % args))
    return said


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_an_earlier_one_used(tmp_path, quick, quick_straight, warnings):
    workdir = tmp_path / 'run'
    shutil.copytree(quick_straight, workdir)
    (workdir / 'status.json').unlink()
    for step in (15, 20):
        flip(workdir / 'checkpoints' / str(step) / 'data' / 'data.json')
    loop.train(quick(), workdir)
    for step in (15, 20):
        assert any(f'checkpoints/{step}: damaged' in line and 'data/data.json' in line for line in warnings)
    assert small.checkpoints(workdir) == [10, 15, 20]  # the damaged ones were made anew
    small.assert_bit_equal(small.state(workdir), small.state(quick_straight))
    assert small.series(workdir) == small.series(quick_straight)


def test_no_whole_checkpoint_is_an_error_and_never_a_fresh_start(tmp_path, quick, quick_straight):
    workdir = tmp_path / 'run'
    shutil.copytree(quick_straight, workdir)
    writer.write_status(workdir, 'running', 20, 20)
    for step in (10, 15, 20):
        flip(workdir / 'checkpoints' / str(step) / 'state' / '_METADATA')
    before = small.snapshot(workdir)
    with pytest.raises(RunError, match='no whole checkpoint .*step 20: .*step 10: ') as caught:
        loop.train(quick(), workdir)
    assert '\n' not in str(caught.value)
    assert small.status(workdir)['status'] == 'failed' and 'no whole' in small.status(workdir)['reason']
    after = small.snapshot(workdir)
    assert {name for name in before if after[name] != before[name]} == {str(workdir / 'status.json')}


def test_what_a_kill_left_is_cleared_away(tmp_path, quick):
    """B39: half-saved checkpoints and files, some of a step that will be saved again."""
    workdir = tmp_path / 'run'
    for orphan in ('10.orbax-checkpoint-tmp', '10.orbax-checkpoint-tmp-17', '10.partial', '15.partial'):
        (workdir / 'checkpoints' / orphan / 'state').mkdir(parents=True)
    (workdir / '.status.json.123.tmp').write_text('{')
    loop.train(quick(), workdir)
    assert small.checkpoints(workdir) == [10, 15, 20]
    assert sorted(path.name for path in (workdir / 'checkpoints').iterdir()) == ['10', '15', '20']
    assert not list(workdir.glob('.*.tmp')) and small.status(workdir)['status'] == 'done'


@pytest.mark.parametrize('content', ['{"seed": 3', '[]', '{}', 'null', ''])
def test_a_damaged_config_file_is_one_line(tmp_path, quick, content):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'config.json').write_text(content)
    with pytest.raises(UserError, match='/config.json: ') as caught:
        loop.train(quick(), tmp_path / 'run')
    assert '\n' not in str(caught.value)
    assert (tmp_path / 'run' / 'config.json').read_text() == content


def test_relative_and_home_directories(tmp_path, quick, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    cfg = quick({'train.num_steps': 2, 'runtime.compilation_cache': '', 'data.dir': small.CACHE})
    for name, path in (('runs/a', tmp_path / 'runs' / 'a'), ('~/b', tmp_path / 'home' / 'b')):
        loop.train(cfg, name)
        assert small.checkpoints(path) == [2]


def test_data_that_changed_since_the_run_began_is_not_gone_on_with(tmp_path, caplog):
    for split in ('train', 'dev', 'test'):
        lines = ''.join(f'{i} {i + 1} {i + 2}\n' for i in range(20))
        for side in ('en', 'de'):
            (tmp_path / f'{split}.{side}').write_text(lines)
    changes = {
        'data.name': 'parallel',
        'data.source': str(tmp_path / '{split}.en'),
        'data.target': str(tmp_path / '{split}.de'),
        'train.num_steps': 2,
    }
    loop.train(small.make(changes), tmp_path / 'run')
    assert score(tmp_path / 'run')['dev/examples'] == 20 and 'data that changed' not in caplog.text
    (tmp_path / 'train.en').write_text(''.join(f'{i + 2} {i + 1} {i}\n' for i in range(20)))
    with pytest.raises(UserError, match=r'the data of data.name=parallel changed since the run began \(source\)'):
        loop.train(small.make(changes | {'train.num_steps': 3}), tmp_path / 'run')
    score(tmp_path / 'run')
    assert 'data that changed since the run began (source)' in caplog.text
