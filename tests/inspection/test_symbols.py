"""Imported models read and write texts by their own tokenizers, and further training begins with them."""

import json
import re

import bridge
import jax
import numpy as np
import pytest
import tiny_tokenizers
import tokenizers
from safetensors.numpy import load_file

from jaxformer import checkpoint, files
from jaxformer.data.ids import Ids
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import open_run, read_config
from jaxformer.errors import UserError
from jaxformer.inspection import attention, export, import_, symbols
from jaxformer.main import main

LINES = ['the cat sat', '', 'A quick </s> \N{GRINNING FACE}', 'dog']
KINDS = {
    'gpt2': {'model__ids__start': 299, 'model__ids__pad': -1, 'model__vocab_size': 300},
    'llama': {'model__ids__start': 1, 'model__ids__pad': -1, 'model__vocab_size': 325},
    'bert': {'model__vocab_size': 120},
    't5': {'model__vocab_size': 64, 'model__ids__start': 0},
    'marian': {'model__vocab_size': 61, 'model__ids__pad': 60, 'model__ids__start': 60}
    | {'model__embedding__tables': 'separate'},
}


def model(kind, directory, **changes):
    """The directory of a model with its tokenizer; (configuration, parameters) of what was written."""
    changes = {'model__max_length': 100, **KINDS[kind], **changes}
    if kind == 'bert':
        changes = {'model__ids__mask': 4} | changes
    if kind != 'bert':  # random models with a tied softmax say one symbol for ever
        changes['model__embedding__softmax'] = 'untied'
    cfg, params = bridge.written(kind, directory, **changes)
    path = directory / 'model.safetensors'  # what is written has to depend on what is read
    louder = {
        name: 8 * values for name, values in load_file(path).items() if re.search(r'(EncDec|encoder_)att', name, re.I)
    }
    bridge.edit(directory, tensors=louder)
    tiny_tokenizers.ALL[kind](directory)
    return cfg, params


@pytest.fixture(scope='module', params=KINDS)
def imported(request, tmp_path_factory):
    """(kind, directory of the model, directory of the run)."""
    root = tmp_path_factory.mktemp(request.param)
    model(request.param, root / 'model')
    import_.run(root / 'model', root / 'run')
    return request.param, root / 'model', root / 'run'


def test_an_import_opens_with_its_tokenizer_and_ids(imported):
    kind, directory, workdir = imported
    run = open_run(workdir)
    library = tokenizers.Tokenizer.from_file(str(directory / 'tokenizer.json'))
    library.no_truncation()
    library.no_padding()
    assert len(run.vocab) == library.get_vocab_size() and run.cfg.model.vocab_size >= len(run.vocab)
    assert run.vocab.split(LINES[0]) == library.encode(LINES[0], add_special_tokens=False).tokens
    assert (run.cfg.data.tokenizer, run.cfg.data.tokenizer_file) == ('file', str(directory / 'tokenizer.json'))
    assert run.vocab.ids.pad == run.cfg.model.ids.pad
    if kind == 'bert':
        assert run.cfg.model.ids.mask == library.token_to_id('[MASK]') == 4


def test_an_import_decodes_lines_in_their_places(imported):
    kind, directory, workdir = imported
    (directory / 'tokenizer.json').rename(directory / 'elsewhere.json')  # the run needs neither it nor the data
    try:
        if kind == 'bert':
            with pytest.raises(UserError, match='model.family=mlm, which writes no text'):
                decode_lines(workdir, None, LINES)
            return
        outputs = decode_lines(workdir, None, LINES)
        assert len(outputs) == 4 and outputs[1] == '' and len(set(outputs)) > 2
        assert [decode_lines(workdir, None, [line])[0] for line in LINES] == outputs
    finally:
        (directory / 'elsewhere.json').rename(directory / 'tokenizer.json')


