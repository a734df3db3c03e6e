"""What `jaxformer eval` says of a run, and of two runs on one test set."""

import json
import math
import subprocess
import sys

import jax
import pytest
from small import ROOT

from jaxformer import checkpoint, config, files
from jaxformer.data import corpus
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import read_config
from jaxformer.errors import UserError
from jaxformer.main import main
from jaxformer.model import transformer
from jaxformer.train import against
from jaxformer.train.against import compare
from jaxformer.train.score import score, subject

SMALL = {'model.d_model': 12, 'model.num_heads': 2, 'model.d_ff': 10, 'model.num_layers': 1}
SMALL |= {'eval.max_decode_length': 6, 'eval.batch_size': 5, 'eval.split': 'test', 'runtime.compilation_cache': ''}


def run(name, workdir, changes, seed):
    """A run that was not trained."""
    edited = config.load(ROOT / 'configs' / f'{name}.py')
    config.override(edited, SMALL | {'data.dir': str(workdir.parent / 'data')} | changes)
    cfg = config.resolve(edited)
    vocab = corpus.load(cfg.data).vocab
    params = jax.tree.map(lambda leaf: leaf * 1.7, transformer.init(transformer.build(cfg.model, len(vocab)), seed))
    workdir.mkdir()
    files.write_json(workdir / 'config.json', config.to_dict(cfg))
    files.write_json(workdir / 'vocab.json', vocab.to_json())
    checkpoint.save(workdir / 'checkpoints', 1, {'params': params}, {}, config.to_dict(cfg), 1)
    return workdir


@pytest.fixture(scope='module')
def translations(tmp_path_factory):
    """Two runs on the pairs of two files; a line of the test set is empty on no side, and one has blanks around it."""
    root = tmp_path_factory.mktemp('runs')
    for split, count in (('train', 9), ('dev', 3), ('test', 13)):
        source = [f'{split} {i * 7 % 5} a{10 ** (i % 3)}' for i in range(count)]
        (root / f'{split}.a').write_text('\n'.join(source))
        (root / f'{split}.b').write_text('\n'.join(f'{line[::-1]}, or so.' for line in source))
    changes = {'data.name': 'parallel', 'data.tokenizer': 'bytes', 'data.buckets': ((33, 33),)}
    changes |= {'data.source': str(root / '{split}.a'), 'data.target': str(root / '{split}.b')}
    return root, [run('tiny', root / name, changes, seed) for name, seed in (('one', 5), ('two', 6))]


def test_bleu_of_a_run_is_that_of_its_lines_by_the_command(translations):
    root, (one, _) = translations
    found = score(one)
    outputs = decode_lines(one, None, (root / 'test.a').read_text().split('\n'))
    (root / 'outputs').write_text('\n'.join(outputs) + '\n')
    arguments = [root / 'test.b', '-i', root / 'outputs', '-m', 'bleu', 'chrf', '-w', '4', '-f', 'json']
    done = subprocess.run([sys.executable, '-m', 'sacrebleu', *arguments], capture_output=True, text=True, check=True)
    bleu, chrf = json.loads(done.stdout)
    assert found['test/bleu'] == pytest.approx(bleu['score'], abs=5e-3)
    assert found['test/chrf'] == pytest.approx(chrf['score'], abs=5e-3) and chrf['score'] > 0
    assert found['test/bleu_signature'] == bleu['signature'] and found['test/truncated'] == 1


def test_perplexity_per_word_is_that_of_the_whole_over_words_and_ends(translations):
    root, (one, _) = translations
    found = score(one)
    words = sum(len(line.split()) + 1 for line in (root / 'test.b').read_text().split('\n'))
    nats = found['test/loss'] * found['test/tokens']
    assert found['test/perplexity_per_word'] == pytest.approx(math.exp(nats / words), rel=1e-5)
    assert words == 13 * 6 and found['test/tokens'] > 2 * words


def test_a_language_model_has_a_perplexity_per_word(tmp_path):
    for split in ('train', 'dev', 'test'):
        (tmp_path / f'{split}.txt').write_text('some words of text\nand more of it\n' * 9)
    changes = {'data.name': 'text', 'data.tokenizer': 'bytes', 'data.source': str(tmp_path / '{split}.txt')}
    found = score(run('gpt_tiny', tmp_path / 'run', changes, 3))
    nats = found['test/loss'] * found['test/tokens']
    assert found['test/perplexity_per_word'] == pytest.approx(math.exp(nats / (9 * 8 + 1)), rel=1e-5)


