"""Runs in every state are compared, and only what differs is shown."""

import json
import math

import pytest

from jaxformer import config, files
from jaxformer.errors import UserError
from jaxformer.inspection import compare as comparing
from jaxformer.inspection.compare import ABSENT, compare
from jaxformer.train import writer

ENVIRONMENT = {
    'time': 1.0,
    'pid': 7,
    'command': ['jaxformer'],
    'versions': {'jax': '0.10.2', 'numpy': '2.4'},
    'git': {'revision': 'abc', 'dirty': False},
    'devices': {'kind': 'cpu', 'count': 1},
}


@pytest.fixture
def make_run(make_cfg, tmp_path):
    """Writes the directory of a run as training does; `lines` are (step, metrics)."""

    def make(name, lines=None, status='done', reason=None, environment=ENVIRONMENT, **changes):
        workdir = tmp_path / name
        workdir.mkdir()
        cfg = make_cfg(**changes)
        files.write_json(workdir / 'config.json', config.to_dict(cfg))
        if environment:
            files.write_json(workdir / 'environment.json', [{'pid': 0}, environment])
        if status:
            writer.write_status(workdir, status, 20, cfg.train.num_steps, reason)
        if lines is not None:
            with writer.MetricWriter(workdir) as metrics:
                for step, values in lines:
                    metrics.write(step, values, example_ids=[1, 2])
        return workdir

    return make


def test_only_differing_fields_are_named(make_run):
    runs = [make_run('a'), make_run('b', model__residual='post'), make_run('c', seed=4, optim__clip_norm=0.5)]
    comparison = compare(runs)
    assert comparison.config == {
        'seed': (0, 0, 4),
        'model.residual': ('pre', 'post', 'pre'),
        'optim.clip_norm': (None, None, 0.5),
    }
    assert comparison.environment == {}
    same = compare([runs[0], runs[0]])
    assert same.config == {} and 'config: no field differs' in comparing.as_text(same)


def test_environment_without_what_every_process_has_of_its_own(make_run):
    other = {**ENVIRONMENT, 'time': 2.0, 'pid': 8, 'command': ['x'], 'versions': {'jax': '0.11.0', 'numpy': '2.4'}}
    other['git'] = {'revision': 'def', 'dirty': False}
    runs = [make_run('a'), make_run('b', environment=other), make_run('c', environment=None)]
    assert compare(runs[:2]).environment == {'versions.jax': ('0.10.2', '0.11.0'), 'git.revision': ('abc', 'def')}
    missing = compare([runs[0], runs[2]])
    assert missing.environment == {'environment.json': ('recorded', 'missing')}


def test_last_values_and_differences(make_run):
    first = make_run('a', [(10, {'train/loss': 3.0}), (20, {'train/loss': 2.0}), (20, {'dev/wer': 0.5})])
    second = make_run('b', [(10, {'train/loss': 1.25})])
    comparison = compare([first, second])
    loss = comparison.metrics['train/loss']
    assert (loss.values, loss.steps, loss.differences) == ((2.0, 1.25), (20, 10), (0.0, -0.75))
    wer = comparison.metrics['dev/wer']
    assert (wer.values, wer.steps, wer.differences) == ((0.5, None), (20, None), (0.0, None))
    assert set(comparison.metrics) == {'train/loss', 'dev/wer'}
    text = comparing.as_text(comparison)
    assert '2 at 20' in text and '1.25 (-0.75) at 10' in text and ABSENT in text


def test_runs_in_every_state(make_run):
    runs = [
        make_run('done', [(20, {'train/loss': 2.0})]),
        make_run('failed', [(20, {'train/loss': math.nan})], 'failed', 'step 20: loss nan'),
        make_run('running', [], 'running'),
        make_run('waiting', None, None, environment=None),
    ]
    comparison = compare(runs)
    assert comparison.state['status'] == ('done', 'failed', 'running', 'not started')
    assert comparison.state['reason'] == (None, 'step 20: loss nan', None, None)
    assert comparison.metrics['train/loss'].values[2:] == (None, None)
    data = json.loads(json.dumps(comparing.as_json(comparison), allow_nan=False))
    assert data['metrics']['train/loss']['values'] == [2.0, 'nan', None, None]
    assert data['runs'] == [str(run) for run in runs]
    text = comparing.as_text(comparison)
    assert 'step 20: loss nan' in text and 'not started' in text
    assert 'metric: no run has any yet' in comparing.as_text(compare(runs[2:]))


def test_config_of_another_version(make_run):
    old = make_run('old')
    values = files.read_json(old / 'config.json')
    values['model']['gone'] = 3
    del values['model']['norm']
    files.write_json(old / 'config.json', values)
    differing = compare([make_run('new'), old]).config
    assert differing == {'model.norm': ('layernorm', ABSENT), 'model.gone': (ABSENT, 3)}


def test_a_field_that_an_older_version_did_not_have_is_no_difference(make_run):
    old = make_run('old')
    values = files.read_json(old / 'config.json')
    del values['train']['keep_best'], values['model']['kept_heads']
    files.write_json(old / 'config.json', values)
    assert compare([make_run('new', seed=4), old]).config == {'seed': (4, 0)}


def test_mistakes_name_the_directory(make_run, tmp_path):
    run = make_run('a')
    with pytest.raises(UserError, match='compare: 1 run given; it takes at least two'):
        compare([run])
    with pytest.raises(UserError, match=f'{tmp_path}: not the directory of a run'):
        compare([run, tmp_path])
    with pytest.raises(UserError, match='nowhere: no such directory'):
        compare([run, tmp_path / 'nowhere'])
    (run / 'config.json').write_text('[]')
    with pytest.raises(UserError, match='config.json'):
        compare([run, run])


def test_of_a_trained_run(trained, make_run):
    comparison = compare([trained, make_run('other')])
    assert comparison.state['status'] == ('done', 'done') and 'train.num_steps' in comparison.config
    assert {'dev/loss', 'dev/per', 'train/loss'} <= set(comparison.metrics)
    assert 'compilations' not in ' '.join(comparison.metrics)
