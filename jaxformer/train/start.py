"""Parameters that a run begins with in place of fresh ones: those of another run, or of an imported model."""

from typing import Any

import jax
from absl import logging
from etils import epath

from jaxformer import checkpoint, files, sharding
from jaxformer.config import Config
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import find_step
from jaxformer.errors import UserError
from jaxformer.files import CHECKPOINTS, VOCAB

_SPELLING = (
    'symbols',
    'tokenizer',
    'merges',
    'definition',
)  # parts of a vocabulary that say which text an id stands for


def params_from(cfg: Config, vocab: Vocabulary, fresh: Any) -> Any:
    """`fresh` with what the newest whole checkpoint of the run cfg.train.start_from has under the same paths.

    What it does not have (another head) stays fresh and is named in a warning. Values take the dtype and the place of
    the fresh ones.

    Raises:
      UserError: no such run or no checkpoint of it, other symbols, or a parameter of another shape.
    """
    workdir = epath.Path(cfg.train.start_from).expanduser()
    field = f'config.train.start_from={cfg.train.start_from}'
    try:
        step = find_step(workdir)
        symbols = files.read_json(workdir / VOCAB)
    except UserError as error:
        raise UserError(f'{field}: {error}') from error
    ours = vocab.to_json()
    if symbols.get('tokenizer') == ours.get('tokenizer') == 'file' and 'definition' not in symbols:
        logging.warning('%s: does not know its tokenizer; data.tokenizer_file is taken for it', field)
    elif [symbols.get(part) for part in _SPELLING] != [ours.get(part) for part in _SPELLING]:
        raise UserError(f'{field}: its symbols ({VOCAB}) are not those of data.name={cfg.data.name}; use the same data')
    found = checkpoint.restore_params(workdir / CHECKPOINTS, step)
    there = {sharding.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(found)}
    missing: list[str] = []

    def take(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        name = sharding.path_name(path)
        if name not in there:
            missing.append(name)
            return leaf
        if there[name].shape != leaf.shape:
            raise UserError(
                f'{field}: parameter {name} is {there[name].shape} there and {leaf.shape} here; '
                'use the model fields of its config.json'
            )
        return jax.device_put(there[name].astype(leaf.dtype), leaf.sharding)

    params = jax.tree_util.tree_map_with_path(take, fresh)
    if len(missing) == len(jax.tree.leaves(fresh)):
        raise UserError(
            f'{field}: none of its parameters is one of this model; use the model fields of its config.json'
        )
    if missing:
        logging.warning('%s has no %s: fresh values', field, ', '.join(missing))
    return params
