"""Data with the tokenizer of another model: its ends, its padding and its unknown symbol take the place of ours."""

import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_tokenizers
import tokenizers

from jaxformer import config, losses, objectives
from jaxformer.data import corpus as corpus_lib
from jaxformer.data import pipeline, special_ids, syntax
from jaxformer.data.held_out import SPLITS
from jaxformer.data.ids import Ids
from jaxformer.data.tokenizer_file import TokenizerFile
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.model import transformer

TEXTS = ('the cat sat </s> on\n', 'the dog <|endoftext|> [SEP] \N{GRINNING FACE}\n', 'a log; the end')
ROOT = config.pyfile.ROOT


@pytest.fixture
def texts(tmp_path):
    for split in SPLITS:
        (tmp_path / f'{split}.txt').write_text(''.join(TEXTS) * (3 if split == 'train' else 1))
        (tmp_path / f'{split}.labels').write_text(''.join(f'{i % 2}\t{text.strip()}\n' for i, text in enumerate(TEXTS)))
    return tmp_path


def load(make_data, directory, kind, name='text', ending='txt', **fields):
    path = tiny_tokenizers.ALL[kind](directory / kind)
    data = make_data(
        directory / 'data', name, source=f'{directory}/{{split}}.{ending}', target=f'{directory}/{{split}}.{ending}',
        tokenizer='file', tokenizer_file=str(path), **fields,
    )  # fmt: skip
    return corpus_lib.load(data), tokenizers.Tokenizer.from_file(str(path))


@pytest.mark.parametrize(('kind', 'eos', 'pad'), [('gpt2', 299, -1), ('bert', 3, 0), ('t5', 1, 0), ('marian', 0, 60)])
def test_documents_end_and_rows_are_filled_with_its_ids(make_data, texts, kind, eos, pad):
    corpus, library = load(make_data, texts, kind)
    split = corpus.split('dev')
    assert split.documents[0].tolist()[-1] == eos and split.documents[0].tolist().count(eos) == 1
    if kind == 'gpt2':
        assert corpus.decode(split.documents[0].tolist()) == ''.join(TEXTS)
    (batch,) = pipeline.eval_batches(split, ((split.num_tokens + 3,),), 2)
    assert batch['tokens'][0, -4:].tolist() == [eos, pad, pad, pad]
    assert np.all(batch['tokens'][1] == pad) and batch['tokens'].dtype == np.int32
    assert library.get_vocab_size() == len(corpus.vocab)


def test_unknown_symbols_are_reported_by_its_id(make_data, texts, caplog):
    load(make_data, texts, 'bert')
    assert 'dev.documents: 1 symbols' in caplog.text  # the face
    caplog.clear()
    load(make_data, texts, 'gpt2')
    assert 'read as unknown' not in caplog.text


def test_labelled_rows_are_between_its_begin_and_its_end(make_data, texts):
    corpus, library = load(make_data, texts, 'bert', 'labelled', 'labels', buckets=((30,),))
    (batch,) = pipeline.eval_batches(corpus.split('dev'), ((30,),), 4)
    library.no_truncation()
    library.no_padding()
    expected = library.encode(TEXTS[0].strip()).ids  # with the library's own [CLS] and [SEP]
    assert batch['tokens'][0].tolist() == [*expected, *[0] * (30 - len(expected))]
    assert expected[0] == 2 and expected[-1] == 3
    assert batch['label'].tolist() == [0, 1, 0, -1] and not batch['tokens'][3].any()


def test_pairs_end_and_are_filled_with_its_ids(make_data, texts):
    corpus, library = load(make_data, texts, 'marian', 'parallel')
    split = corpus.split('dev')
    (batch,) = pipeline.eval_batches(split, ((50, 50),), 4)
    expected = library.encode(TEXTS[2]).ids  # ends with </s>
    for side in ('source', 'target'):
        assert batch[side][2].tolist() == [*expected, *[60] * (50 - len(expected))]
    assert corpus.encode(TEXTS[2]) == expected[:-1] and corpus.encode(' ') == []
    assert split.references(2) == [library.encode(TEXTS[2], add_special_tokens=False).tokens]


def test_another_file_is_prepared_anew_and_other_settings_keep_their_place(make_data, texts):
    first, _ = load(make_data, texts, 'bert')
    data = first.data
    copy = shutil.copy(data.tokenizer_file, texts / 'copy.json')
    again = SimpleNamespace(**{**vars(data), 'tokenizer_file': str(copy)})
    assert corpus_lib.prepared_directory(again) == first.directory
    path = tiny_tokenizers.bert(texts / 'other', size=90)
    other = SimpleNamespace(**{**vars(data), 'tokenizer_file': str(path)})
    assert corpus_lib.prepared_directory(other) != first.directory
    with pytest.raises(UserError, match='tokenizer_file=/nowhere: cannot be read'):
        corpus_lib.prepared_directory(SimpleNamespace(**{**vars(data), 'tokenizer_file': '/nowhere'}))
    bytes_data = SimpleNamespace(**{**vars(data), 'tokenizer': 'bytes'})
    without = SimpleNamespace(**{**vars(bytes_data), 'tokenizer_file': ''})
    assert corpus_lib.prepared_directory(bytes_data) == corpus_lib.prepared_directory(without)


