"""Tokenizers as those of published models, trained on the spot by `tokenizers`: each gives its tokenizer.json."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = (
    'the cat sat on the mat and the dog sat on the log',
    'A quick brown fox jumps over 13 lazy dogs; the end.',
    'def low(self):\n    return lower </s> [SEP] <|endoftext|>\n',
) * 20


def gpt2(directory, size=300):
    """Byte-level BPE; '<|endoftext|>' begins and ends, nothing is unknown, there is no padding."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(['<|endoftext|>'])  # the last id, as GPT-2's
    return _saved(tokenizer, directory)


def chat(directory):
    """Byte-level BPE; first '<|endoftext|>' '<|im_start|>' '<|im_end|>', as SmolLM's, whose texts the last ends."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=['<|endoftext|>', '<|im_start|>', '<|im_end|>'],
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return _saved(tokenizer, directory)


def bert(directory, size=120):
    """WordPiece of lower case with [PAD] [UNK] [CLS] [SEP] [MASK]; the file also cuts and pads, as MiniLM's does."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing('[CLS] $A [SEP]', None, [('[CLS]', 2), ('[SEP]', 3)])
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=6)
    return _saved(tokenizer, directory)


def t5(directory, size=60, special=('<pad>', '</s>', '<unk>')):
    """Unigram with blanks as '▁'; a text ends with </s>, and nothing begins it."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(special), unk_token='<unk>', show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing('$A </s>', None, [('</s>', special.index('</s>'))])
    value = json.loads(tokenizer.to_str())
    learnt = value['model']['vocab'][len(special) :]  # those of one score are in another order each time
    value['model']['vocab'][len(special) :] = sorted(learnt, key=lambda entry: (-entry[1], entry[0]))
    return _saved(tokenizers.Tokenizer.from_str(json.dumps(value)), directory)


def marian(directory):
    """As t5, with </s> <unk> for the first ids and <pad> for the last."""
    path = t5(directory, special=('</s>', '<unk>'))
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(['<pad>'])
    return _saved(tokenizer, directory)


def llama(directory):
    """BPE of characters with <unk> <s> </s> in its table, and bytes for what has no symbol."""
    special = ['<unk>', '<s>', '</s>', *(f'<0x{byte:02X}>' for byte in range(256))]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    value = json.loads(tokenizer.to_str())
    value['added_tokens'] = value['added_tokens'][:3]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'tokenizer.json').write_text(json.dumps(value))
    return directory / 'tokenizer.json'


ALL = {'gpt2': gpt2, 'bert': bert, 't5': t5, 'marian': marian, 'llama': llama, 'chat': chat}


def _saved(tokenizer, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / 'tokenizer.json'))
    return directory / 'tokenizer.json'
