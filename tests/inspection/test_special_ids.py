"""Imports take the special ids that the model was trained with, and what they print is accepted as it is printed."""

import json
import re
import shlex

import bridge
import pytest
import tiny_tokenizers

from jaxformer import files
from jaxformer.data.ids import Ids
from jaxformer.decode.open import open_run, read_config
from jaxformer.inspection import export, import_
from jaxformer.main import main

SMOL = {'bos_token_id': 1, 'eos_token_id': 2, 'pad_token_id': 2}  # '<|im_start|>', '<|im_end|>' twice
USUAL = {'bos_token': '<|endoftext|>', 'eos_token': '<|endoftext|>', 'unk_token': '<|endoftext|>'}
SAID = {'bos_token': '<|im_start|>', 'eos_token': '<|im_end|>', 'pad_token': '<|im_end|>'}
EXPECTED = Ids(pad=-1, bos=1, eos=2, unk=-1, mask=-1)


def llama(directory, settings, tokens):
    bridge.written('llama', directory, model__vocab_size=300, model__max_length=100)
    path = directory / 'config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), 'pad_token_id': None, **settings}))
    tiny_tokenizers.chat(directory)
    if tokens:
        (directory / 'tokenizer_config.json').write_text(json.dumps(tokens))


@pytest.mark.parametrize('tokens', [None, SAID, USUAL], ids=['bare', 'said', 'another'])
def test_what_an_import_prints_is_accepted_as_it_is_printed(tmp_path, capsys, tokens):
    llama(tmp_path / 'model', SMOL, tokens)
    text = '\n\n'.join(tiny_tokenizers.TEXTS * 8) + ' <|im_end|> <|endoftext|>'
    (tmp_path / 'text.txt').write_text(text)
    assert main(['import', f'--input={tmp_path}/model', f'--workdir={tmp_path}/run']) == 0
    run = open_run(tmp_path / 'run')
    assert run.vocab.ids == EXPECTED
    assert (run.cfg.model.ids.pad, run.cfg.model.ids.start) == (-1, 1)
    printed = re.findall(r'jaxformer (.*)', capsys.readouterr().out)
    assert [line.split(' ')[0] for line in printed] == ['decode', 'eval', 'train']
    here = [f'--config.data.dir={tmp_path}/data', '--config.eval.batch_size=4']
    small = [*here, '--config.train.num_steps=1', '--config.train.batch_size=2', '--config.optim.warmup_steps=0']
    for line, more in zip(printed, ([], here, small), strict=True):  # `more`: where, and smaller
        words = shlex.split(line.replace('FILE', f'{tmp_path}/text.txt').replace('OTHER', f'{tmp_path}/other'))
        assert main([*words, *more]) == 0, (line, capsys.readouterr().err)
    assert files.read_json(tmp_path / 'other' / 'vocab.json') == files.read_json(tmp_path / 'run' / 'vocab.json')
    assert read_config(tmp_path / 'other').model == run.cfg.model


@pytest.mark.parametrize('kind', ['t5', 'marian'])
@pytest.mark.parametrize('tokens', [None, {'eos_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>'}])
def test_padding_that_also_starts_a_decoder_stays(tmp_path, kind, tokens):
    pad, eos, unk = {'t5': (0, 1, 2), 'marian': (60, 0, 1)}[kind]
    size = {'t5': 64, 'marian': 61}[kind]
    bridge.written(
        kind, tmp_path / 'model', model__max_length=100, model__vocab_size=size, model__ids__pad=pad,
        model__ids__start=pad,
    )  # fmt: skip
    bridge.edit(tmp_path / 'model', {'eos_token_id': eos} | ({'bos_token_id': 0} if kind == 'marian' else {}))
    tiny_tokenizers.ALL[kind](tmp_path / 'model')
    if tokens:
        (tmp_path / 'model' / 'tokenizer_config.json').write_text(json.dumps(tokens))
    import_.run(tmp_path / 'model', tmp_path / 'run')
    run = open_run(tmp_path / 'run')
    assert run.vocab.ids == Ids(pad=pad, bos=0 if kind == 'marian' else -1, eos=eos, unk=unk, mask=-1)
    assert (run.cfg.model.ids.pad, run.cfg.model.ids.start) == (pad, pad)


def test_padding_that_is_the_end_is_none_without_a_tokenizer_too(tmp_path):
    llama(tmp_path / 'model', SMOL, None)
    (tmp_path / 'model' / 'tokenizer.json').unlink()
    import_.run(tmp_path / 'model', tmp_path / 'run')
    run = open_run(tmp_path / 'run')
    assert run.vocab.ids == EXPECTED and (run.cfg.model.ids.pad, run.cfg.model.ids.start) == (-1, 1)


@pytest.mark.parametrize('tokens', [None, SAID, USUAL])
def test_ids_survive_an_export(tmp_path, tokens):
    llama(tmp_path / 'model', SMOL, tokens)
    import_.run(tmp_path / 'model', tmp_path / 'run')
    export.run(tmp_path / 'run', None, tmp_path / 'out')
    import_.run(tmp_path / 'out', tmp_path / 'again')
    assert open_run(tmp_path / 'again').vocab == open_run(tmp_path / 'run').vocab
    assert files.read_json(tmp_path / 'out' / 'tokenizer_config.json')['pad_token'] is None


def test_a_classifiers_mask_is_that_of_its_tokenizer(tmp_path):
    bridge.written('bert', tmp_path / 'model', model__vocab_size=120, model__max_length=100)
    tiny_tokenizers.bert(tmp_path / 'model')
    (tmp_path / 'model' / 'tokenizer_config.json').write_text(json.dumps({'mask_token': '[UNK]'}))
    assert import_.read(tmp_path / 'model')[0].model.ids.mask == 1
