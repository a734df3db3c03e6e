"""The vocabulary of a run as files of Hugging Face's: tokenizer.json, and what transformers asks of it.

Bytes are byte-level BPE without merges, characters BPE of the characters without merges. Our special symbols are
added tokens with their own ids. Words (native) are cut at what Python calls a blank, or in the way of the data set,
which no tokenizer.json says.
"""

from typing import TYPE_CHECKING, Any

from jaxformer.data.named_ids import TOKENS
from jaxformer.data.vocab import SPECIALS, TOKENIZERS, Vocabulary

if TYPE_CHECKING:
    import tokenizers

TEMPLATES = {'lm': '<s> $A', 'mlm': '$A </s>', 'classifier': '<s> $A </s>', 'seq2seq': '$A </s>'}
"""model.family → the symbols that the rows have, or that the model puts, around a text."""


def definition(vocab: Vocabulary, family: str) -> str | None:
    """The content of a tokenizer.json that gives every text the ids that `vocab` gives; None where none can."""
    if vocab.tokenizer == 'file':
        return vocab.definition or None
    if vocab.tokenizer == 'native':
        return None
    return _of_ours(vocab, family).to_str()


def settings(vocab: Vocabulary) -> dict[str, Any]:
    """The content of tokenizer_config.json: which tokens are special, and that tokenizer.json says all the rest."""
    found = {name: getattr(vocab.ids, role) for role, names in TOKENS.items() for name in names}
    special = {name: vocab.symbols[id_] if id_ >= 0 else None for name, id_ in found.items()}
    return {'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': False, **special}


def _of_ours(vocab: Vocabulary, family: str) -> 'tokenizers.Tokenizer':
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    ids = {symbol: id_ for id_, symbol in enumerate(vocab.symbols)}
    merges = [tuple(merge.split(' ')) for merge in vocab.merges]
    made = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=SPECIALS[vocab.ids.unk]))  # type: ignore[arg-type]
    if vocab.tokenizer == 'characters':
        made.decoder = decoders.Fuse()
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        made.decoder = decoders.ByteLevel()
    special = TOKENIZERS[vocab.tokenizer].specials
    made.add_special_tokens(list(special))
    around = [(symbol, ids[symbol]) for symbol in special if symbol in TEMPLATES[family]]
    made.post_processor = processors.TemplateProcessing(TEMPLATES[family], None, around)
    return made
