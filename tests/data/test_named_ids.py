"""What lies beside a tokenizer.json says which ids are special; their usual names are for what it leaves open."""

import json
from types import SimpleNamespace

import pytest
import tiny_tokenizers

from jaxformer.data import corpus as corpus_lib
from jaxformer.data.ids import Ids
from jaxformer.data.tokenizer_file import TokenizerFile, digest
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError

CONFIG, TOKENS, MAP = 'config.json', 'tokenizer_config.json', 'special_tokens_map.json'


def ids(tmp_path, kind='chat', **beside):
    made = tiny_tokenizers.bert if kind == 'bert' else tiny_tokenizers.chat
    path = made(tmp_path)
    for name, content in beside.items():
        (tmp_path / {'config': CONFIG, 'tokens': TOKENS, 'map': MAP}[name]).write_text(json.dumps(content))
    return TokenizerFile.read(path).ids


@pytest.mark.parametrize(
    ('beside', 'expected'),
    [
        ({}, (-1, 0, 0)),  # pad, bos, eos: the usual names
        ({'tokens': {'bos_token': '<|im_start|>', 'eos_token': {'content': '<|im_end|>'}}}, (-1, 1, 2)),
        ({'tokens': {'eos_token': '<|im_end|>', 'pad_token': '<|endoftext|>'}}, (0, 0, 2)),
        ({'tokens': {'eos_token': '<|im_end|>', 'pad_token': '<|im_end|>'}}, (-1, 0, 2)),  # real ends stay real
        ({'tokens': {'bos_token': None, 'eos_token': '<|im_end|>'}}, (-1, -1, 2)),
        ({'tokens': {'cls_token': '<|im_start|>', 'bos_token': None, 'sep_token': '<|im_end|>'}}, (-1, 1, 2)),
        ({'tokens': {'cls_token': '<|im_end|>', 'bos_token': '<|im_start|>'}}, (-1, 1, 0)),
        ({'map': {'eos_token': {'content': '<|im_end|>', 'lstrip': False}}}, (-1, 0, 2)),
        ({'map': {'eos_token': '<|im_end|>'}, 'tokens': {'eos_token': '<|im_start|>'}}, (-1, 0, 1)),
        ({'map': {'eos_token': '<|im_end|>'}, 'tokens': {'bos_token': '<|im_start|>'}}, (-1, 1, 2)),
        ({'config': {'eos_token_id': [2, 0], 'bos_token_id': 1, 'pad_token_id': 2}}, (-1, 1, 2)),
        ({'config': {'eos_token_id': 2, 'pad_token_id': 0}, 'tokens': {'eos_token': '<|im_start|>'}}, (0, 0, 2)),
        ({'config': {'eos_token_id': None, 'bos_token_id': -1}, 'tokens': {'eos_token': '<|im_end|>'}}, (-1, -1, 2)),
        ({'config': {'eos_token_id': [], 'bos_token_id': 299}}, (-1, 299, 0)),
        ({'config': {'eos_token_id': 300, 'bos_token_id': 300}}, (-1, -1, 0)),  # beyond the tokenizer
        ({'config': {'model': {'ids': 3}}, 'tokens': {'chat_template': 'x'}}, (-1, 0, 0)),
    ],
)  # fmt: skip
def test_what_is_said_decides_and_usual_names_are_for_the_rest(tmp_path, beside, expected):
    assert ids(tmp_path, **beside) == Ids(*expected, unk=-1, mask=-1)


def test_a_tokenizer_with_its_own_unknown_keeps_it(tmp_path):
    tokens = {'unk_token': '[PAD]', 'mask_token': '[UNK]', 'pad_token': '[UNK]', 'sep_token': '[SEP]'}
    assert ids(tmp_path, 'bert', tokens=tokens) == Ids(pad=-1, bos=2, eos=3, unk=1, mask=1)


@pytest.mark.parametrize(
    ('beside', 'named'),
    [
        ({'config': {'eos_token_id': 'x'}}, r'config.json: eos_token_id="x": must be an id.*or a list of such'),
        ({'config': {'eos_token_id': [2, 'x']}}, r'eos_token_id=\[2, "x"\]: must be'),
        ({'config': {'eos_token_id': True}}, 'eos_token_id=true: must be'),
        ({'config': {'pad_token_id': [3]}}, r'pad_token_id=\[3\]: must be an id, an integer from -1$'),
        ({'config': {'pad_token_id': -2}}, 'pad_token_id=-2: must be an id'),
        ({'tokens': {'eos_token': 3}}, r'tokenizer_config.json: eos_token=3: must be a token'),
        ({'map': {'bos_token': {'content': 3}}}, r'special_tokens_map.json: bos_token=\{"content": 3\}: must be'),
    ],
)
def test_what_is_no_id_and_no_token_is_refused(tmp_path, beside, named):
    with pytest.raises(UserError, match=named):
        ids(tmp_path, **beside)


def test_a_token_that_there_is_not_is_passed_over_with_a_warning(tmp_path, caplog):
    assert ids(tmp_path, tokens={'pad_token': '[NEW]', 'eos_token': '<|im_end|>'}) == Ids(-1, 0, 2, -1, -1)
    assert "tokenizer_config.json: pad is '[NEW]', which tokenizer.json does not have" in caplog.text


def test_no_text_spells_what_is_special_by_what_lies_beside(tmp_path, caplog):
    assert ids(tmp_path, tokens={'eos_token': 'the'}).eos > 2  # an ordinary symbol until then
    assert "'the' is special by what lies beside it: no text encodes to it" in caplog.text
    vocab = Vocabulary.of_file(TokenizerFile.read(tmp_path / 'tokenizer.json'))
    again = Vocabulary.from_json(json.loads(json.dumps(vocab.to_json())))
    for read in (vocab, again):
        (found,) = read.encode_texts(['the cat'])
        assert vocab.ids.eos not in found and read.join(read.decode(found)) == 'the cat'


def test_data_ends_with_what_is_said_and_is_prepared_anew_when_that_changes(make_data, tmp_path):
    path = tiny_tokenizers.chat(tmp_path / 'tokenizer')
    (tmp_path / 'text.txt').write_text('\n\n'.join(tiny_tokenizers.TEXTS * 4))
    data = make_data(tmp_path / 'data', 'text', source=str(tmp_path / 'text.txt'), tokenizer='file')
    data = SimpleNamespace(**{**vars(data), 'tokenizer_file': str(path)})
    bare = digest(path)
    assert corpus_lib.load(data).split('train').documents[0][-1] == 0
    (path.parent / TOKENS).write_text(json.dumps({'eos_token': '<|im_end|>', 'chat_template': 'x'}))
    told = digest(path)
    assert told != bare and corpus_lib.load(data).split('train').documents[0][-1] == 2
    (path.parent / TOKENS).write_text(json.dumps({'eos_token': '<|im_end|>', 'chat_template': 'y'}))
    assert digest(path) == told
