"""Parameters that a run begins with in place of fresh ones: those of another run, or of an imported model."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint, config, files, processes, sharding
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import int8
from jaxformer.decode.open import find_step, read_config
from jaxformer.errors import UserError
from jaxformer.files import CHECKPOINTS, VOCAB
from jaxformer.schema import Config

START = 'start_from.json'
"""In a run's directory: which step of the other run it began with."""

_FREE = (
    'model.remat',
    'model.attention.kernel',
    'model.attention.block',
    'model.scan_unroll',
    'model.vocab_size',
    'model.dropout',
    'model.precision',
)  # say nothing about what a parameter means

_SPELLING = (
    'symbols',
    'tokenizer',
    'merges',
    'definition',
)  # parts of a vocabulary that say which text an id stands for


def params_from(cfg: Config, vocab: Vocabulary, fresh: Any, workdir: epath.Path) -> Any:
    """`fresh` with what the newest whole checkpoint of the run cfg.train.start_from has under the same paths.

    Which step that was is written down in `workdir`, and taken again by a run that is started again before it saved
    anything. What the other run does not have (another head, other classes) stays fresh and is named in a warning, as
    are the fields of the model that differ. Values take the dtype and the place of the fresh ones.

    Raises:
      UserError: no such run or no checkpoint of it, other symbols, or a parameter of another shape.
    """
    origin = epath.Path(cfg.train.start_from).expanduser()
    field = f'config.train.start_from={cfg.train.start_from}'
    note = workdir / START
    try:
        named = lambda: find_step(origin, files.read_json(note)['step'] if note.exists() else None)  # noqa: E731
        step = processes.on_first(named)
        symbols = files.read_json(origin / VOCAB)
        other = read_config(origin)
    except OSError as error:
        raise UserError(f'{field}: {origin / VOCAB}: {error.strerror}; put the file back') from error
    except UserError as error:
        raise UserError(f'{field}: {error}') from error
    refuse_other_symbols(field, symbols, vocab, cfg.data.name)
    found = int8.floats(checkpoint.restore_params(origin / CHECKPOINTS, step))
    there = {sharding.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(found)}
    if symbols.get('classes') != vocab.to_json().get('classes'):
        there = {name: leaf for name, leaf in there.items() if not name.startswith('classes')}
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
        value = np.asarray(there[name].astype(leaf.dtype))
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: value[index])

    params = jax.tree_util.tree_map_with_path(take, fresh)
    if len(missing) == len(jax.tree.leaves(fresh)):
        raise UserError(
            f'{field}: none of its parameters is one of this model; use the model fields of its config.json'
        )
    if missing:
        logging.warning('%s has no %s: fresh values', field, ', '.join(missing))
    if fields := [name for name in config.diff(other, cfg) if name.startswith('model.') and not name.startswith(_FREE)]:
        logging.warning('%s: trained with another %s', field, ', '.join(fields))
    processes.on_first(lambda: files.write_json(note, {'run': str(origin), 'step': step}))
    return params


def refuse_other_symbols(field: str, there: Mapping[str, Any], vocab: Vocabulary, data_name: str) -> None:
    """Raises UserError, naming the field, where ids of the run it names stand for another text than ids of `vocab`.

    there: its vocab.json.
    """
    ours = vocab.to_json()
    if there.get('tokenizer') == ours.get('tokenizer') == 'file' and 'definition' not in there:
        logging.warning('%s: does not know its tokenizer; data.tokenizer_file is taken for it', field)
    elif [there.get(part) for part in _SPELLING] != [ours.get(part) for part in _SPELLING]:
        raise UserError(f'{field}: its symbols ({VOCAB}) are not those of data.name={data_name}; use the same data')