def test_a_file_without_an_end_or_a_begin_is_refused(make_data, texts):
    with pytest.raises(UserError, match=r't5/tokenizer.json: has no special token for bos \(\[CLS\] or <s> or'):
        load(make_data, texts, 't5', 'labelled', 'labels')
    path = texts / 'none' / 'tokenizer.json'
    path.parent.mkdir()
    path.write_text(tokenizers.Tokenizer(tokenizers.models.WordLevel({'the': 0}, '?')).to_str())
    data = make_data(texts / 'data', 'text', source=f'{texts}/{{split}}.txt', tokenizer='file')
    with pytest.raises(UserError, match=r'none/tokenizer.json: has no special token for eos'):
        corpus_lib.load(SimpleNamespace(**vars(data), tokenizer_file=str(path)))
    assert not list((texts / 'data').glob('text*partial'))


@pytest.mark.parametrize(
    ('family', 'told', 'ids', 'refused'),
    [
        ('lm', (-1, 9, 4), Ids(-1, 9, 9, -1, -1), None),
        (
            'lm',
            (9, 9, 4),
            Ids(-1, 9, 9, -1, -1),
            r'pad=9: .*has no special token for pad.*; set config.model.ids.pad=-1',
        ),
        ('lm', (-1, 8, 4), Ids(-1, 9, 9, -1, -1), r'start=8: .*has 9; set config.model.ids.start=9'),
        ('lm', (0, 7, 4), Ids(0, -1, 1, 2, -1), None),  # nothing says with what a text of T5's begins
        ('seq2seq', (0, 0, 4), Ids(0, 5, 1, 2, -1), None),
        ('seq2seq', (1, 0, 4), Ids(0, 5, 1, 2, -1), r'pad=1: .*has 0; set config.model.ids.pad=0'),
        ('mlm', (0, 1, 103), Ids(0, 2, 3, 1, 103), None),
        ('mlm', (0, 1, 4), Ids(0, 2, 3, 1, 103), r'mask=4: .*has 103; set config.model.ids.mask=103'),
        ('mlm', (0, 1, 4), Ids(0, 2, 3, 1, -1), r'no special token for mask \(\[MASK\] or <mask>\), which .* needs'),
        ('classifier', (0, 1, 4), Ids(0, 2, 3, 1, 103), None),
    ],
)
def test_ids_that_the_model_is_told_have_to_be_those_of_the_data(family, told, ids, refused):
    model = SimpleNamespace(family=family, ids=SimpleNamespace(pad=told[0], start=told[1], mask=told[2]))
    data = SimpleNamespace(tokenizer='file', tokenizer_file='some/tokenizer.json')
    if refused is None:
        special_ids.refuse_others(model, data, ids)
    else:
        with pytest.raises(UserError, match='some/tokenizer.json.*' * ('which' in refused) + refused):
            special_ids.refuse_others(model, data, ids)


@pytest.mark.parametrize('kind', ['gpt2', 't5'])
def test_each_token_has_the_class_of_its_first_character(tmp_path, kind):
    vocab = Vocabulary.of_file(TokenizerFile.read(tiny_tokenizers.ALL[kind](tmp_path)))
    text = 'the cat sat on'
    letters = np.array([ord(letter) for letter in text])
    ids = next(vocab.encode_texts([text]))
    found = syntax.of_tokens(letters, text, vocab, ids)
    assert len(found) == len(ids)
    for symbol, letter in zip(vocab.split(text), found, strict=True):
        assert symbol.strip('Ġ▁')[:1] in (chr(letter), '')


FAMILIES = {
    'lm': {'model.family': 'lm', 'data.name': 'text'},
    'mlm': {'model.family': 'mlm', 'data.name': 'text'},
    'seq2seq': {'model.family': 'seq2seq', 'data.name': 'parallel', 'data.buckets': ((7, 7),)},
}


@pytest.mark.parametrize('family', FAMILIES)
def test_filling_with_minus_one_changes_nothing(family):
    """The same as no padding at all, and no gradient reaches a row of the table by way of it."""
    edited = config.load(ROOT / 'configs' / 'base.py')
    sizes = {'d_model': 12, 'num_heads': 3, 'd_ff': 10, 'num_layers': 2, 'vocab_size': 17}
    changes = {f'model.{name}': value for name, value in sizes.items()}
    changes |= {'data.tokenizer': 'bytes', 'data.source': 'a', 'data.target': 'b', 'data.buckets': ((7,),)}
    config.override(edited, changes | FAMILIES[family] | {'model.ids.pad': -1})
    cfg = config.resolve(edited)
    model = transformer.build(cfg.model, 17)
    params = transformer.init(model, 3)
    objective = objectives.of(cfg, 17)
    tokens_BT = np.array([[5, 9, 6, 7], [8, 8, 11, 13]], np.int32)

    def loss(params, fill):
        filled_BT = np.pad(tokens_BT, ((0, 1), (0, fill)), constant_values=-1)
        filled_BT = filled_BT if fill else filled_BT[:2]
        names = ('source', 'target') if family == 'seq2seq' else ('tokens',)
        batch = dict.fromkeys(names, filled_BT) | {'example_id': np.arange(len(filled_BT), dtype=np.int32)}
        if family == 'mlm':  # which tokens are hidden depends on the width of the row: here none is
            inputs, labels_BT, weights_BT = (filled_BT,), filled_BT, (filled_BT >= 0).astype(np.float32)
        else:
            inputs, labels_BT, weights_BT = objective(batch, None)
        logits, _ = model.apply({'params': params}, *inputs)
        return losses.cross_entropy(logits, labels_BT, weights_BT, 0.1)

    (bare, bare_gradient), (filled, gradient) = (jax.value_and_grad(loss)(params, fill) for fill in (0, 3))
    np.testing.assert_allclose(filled, bare, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient, bare_gradient)