def test_an_import_is_drawn_with_its_symbols(imported):
    kind, directory, workdir = imported
    maps = attention.maps(workdir, LINES[0])
    library = tokenizers.Tokenizer.from_file(str(directory / 'tokenizer.json'))
    library.no_truncation()
    library.no_padding()
    bare = tuple(library.encode(LINES[0], add_special_tokens=False).tokens)
    begin = {'gpt2': '<|endoftext|>', 'llama': '<s>', 't5': '<pad>', 'marian': '<pad>', 'bert': None}[kind]
    if kind in ('gpt2', 'llama'):
        assert maps.source == () and maps.inputs == (begin, *bare)
    else:  # with the end of a text, and of BERT its begin, as the library adds them
        assert maps.source == tuple(library.encode(LINES[0]).tokens) and maps.inputs[:1] == ((begin,) if begin else ())
    for kind_of_map in attention.KINDS:
        np.testing.assert_allclose(getattr(maps, kind_of_map).sum(-1), 1, rtol=1e-5)


def test_a_continuation_is_that_of_the_parameters(tmp_path):
    """Token by token from logits of a whole row, without a cache."""
    model('gpt2', tmp_path / 'model')
    import_.run(tmp_path / 'model', tmp_path / 'run')
    run = open_run(tmp_path / 'run')
    (ids,) = run.vocab.encode_texts([LINES[0]])
    written = list(ids)
    length = len(ids) + run.cfg.eval.max_decode_length
    logits_of = jax.jit(lambda tokens_BT: run.model.apply({'params': run.params}, tokens_BT)[0])
    while len(written) < length and written[-1] != 299:
        row = np.zeros((1, length), np.int32)
        row[0, : len(written)] = written
        written.append(int(np.argmax(logits_of(row)[0, len(written)])))
    expected = run.vocab.join(run.vocab.decode(written[len(ids) :])).replace('\n', '\\n')
    assert decode_lines(tmp_path / 'run', None, [LINES[0]]) == [expected] and len(set(written)) > 3


@pytest.mark.parametrize(('kind', 'family'), [('gpt2', 'lm'), ('bert', 'mlm')])
def test_training_begins_with_an_import_on_a_text_of_the_user(tmp_path, capsys, kind, family):
    _, params = model(kind, tmp_path / 'model')
    workdir, other = tmp_path / 'run', tmp_path / 'other'
    assert main(['import', f'--input={tmp_path}/model', f'--workdir={workdir}']) == 0
    said = capsys.readouterr().out
    (tmp_path / 'text.txt').write_text('\n\n'.join(tiny_tokenizers.TEXTS * 8))
    advice = said.strip().splitlines()[-1].partition('jaxformer ')[2]
    small = ['--config.train.num_steps=1', '--config.train.batch_size=2', '--config.eval.batch_size=4']
    small += [f'--config.data.dir={tmp_path}/data', '--config.data.buckets=((16,),)', '--config.optim.warmup_steps=0']
    arguments = [
        argument.replace('FILE', f'{tmp_path}/text.txt').replace('OTHER', str(other)) for argument in advice.split(' ')
    ]
    assert main([*arguments, *small]) == 0
    cfg = read_config(other)
    assert cfg.model == read_config(workdir).model and cfg.model.family == family
    assert cfg.optim.schedule == 'linear' and cfg.train.start_from == str(workdir)
    ours = bridge.flatten(checkpoint.restore_params(other / 'checkpoints', 1))
    for path, values in bridge.flatten(params).items():
        moved = np.abs(np.asarray(ours[path]) - values)
        assert moved.max() <= 1e-4, path  # one step of Adam: at most the learning rate
    assert np.any(np.asarray(ours['embedding']) != params['embedding'])
    assert files.read_json(other / 'vocab.json') == files.read_json(workdir / 'vocab.json')
    capsys.readouterr()
    assert main(['eval', f'--workdir={other}']) == 0
    assert main([*arguments[:-1], f'--workdir={tmp_path}/third', *small, '--config.model.ids.pad=5']) == 2
    assert 'config.model.ids.pad=5: config.data.tokenizer_file=' in capsys.readouterr().err
    assert not (tmp_path / 'third' / 'config.json').exists()


