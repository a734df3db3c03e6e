"""Whatever lies in the directory is listed: what is whole, and of everything else one line that says why it is not."""

import json
import math
import pathlib
import shutil

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from jaxformer.errors import UserError
from jaxformer.inspection import checkpoints
from jaxformer.main import main


@pytest.fixture
def run(trained, tmp_path):
    """A run with 30 and 60, which may be changed."""
    return pathlib.Path(shutil.copytree(trained, tmp_path / 'run'))


def by_name(run):
    return {entry.name: entry for entry in checkpoints.of_run(run)}


def again(run, step, of=60):
    """Another whole checkpoint, a copy of that of step `of`."""
    return pathlib.Path(shutil.copytree(run / 'checkpoints' / str(of), run / 'checkpoints' / str(step)))


def edited(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_whole_ones_with_their_sizes_and_metrics(trained):
    entries = by_name(trained)
    assert [(entry.step, entry.state, entry.reason) for entry in entries.values()] == [
        (30, 'whole', ''),
        (60, 'whole', ''),
    ]
    files = (trained / 'checkpoints' / '60').glob('*')
    assert all(path.exists() for path in files)
    total = sum(path.stat().st_size for path in pathlib.Path(trained, 'checkpoints', '60').rglob('*') if path.is_file())
    assert entries['60'].bytes == total > 1e6
    lines = [json.loads(line) for line in (trained / 'metrics.jsonl').read_text().splitlines()]
    for name in ('train/loss', 'dev/loss'):
        (value,) = {line[name] for line in lines if line['step'] == 60 and name in line}
        assert entries['60'].metrics[name] == value


def test_every_kind_of_ruin_is_one_line_and_hides_no_other(run):
    again(run, 90)
    next((run / 'checkpoints' / '90').glob('state/d/*')).unlink()
    (run / 'checkpoints' / '120.partial' / 'state').mkdir(parents=True)
    ocp.save(run / 'checkpoints' / '150', {'w': np.ones(3)})
    (run / 'checkpoints' / '180').mkdir()
    (run / 'checkpoints' / 'checkpoint_7').write_text('flax')
    newer = again(run, 210) / 'manifest.json'
    newer.write_text('{"format": 9}')
    (again(run, 240) / 'manifest.json').write_text('{')
    entries = by_name(run)
    assert [name for name in entries if entries[name].step] == ['30', '60', '90', '150', '180', '210', '240']
    said = {name: (entry.state, entry.reason.split(' ')[-1]) for name, entry in entries.items()}
    assert said['30'] == said['60'] == ('whole', '')
    assert said['90'] == ('damaged', 'missing') and 'state/d/' in entries['90'].reason
    assert entries['120.partial'].state == 'half-written'
    assert entries['150'].reason == 'manifest.json: missing; 1 arrays of orbax' and entries['150'].state == 'not ours'
    assert entries['180'].reason == 'manifest.json: missing; no arrays of orbax'
    assert entries['checkpoint_7'].state == 'not ours'
    assert said['240'] == ('damaged', 'unreadable')
    assert entries['210'].state == 'another version' and 'format 9 of a newer version' in entries['210'].reason
    text = checkpoints.as_text(list(entries.values()))
    assert len([line for line in text.splitlines() if ': damaged: ' in line]) == 2
    assert all(len(entry.reason.splitlines()) <= 1 for entry in entries.values())


def test_checkpoint_of_another_version_is_whole_but_named(run):
    path = run / 'checkpoints' / '60'
    edited(path / 'config' / 'data.json', lambda values: values['model'].update(telepathy='on'))
    manifest = lambda values: values['files'].pop('config/data.json')  # noqa: E731 - as if it had been saved so
    edited(path / 'manifest.json', manifest)
    entry = by_name(run)['60']
    assert entry.state == 'another version' and 'telepathy' in entry.reason and entry.kept == ('newest',)


def test_what_they_are_kept_for(run):
    for step in (90, 120, 150):
        again(run, step)
    losses = {30: 2.0, 60: 0.5, 90: math.nan, 120: 0.5, 150: 3.0}
    lines = [{'step': step, 'time': 0, 'dev/loss': 'nan' if loss != loss else loss} for step, loss in losses.items()]
    (run / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)) + '\n')
    edited(run / 'config.json', lambda values: values['train'].update(keep_checkpoints=2, keep_best=2))
    kept = {entry.step: entry.kept for entry in checkpoints.of_run(run)}
    assert kept == {30: (), 60: ('best',), 90: (), 120: ('newest', 'best'), 150: ('newest',)}
    assert json.loads(json.dumps(checkpoints.as_json(checkpoints.of_run(run)), allow_nan=False))


def test_nothing_there_is_said(run, tmp_path):
    shutil.rmtree(run / 'checkpoints')
    with pytest.raises(UserError, match='no checkpoint yet'):
        checkpoints.of_run(run)
    with pytest.raises(UserError, match='not the directory of a run'):
        checkpoints.of_run(tmp_path)


def test_metrics_or_a_config_that_cannot_be_read_hide_no_checkpoint(run, caplog):
    (run / 'metrics.jsonl').write_text('{"step": 30,\n{}\n')
    edited(run / 'config.json', lambda values: values['model'].update(telepathy='on'))
    assert [(entry.step, entry.state, entry.kept) for entry in checkpoints.of_run(run)] == [
        (30, 'whole', ()),
        (60, 'whole', ()),
    ]
    assert 'metrics.jsonl' in caplog.text and 'telepathy' in caplog.text


def test_the_command(trained, capsys):
    assert main(['inspect', 'checkpoints', f'--workdir={trained}', '--json']) == 0
    assert [entry['step'] for entry in json.loads(capsys.readouterr().out)] == [30, 60]
    assert main(['inspect', 'checkpoints', f'--workdir={trained}']) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ['step', 'state', 'size', 'dev/loss', 'train/loss', 'kept', 'as']
    assert [row.split()[:2] for row in rows] == [['30', 'whole'], ['60', 'whole']]
