"""An export has the tokenizer of its run: the same ids for every text, and an import of it is trained and judged."""

import json

import bridge
import hypothesis
import pytest
import tiny_tokenizers
import tokenizers
from hypothesis import strategies
from test_symbols import model

from jaxformer import checkpoint, config, files
from jaxformer.data.tokenizer_file import TokenizerFile
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import read_config
from jaxformer.inspection import import_, tokenizer
from jaxformer.main import main

ODD = (
    '', ' ', '\N{GRINNING FACE}\N{WOMAN}\u200d\N{GIRL}', '\ta\t\tb \n\n c\r\n', 'a </s> b', '</s>',
    '<pad><s><unk><mask>', '\ufeffnew\u2028line\x00\x1c', 'the cat </s>\u0120\u010a', 'e\u0301 \u00e9',
)  # fmt: skip
VOCABS = {
    name: Vocabulary.learn(name, (*tiny_tokenizers.TEXTS, *ODD[:5]), 300) for name in ('bytes', 'bpe', 'characters')
}
TEXTS = strategies.one_of(
    strategies.text(max_size=40),
    strategies.lists(strategies.sampled_from((*ODD, 'the', ' cat', 'low', '(self)')), max_size=6).map(''.join),
)


@pytest.mark.parametrize('name', VOCABS)
@hypothesis.settings(max_examples=200, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(texts=strategies.lists(TEXTS, max_size=4))
def test_every_text_has_the_same_ids(name, texts):
    ours = VOCABS[name]
    theirs = _again(name)
    expected = list(ours.encode_texts([*texts, *ODD]))
    assert list(theirs.encode_texts([*texts, *ODD])) == expected
    assert [theirs.join(theirs.decode(ids)) for ids in expected] == [ours.join(ours.decode(ids)) for ids in expected]
    assert (theirs.symbols, theirs.ids) == (ours.symbols, ours.ids)


def _again(name, made={}):  # noqa: B006 - kept over the examples
    if name not in made:
        made[name] = Vocabulary.of_file(TokenizerFile(tokenizer.definition(VOCABS[name], 'lm')))
    return made[name]


@pytest.mark.parametrize(
    ('family', 'expected'),
    [('lm', [1, 5, 6]), ('mlm', [5, 6, 2]), ('classifier', [1, 5, 6, 2]), ('seq2seq', [5, 6, 2])],
)
def test_the_library_adds_the_ends_that_our_rows_have(family, expected):
    library = tokenizers.Tokenizer.from_str(tokenizer.definition(Vocabulary.of('ab', 'characters'), family))
    assert library.encode('ab').ids == expected
    assert library.decode(expected) == 'ab' and library.encode('a</s>').ids[-1] == 2
    assert {token.content for token in library.get_added_tokens_decoder().values() if token.special} == {
        '<pad>', '<s>', '</s>', '<unk>', '<mask>',
    }  # fmt: skip


def test_words_and_ids_alone_have_no_tokenizer():
    assert tokenizer.definition(Vocabulary.of('ab'), 'seq2seq') is None
    assert tokenizer.definition(Vocabulary(('a', 'b', 'c', 'd', 'e'), 'file'), 'lm') is None


RUN = {'train.num_steps': 1, 'train.batch_size': 2, 'eval.batch_size': 4, 'data.buckets': ((16,),)}


def arguments(**changes):
    return [f'--config.{path.replace("__", ".")}={value}' for path, value in changes.items()]


@pytest.mark.parametrize('kind', ['bytes', 'bpe', 'characters'])
def test_an_export_that_is_imported_again_evaluates_and_trains_as_the_run(tmp_path, capsys, kind):
    (tmp_path / 'text.txt').write_text(
        '\n\n'.join(f'{i} {text} \N{GRINNING FACE}' for i, text in enumerate(tiny_tokenizers.TEXTS * 12))
    )
    edited = config.load(bridge.BASE)
    fields = {'data.name': 'text', 'data.tokenizer': kind, 'data.source': str(tmp_path / 'text.txt')}
    changes = bridge.CONFIGS['gpt2'] | RUN | fields | {'data.tokenizer_size': 300, 'data.dir': str(tmp_path / 'data')}
    config.override(edited, changes | {'model.vocab_size': 0, 'model.max_length': 30, 'model.attention.score': 'dot'})
    (tmp_path / 'first.json').write_text(json.dumps(config.to_dict(config.resolve(edited))))
    first, out, second = tmp_path / 'first', tmp_path / 'out', tmp_path / 'second'
    assert main(['train', f'--config={tmp_path}/first.json', f'--workdir={first}']) == 0
    assert main(['export', f'--workdir={first}', f'--output={out}']) == 0
    assert main(['import', f'--input={out}', f'--workdir={second}']) == 0
    assert 'jaxformer eval' in capsys.readouterr().out
    assert read_config(second).data.tokenizer == 'file'
    here = arguments(data__name='text', data__source=tmp_path / 'text.txt', data__dir=tmp_path / 'data')
    assert main(['eval', f'--workdir={first}', '--json']) == 0
    expected = json.loads(capsys.readouterr().out)
    shape = arguments(data__buckets='((16,),)', eval__batch_size=4)
    assert main(['eval', f'--workdir={second}', '--json', *here, *shape]) == 0
    assert json.loads(capsys.readouterr().out) == pytest.approx(expected | {'step': 0})
    more = [f'--config={second}/config.json', f'--workdir={tmp_path}/third', f'--config.train.start_from={second}']
    small = arguments(train__num_steps=1, train__batch_size=2, optim__warmup_steps=0)
    assert main(['train', *more, *here, *shape, *small]) == 0
    assert main(['export', f'--workdir={tmp_path}/third', f'--output={tmp_path}/again']) == 0
    read = [files.read_json(directory / 'tokenizer.json') for directory in (out, tmp_path / 'again')]
    assert read[0] == read[1]
    assert checkpoint.newest_whole(tmp_path / 'third' / 'checkpoints') == 1


def test_an_imported_tokenizer_goes_out_as_it_came(tmp_path):
    model('bert', tmp_path / 'model')
    import_.run(tmp_path / 'model', tmp_path / 'run')
    assert main(['export', f'--workdir={tmp_path}/run', f'--output={tmp_path}/out']) == 0
    assert files.read_json(tmp_path / 'out/tokenizer.json') == files.read_json(tmp_path / 'model/tokenizer.json')
    special = files.read_json(tmp_path / 'out' / 'tokenizer_config.json')
    assert (special['pad_token'], special['mask_token'], special['cls_token']) == ('[PAD]', '[MASK]', '[CLS]')


def test_an_export_without_a_tokenizer_says_so(tmp_path, caplog):
    bridge.written('gpt2', tmp_path / 'model')
    import_.run(tmp_path / 'model', tmp_path / 'run')
    assert main(['export', f'--workdir={tmp_path}/run', f'--output={tmp_path}/out']) == 0
    assert 'no tokenizer.json' in caplog.text and not (tmp_path / 'out' / 'tokenizer.json').exists()


def test_what_an_import_needs_to_be_evaluated_is_said(tmp_path, capsys):
    bridge.written('gpt2', tmp_path / 'model')
    import_.run(tmp_path / 'model', tmp_path / 'run')
    assert main(['eval', f'--workdir={tmp_path}/run']) == 2
    assert 'imported without a tokenizer.json' in capsys.readouterr().err
    model('t5', tmp_path / 'pairs')
    import_.run(tmp_path / 'pairs', tmp_path / 'translator')
    assert main(['eval', f'--workdir={tmp_path}/translator']) == 2
    said = capsys.readouterr().err
    assert '--config.data.source=FILE' in said and '--config.data.target=FILE' in said and 'jaxformer eval' in said
    assert main(['eval', f'--workdir={tmp_path}/translator', '--config.model.d_ff=3']) == 2
    assert 'config.model.d_ff: eval changes only data and eval' in capsys.readouterr().err


def test_classes_keep_their_names(tmp_path, capsys):
    changes = {'model__family': 'classifier', 'data__name': 'stdlib_labels', 'model__head__num_classes': 2}
    changes |= {'model__head__transform': 'off', 'model__embedding__softmax_bias': 'off', 'model__head__pooler': 'on'}
    model('bert', tmp_path / 'model', **changes)
    bridge.edit(tmp_path / 'model', {'id2label': {'0': 'no', '1': 'yes'}})
    import_.run(tmp_path / 'model', tmp_path / 'run')
    assert main(['export', f'--workdir={tmp_path}/run', f'--output={tmp_path}/out']) == 0
    settings = files.read_json(tmp_path / 'out' / 'config.json')
    assert settings['id2label'] == {'0': 'no', '1': 'yes'} and settings['label2id'] == {'no': 0, 'yes': 1}
    assert main(['eval', f'--workdir={tmp_path}/run']) == 2
    assert '--config.data.name=labelled --config.data.source=FILE' in capsys.readouterr().err
    (tmp_path / 'lines').write_text(''.join(f'{("no", "yes")[i % 2]}\tthe cat {i}\n' for i in range(300)))
    here = arguments(data__name='labelled', data__source=tmp_path / 'lines', data__dir=tmp_path / 'data')
    assert main(['eval', f'--workdir={tmp_path}/run', *here, '--config.eval.batch_size=4']) == 0
    (tmp_path / 'lines').write_text(''.join(f'{("no", "si")[i % 2]}\tthe cat {i}\n' for i in range(300)))
    assert main(['eval', f'--workdir={tmp_path}/run', *here]) == 2
    assert 'classes no, si' in capsys.readouterr().err
