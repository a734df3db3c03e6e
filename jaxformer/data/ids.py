"""Which ids of a vocabulary are special."""

import dataclasses

PAD, BOS, EOS, UNK, MASK = 0, 1, 2, 3, 4


@dataclasses.dataclass(frozen=True)
class Ids:
    """Special ids; −1 where there is none. Those of the vocabularies made here are the defaults.

    bos and eos may be one id (GPT-2's '<|endoftext|>'). pad −1: rows are filled up with −1, which is no symbol.
    """

    pad: int = PAD
    bos: int = BOS  # begins a classifier's text
    eos: int = EOS  # ends a text
    unk: int = UNK  # stands for what has no id
    mask: int = MASK  # stands for a token that has to be guessed
