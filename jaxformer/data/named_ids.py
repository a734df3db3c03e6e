"""Which ids are special, as files of transformers say that lie beside a tokenizer.json.

The first that says something of a role decides it: `config.json`, whose ids the model was trained with, then the
tokens of `tokenizer_config.json`, then those of `special_tokens_map.json`, an older one. Which id stands for what is
unknown no file beside it decides, as the tokenizer.json puts that id into texts whatever is said elsewhere.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from jaxformer import files
from jaxformer.data.ids import Ids
from jaxformer.errors import UserError

SETTINGS = 'config.json'
IDS = {'pad': 'pad_token_id', 'bos': 'bos_token_id', 'eos': 'eos_token_id'}
"""Special id → what config.json calls it."""

TOKEN_FILES = ('tokenizer_config.json', 'special_tokens_map.json')
TOKENS = {
    'pad': ('pad_token',),
    'bos': ('bos_token', 'cls_token'),
    'eos': ('eos_token', 'sep_token'),
    'unk': ('unk_token',),
    'mask': ('mask_token',),
}
"""Special id → what these call its token; of two names the first that there is."""

Said = dict[str, int | str | None]  # role → its id or its token; None: there is said to be none


def beside(tokenizer: epath.PathLike) -> dict[str, Said]:
    """{file: what it says} of the files beside a tokenizer.json, the one that decides first.

    Raises:
      UserError: one of them holds something else than an id or a token for a role.
    """
    directory = epath.Path(tokenizer).expanduser().parent
    found = {}
    for name in (SETTINGS, *TOKEN_FILES):
        if (path := directory / name).exists() and isinstance(content := files.read_json(path), dict):
            found[name] = of_settings(content, path) if name == SETTINGS else _of_tokens(content, path)
    return {name: said for name, said in found.items() if said}


def of_settings(settings: Mapping[str, Any], path: epath.PathLike) -> Said:
    """What a config.json says: −1 is no id, null and a missing entry say nothing; of several ends the first counts."""
    said: Said = {}
    for role, name in IDS.items():
        value = settings.get(name)
        ids = value if isinstance(value, list) and role == 'eos' else [] if value is None else [value]
        if any(type(id_) is not int or id_ < -1 for id_ in ids):
            several = ', or a list of such' if role == 'eos' else ''
            raise UserError(f'{path}: {name}={json.dumps(value)}: must be an id, an integer from -1{several}')
        if ids:
            said[role] = ids[0] if ids[0] >= 0 else None
    return said


def _of_tokens(content: Mapping[str, Any], path: epath.PathLike) -> Said:
    said: Said = {}
    for role, names in TOKENS.items():
        for name in (name for name in names if name in content and role != 'unk'):
            value = content[name]
            token = value.get('content') if isinstance(value, dict) else value
            if not (isinstance(token, str) or value is None):
                raise UserError(f'{path}: {name}={json.dumps(value)}: must be a token, as text or as its "content"')
            said[role] = token if said.get(role) is None else said[role]
    return said


def resolved(sources: Mapping[str, Said], symbols: Sequence[str], usual: Ids) -> Ids:
    """The ids that `beside` gives among `symbols`, those of `usual` where nothing is said."""
    by_symbol = {symbol: id_ for id_, symbol in enumerate(symbols)}
    return without_shared_pad(
        Ids(unk=usual.unk, **{r: _id(r, sources, by_symbol, getattr(usual, r)) for r in ('pad', 'bos', 'eos', 'mask')})
    )


def _id(role: str, sources: Mapping[str, Said], by_symbol: Mapping[str, int], usual: int) -> int:
    for file, said in sources.items():
        value = said.get(role, ...)
        if value is None:
            return -1
        if isinstance(value, str):
            if value in by_symbol:
                return by_symbol[value]
            logging.warning('%s: %s is %r, which tokenizer.json does not have: passed over', file, role, value)
        elif isinstance(value, int):
            if value < len(by_symbol):
                return value
            if role != 'eos':  # rows need an end that the tokenizer has, too; the others may be the model's own affair
                return -1
    return usual


def without_shared_pad(ids: Ids) -> Ids:
    """`ids` without padding where that id is the end or the unknown, too, as the habit is with GPT-2 and Llama.

    What is padding is never looked at or learnt, and ends are to be. Rows are filled up with −1 instead.
    """
    if ids.pad in (ids.eos, ids.unk):
        return Ids(pad=-1, bos=ids.bos, eos=ids.eos, unk=ids.unk, mask=ids.mask)
    return ids