def test_another_tokenizer_than_the_imports_is_refused(tmp_path, capsys):
    model('gpt2', tmp_path / 'model')
    import_.run(tmp_path / 'model', tmp_path / 'run')
    value = json.loads((tmp_path / 'model' / 'tokenizer.json').read_text())
    value['model']['merges'] = value['model']['merges'][::-1]  # the same symbols, put together otherwise
    (tmp_path / 'model' / 'tokenizer.json').write_text(json.dumps(value))
    command = ['train', f'--config={tmp_path}/run/config.json', f'--config.train.start_from={tmp_path}/run']
    changes = {'data.dir': tmp_path / 'data', 'data.name': 'text', 'data.source': tmp_path / 'text.txt'}
    changes |= {'data.buckets': '((16,),)', 'train.batch_size': 2, 'eval.batch_size': 2}
    (tmp_path / 'text.txt').write_text('\n\n'.join(tiny_tokenizers.TEXTS * 8))
    assert main([*command, *(f'--config.{k}={v}' for k, v in changes.items()), f'--workdir={tmp_path}/other']) == 2
    assert 'are not those of data.name=text' in capsys.readouterr().err


def test_a_tokenizer_for_another_model_is_refused(tmp_path):
    model('gpt2', tmp_path / 'model', model__vocab_size=299, model__ids__start=298)
    with pytest.raises(UserError, match=r'tokenizer.json: 300 symbols, and the model has vocab_size=299; remove it'):
        import_.run(tmp_path / 'model', tmp_path / 'run')
    (tmp_path / 'model' / 'tokenizer.json').write_text('{}')
    with pytest.raises(UserError, match=r'tokenizer.json: not a tokenizer.json .* or remove it'):
        import_.run(tmp_path / 'model', tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


def test_without_a_tokenizer_there_are_ids_and_the_names_that_are_known(tmp_path):
    cfg, _ = bridge.written('gpt2', tmp_path / 'model')
    settings = {'eos_token_id': 3}
    vocab = symbols.vocabulary(tmp_path / 'model', settings, cfg)
    assert vocab.symbols[:3] == ('<0>', '<1>', '<2>') and len(vocab) == 37
    assert vocab.ids == Ids(pad=0, bos=-1, eos=3, unk=-1, mask=-1)
    (tmp_path / 'model' / 'vocab.json').write_text('{"b": 1, "a": 0}')
    assert symbols.vocabulary(tmp_path / 'model', settings, cfg).symbols[:3] == ('a', 'b', '<2>')
    for text in ('[]', '{"a": "b"}'):
        (tmp_path / 'model' / 'vocab.json').write_text(text)
        with pytest.raises(UserError, match='vocab.json: gives no id for each symbol'):
            symbols.vocabulary(tmp_path / 'model', settings, cfg)


def test_an_export_ends_texts_with_the_id_of_the_import(imported, tmp_path):
    kind, _, workdir = imported
    eos = {'gpt2': 299, 'llama': 2, 'bert': 3, 't5': 1, 'marian': 0}[kind]
    export.run(workdir, None, tmp_path / 'again')
    assert json.loads((tmp_path / 'again' / 'config.json').read_text())['eos_token_id'] == eos
    assert Vocabulary.from_json(files.read_json(workdir / 'vocab.json')).ids.eos == eos


def test_classes_have_the_names_of_the_model(tmp_path):
    """An imported classifier says which class a line has."""
    changes = {'model__family': 'classifier', 'data__name': 'stdlib_labels', 'model__head__num_classes': 3}
    changes |= {'model__head__transform': 'off', 'model__embedding__softmax_bias': 'off', 'model__head__pooler': 'on'}
    model('bert', tmp_path / 'model', **changes)
    path = tmp_path / 'model' / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'id2label': {'0': 'no', '1': 'yes', '2': 'so'}}))
    import_.run(tmp_path / 'model', tmp_path / 'run')
    run = open_run(tmp_path / 'run')
    assert run.vocab.classes == ('no', 'yes', 'so')
    expected = []
    for line in LINES:
        (ids,) = run.vocab.encode_texts([line])
        logits, _ = run.model.apply({'params': run.params}, np.array([[2, *ids, 3]]))
        expected.append(run.vocab.classes[int(np.argmax(logits[0, 0]))] if line else '')
    assert decode_lines(tmp_path / 'run', None, LINES) == expected
