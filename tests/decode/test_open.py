"""A run opens from its directory alone, and what is not a run is named in one line."""

import dataclasses
import functools
import pathlib

import jax
import numpy as np
import pytest

from jaxformer import checkpoint, config, files, history
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import find_step, open_run, read_config
from jaxformer.errors import RunError, UserError
from jaxformer.model import transformer
from jaxformer.train import directory

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


@pytest.fixture
def run(tmp_path):
    """The directory of a run with checkpoints at 3 and 5, whose parameters are those of seeds 3 and 5."""
    edited = config.load(CONFIGS / 'tiny.py')
    config.override(edited, {'data.dir': str(tmp_path / 'gone'), 'runtime.compilation_cache': ''})
    cfg = config.resolve(edited)
    vocab = Vocabulary.of([str(i) for i in range(11)])
    workdir = tmp_path / 'run'
    workdir.mkdir()
    files.write_json(workdir / 'config.json', config.to_dict(cfg))
    files.write_json(workdir / 'vocab.json', vocab.to_json())
    model = transformer.build(cfg.model, len(vocab))
    for step in (3, 5):
        state = {'params': transformer.init(model, step), 'opt_state': ({'mu': np.zeros(7)},)}
        checkpoint.save(workdir / 'checkpoints', step, state, {'next_index': step}, config.to_dict(cfg), 3)
    return workdir


def test_opens_the_newest_or_the_asked_step(run):
    opened = open_run(run)
    assert opened.step == 5 and opened.cfg == read_config(run) and len(opened.vocab) == 15
    for step, params in ((5, opened.params), (3, open_run(run, 3).params)):
        expected = transformer.init(opened.model, step)
        jax.tree.map(np.testing.assert_array_equal, params, expected)
    logits, _ = opened.model.apply({'params': opened.params}, np.array([[5, 6, 2]]), np.array([[5, 2]]))
    assert logits.shape == (1, 2, 15)


def test_mistakes_name_the_directory_and_the_remedy(run, tmp_path):
    with pytest.raises(UserError, match='nowhere: no such directory'):
        open_run(tmp_path / 'nowhere')
    with pytest.raises(UserError, match=f'{tmp_path}: not the directory of a run'):
        open_run(tmp_path)
    with pytest.raises(UserError, match='no checkpoint of step 4; the steps there are: 3, 5'):
        open_run(run, 4)
    (run / 'checkpoints' / '5' / 'manifest.json').unlink()
    assert find_step(run) == 3
    with pytest.raises(RunError, match='5: damaged checkpoint: manifest.json: missing'):
        find_step(run, 5)
    (run / 'checkpoints' / '3' / 'manifest.json').unlink()
    with pytest.raises(RunError, match='no whole checkpoint'):
        open_run(run)
    (run / 'checkpoints').rename(run / 'moved')
    with pytest.raises(UserError, match='no checkpoint yet'):
        open_run(run)
    (run / 'moved').rename(run / 'checkpoints')
    (run / 'config.json').write_text('{"model": {"d_mo')
    with pytest.raises(UserError, match=r'config.json: not a JSON file \(.*\); put back a copy of it$'):
        open_run(run)
    (run / 'vocab.json').rename(run / 'config.json')
    with pytest.raises(UserError, match='config.symbols: no such field'):
        open_run(run)


def test_missing_vocabulary_is_named(run):
    (run / 'vocab.json').unlink()
    with pytest.raises(UserError, match='vocab.json: missing'):
        open_run(run)


def test_files_that_do_not_belong_to_the_checkpoint_are_named(run):
    vocab = files.read_json(run / files.VOCAB)
    files.write_json(run / files.VOCAB, {'symbols': vocab['symbols'][:-1]})
    with pytest.raises(UserError, match='embedding.*vocab.json'):
        open_run(run)
    files.write_json(run / files.VOCAB, {'symbols': [*vocab['symbols'][:-1], 3]})
    with pytest.raises(UserError, match='not text'):
        open_run(run)


def _as_before(values):
    """Without what came later than the first version."""
    for path in history.BEFORE:
        *groups, name = path.split('.')
        functools.reduce(dict.__getitem__, groups, values).pop(name)
    return _without_empty_groups(values)


def _without_empty_groups(values):
    kept = {name: _without_empty_groups(value) if isinstance(value, dict) else value for name, value in values.items()}
    return {name: value for name, value in kept.items() if value != {}}


def test_a_run_of_an_older_version_opens_and_means_what_it_meant(run):
    """Its config.json lacks the fields that came later, its manifests have no number."""
    values, now = files.read_json(run / files.CONFIG), read_config(run)
    values = _as_before(values)
    assert 'cohort' not in values and 'ids' not in values['model'] and 'score' in values['model']['attention']
    files.write_json(run / files.CONFIG, values)
    manifest = run / 'checkpoints' / '5' / checkpoint.MANIFEST
    files.write_json(manifest, {'files': files.read_json(manifest)['files']})
    opened = open_run(run)
    before = {path: config.flatten(now)[path] for path in config.flatten(now) if path not in history.BEFORE}
    follows = {path: before[other] for path, other in history.FOLLOWS.items()}
    assert opened.step == 5 and config.flatten(opened.cfg) == before | history.BEFORE | follows
    assert directory.refuse_another_config(opened.cfg, run) == opened.cfg  # training goes on with it, too
    learning = dataclasses.replace(opened.cfg, train=dataclasses.replace(opened.cfg.train, ema_decay=0.9))
    said = rf'ema_decay is 0.0 there and 0.9 here; use the same value \(--config={run}/config.json has it\), or another'
    with pytest.raises(UserError, match=said):
        directory.refuse_another_config(learning, run)
    values['train'].pop('num_steps')
    files.write_json(run / files.CONFIG, values)
    with pytest.raises(UserError, match='config.json: config.train: field num_steps is missing'):
        open_run(run)


@pytest.mark.parametrize('name', ['base', 'big', 'g2p', 'quickstart', 'tiny'])
def test_the_same_command_goes_on_with_a_run_of_the_first_version(tmp_path, name):
    cfg = config.resolve(config.load(CONFIGS / f'{name}.py'))
    files.write_json(tmp_path / files.CONFIG, _as_before(config.to_dict(cfg)))
    assert directory.refuse_another_config(cfg, tmp_path) == cfg


def test_every_field_is_of_the_first_version_or_has_a_value_for_runs_without_it():
    """Who adds a field adds its line to history.BEFORE; first_fields.txt never grows."""
    first = (CONFIGS.parent / 'tests' / 'first_fields.txt').read_text().split()
    assert set(config.fields()) == {*first, *history.BEFORE} and not set(first) & set(history.BEFORE)


def test_a_newer_version_is_named_as_such_and_not_taken_for_damage(run):
    manifest = run / 'checkpoints' / '5' / checkpoint.MANIFEST
    files.write_json(manifest, files.read_json(manifest) | {'format': checkpoint.FORMAT + 1})
    for asked in (None, 5):  # a run that went on from 3 would replace it
        with pytest.raises(UserError, match=r'checkpoints/5: manifest.json: format 2 of a newer version'):
            find_step(run, asked)
    with pytest.raises(UserError, match='newer version'):
        checkpoint.restore_params(run / 'checkpoints', 5)
    assert open_run(run, 3).step == 3
    files.write_json(run / files.CONFIG, files.read_json(run / files.CONFIG) | {'telepathy': {'range': 3}})
    with pytest.raises(UserError, match='config.telepathy.range: no such field in this version; use the one that'):
        open_run(run, 3)