def test_two_runs_are_compared_on_the_same_examples(translations, capsys):
    _, (one, two) = translations
    names = ['loss', 'accuracy', 'symbol_errors', 'line_errors', 'bleu', 'perplexity_per_word']
    rows, alone = compare(one, two), [score(one), score(two)]
    assert [row.name for row in rows] == names
    for row in rows:
        assert (row.a, row.b) == tuple(pytest.approx(found[f'test/{row.name}'], rel=1e-6) for found in alone)
        assert row.difference.value == row.a - row.b
        assert row.difference.interval.low <= row.difference.value <= row.difference.interval.high
    assert rows[0].a != rows[0].b and all(row.difference.p == 1 for row in compare(one, one))
    assert main(['eval', f'--workdir={one}', f'--against={two}', '--split=test']) == 0
    shown = capsys.readouterr().out
    assert f'A: {one}' in shown and all(f'\n{name} ' in shown for name in names) and '95 % interval' in shown
    assert main(['eval', f'--workdir={one}', f'--against={two}', '--split=dev', '--json']) == 0
    assert set(json.loads(capsys.readouterr().out)['bleu']) == {'a', 'b', 'difference', 'low', 'high', 'p'}


def test_other_examples_are_no_test_set_to_compare_on(translations, tmp_path, monkeypatch):
    root, (one, two) = translations
    for split in ('train', 'dev', 'test'):
        for side in 'ab':
            (tmp_path / f'{split}.{side}').write_text((root / f'{split}.{side}').read_text().replace('test', 'tost'))
    changes = {'data.name': 'parallel', 'data.tokenizer': 'bytes', 'data.buckets': ((33, 33),)}
    changes |= {'data.source': str(tmp_path / '{split}.a'), 'data.target': str(tmp_path / '{split}.b')}
    other = run('tiny', tmp_path / 'other', changes, 5)
    narrow = run('tiny', tmp_path / 'narrow', config.flatten(read_config(two)) | {'data.buckets': ((11, 33),)}, 5)
    with monkeypatch.context() as patched:
        patched.setattr(against.Subject, 'measured', lambda *_: pytest.fail('said after something was evaluated'))
        for another in (other, narrow):
            with pytest.raises(UserError, match=f'{one} and {another}: not the same examples of test; give both'):
                compare(one, another)
        with pytest.raises(UserError, match='nowhere: no such directory'):
            compare(one, tmp_path / 'nowhere')
        (narrow / 'vocab.json').write_text((narrow / 'vocab.json').read_text().replace('bytes', 'characters'))
        with pytest.raises(UserError, match='narrow/vocab.json: '):
            compare(one, narrow)
    changes = {'data.source': str(root / '{split}.a'), 'data.target': str(root / '{split}.b')}
    assert compare(one, other, changes=changes)[0].difference.value == 0


def test_what_is_no_translation_has_error_rates_with_an_interval_and_no_bleu(tmp_path):
    workdir = run('tiny', tmp_path / 'run', {'data.num_examples': 60, 'data.buckets': ((13, 13),)}, 5)
    found = subject(workdir).measured()
    assert set(found.measures) == {'loss', 'accuracy', 'per', 'wer'} and 'bleu' not in found.metrics
    assert found.metrics['per_low'] <= found.metrics['per'] <= found.metrics['per_high']


def test_data_that_makes_other_symbols_is_answered_with_what_reads_any_text(tmp_path):
    """Pieces are learnt of the train split; the run's own files are not to blame."""
    for split in ('train', 'dev', 'test'):
        for name in ('one', 'two'):
            text = ''.join(f'{name} {name}r {i}\n' for i in range(20))
            (tmp_path / f'{name}.{split}').write_text(text)

    def files(name):
        return {f'data.{side}': str(tmp_path / f'{name}.{{split}}') for side in ('source', 'target')}

    pieces = {'data.name': 'parallel', 'data.tokenizer': 'bpe', 'data.tokenizer_size': 300, 'data.buckets': ((33, 33),)}
    workdir = run('tiny', tmp_path / 'run', pieces | files('one'), 5)
    with pytest.raises(UserError, match=r'not the symbols of the data that is given.*`jaxformer eval --hypotheses`'):
        score(workdir, changes=files('two'))
