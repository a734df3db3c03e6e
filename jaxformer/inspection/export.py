"""From a configuration and parameters to a model in Hugging Face's layout, which transformers loads."""

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
from absl import logging
from etils import epath

from jaxformer import checkpoint, files, rules
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import int8
from jaxformer.decode.open import find_step, read_config
from jaxformer.errors import RunError, UserError
from jaxformer.inspection import tensors as tensor_files
from jaxformer.inspection import tokenizer
from jaxformer.inspection.hugging_face import LAYOUTS
from jaxformer.inspection.import_ import SETTINGS, WEIGHTS
from jaxformer.inspection.layout import Layout, Settings, settings_of
from jaxformer.inspection.symbols import TOKENIZER
from jaxformer.schema import Config


def write(
    cfg: Config, params: Any, directory: str | Path, model_type: str | None = None, vocab: Vocabulary | None = None
) -> Path:
    """Writes config.json and model.safetensors of a model to `directory`; `import_.read` gives the same back.

    With a vocabulary also tokenizer.json, where one can say what it does.

    The types of the tensors are those of the parameters: of an import always float32, whatever its file held. Dropout
    rates are written as far as the layout has them, and what only training needs is not.

    Args:
      params: a tree of arrays. model_type: gpt2 | llama | bert | t5 | marian; None takes the one that can express cfg.
      vocab: the symbols, which say the id that ends a text and the names of the classes; None leaves both to
        transformers.

    Raises:
      UserError: no layout (or not that one) can express the configuration; the field is named. Or `directory` holds a
        model already, or cannot be written.
      RunError: the disk is full.
    """
    directory = Path(directory)
    if any((directory / name).exists() for name in (SETTINGS, WEIGHTS)):
        raise UserError(f'--output={directory}: holds a model already; choose another directory')
    flat = {path: np.asarray(leaf) for path, leaf in flax.traverse_util.flatten_dict(params, sep='/').items()}
    cfg = _with_sizes(cfg, flat)
    layout, settings = _layout(cfg, model_type)
    tensors: dict[str, np.ndarray] = {}
    used: set[str] = set()
    shapes = {path: leaf.shape for path, leaf in flat.items()}
    values = {row.when[0]: rules.get(cfg, row.when[0]) for row in layout.rows if row.when}
    for row in layout.rows:
        if row.counts(values, shapes):
            tensors |= row.split(flat)
            used |= set(row.paths)
    if left := [path for path in flat if path not in used]:
        raise UserError(f'{layout.name} has no tensor for parameter {left[0]}')
    settings |= _of_vocabulary(vocab, settings) if vocab else {}
    settings['torch_dtype'] = flat['embedding'].dtype.name
    _save(directory, tensors, {**_tokenizer(cfg, vocab, directory), SETTINGS: settings})
    return directory


def run(workdir: epath.PathLike, step: int | None, output: str | Path) -> Path:
    """`write` of a checkpoint of a run, None for the newest whole one. Raises: as `write` and `open_run`."""
    cfg = read_config(workdir)
    step = find_step(workdir, step)
    params = int8.floats(checkpoint.restore_params(epath.Path(workdir) / files.CHECKPOINTS, step))
    return write(cfg, params, output, vocab=_vocabulary(epath.Path(workdir) / files.VOCAB))


def _vocabulary(path: epath.Path) -> Vocabulary | None:
    """The symbols of a vocab.json; None where there are none to read."""
    try:
        return Vocabulary.from_json(files.read_json(path))
    except (UserError, FileNotFoundError):
        return None


def _of_vocabulary(vocab: Vocabulary, settings: Settings) -> Settings:
    """Settings that no field holds: the id that ends a text, and the names of the classes."""
    said: Settings = {'eos_token_id': vocab.ids.eos} if vocab.ids.eos >= 0 else {}
    if vocab.classes and 'id2label' in settings:
        said['id2label'] = {str(number): name for number, name in enumerate(vocab.classes)}
        said['label2id'] = {name: number for number, name in enumerate(vocab.classes)}
    return said


def _tokenizer(cfg: Config, vocab: Vocabulary | None, directory: Path) -> dict[str, Any]:
    """{name: content} of the files that say how texts become ids; a warning where none can."""
    if vocab is None:
        return {}
    if (definition := tokenizer.definition(vocab, cfg.model.family)) is None:
        reason = 'words of data.tokenizer=native' if vocab.tokenizer == 'native' else 'imported as ids alone'
        logging.warning('%s: no %s, which cannot say its symbols (%s)', directory, TOKENIZER, reason)
        return {}
    return {TOKENIZER: json.loads(definition), f'{Path(TOKENIZER).stem}_config.json': tokenizer.settings(vocab)}


def _layout(cfg: Config, model_type: str | None) -> tuple[Layout, Settings]:
    """The first layout that can express cfg, with its settings; else a UserError that says why each cannot."""
    reasons: dict[str, str] = {}
    for layout in LAYOUTS:
        if model_type not in (None, layout.model_type):
            continue
        try:
            return layout, settings_of(layout, cfg)
        except UserError as error:
            reasons[layout.name] = str(error)
    if not reasons:
        known = ', '.join(dict.fromkeys(layout.model_type for layout in LAYOUTS))
        raise UserError(f'{model_type}: not one of {known}')
    # Those of another kind of model say nothing that helps, unless there is no other.
    fitting = {name: reason for name, reason in reasons.items() if not reason.startswith('config.model.family=')}
    raise UserError('; '.join(f'{name}: {reason}' for name, reason in (fitting or reasons).items()))


def _with_sizes(cfg: Config, flat: dict[str, np.ndarray]) -> Config:
    """cfg with the sizes that it leaves to the data, as the parameters have them."""
    model = dataclasses.replace(cfg.model, vocab_size=flat['embedding'].shape[0])
    if 'classes' in flat:
        model = dataclasses.replace(model, head=dataclasses.replace(model.head, num_classes=flat['classes'].shape[-1]))
    return dataclasses.replace(cfg, model=model)


def _save(directory: Path, tensors: dict[str, np.ndarray], described: dict[str, Any]) -> None:
    """Writes the tensors and the JSON files, config.json last: where it stands, all is there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tensor_files.write(directory / WEIGHTS, tensors, {'format': 'pt'})
        for name, content in described.items():
            files.write_json(directory / name, content)
    except OSError as error:
        reason = f'--output={directory}: {error.strerror or error}'
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f'{reason}; free space and run the same command again') from error
        raise UserError(f'{reason}; choose a directory that can be written') from error
