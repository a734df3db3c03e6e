"""From a model in Hugging Face's layout (config.json, *.safetensors) to configuration and parameters, and to a run.

With a tokenizer.json in its directory the run reads and writes texts at once, and begins further training:

  jaxformer import --input=DIR --workdir=RUN
  jaxformer decode --workdir=RUN --input=lines.txt              (GPT-2, Llama, T5, Marian, a classifier)
  jaxformer inspect --workdir=RUN attention --input='a text'
  jaxformer eval --workdir=RUN --config.data.name=text --config.data.source=FILE
  jaxformer train --config=RUN/config.json --config.train.start_from=RUN --config.data.name=text
      --config.data.source=FILE --config.optim.schedule=linear --config.optim.learning_rate=5e-5
      --config.optim.warmup_steps=100 --workdir=OTHER

RUN/config.json is a configuration as others are (`config.load`): its data.tokenizer_file names the tokenizer.json, and
model.ids the special ids of the checkpoint: those of its config.json, else of its tokenizer (`data.named_ids`). Without
a tokenizer.json there are only ids, and texts are refused.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from ml_collections import ConfigDict
from safetensors import SafetensorError, safe_open

from jaxformer import checkpoint, config, files, optim, pyfile
from jaxformer.data.named_ids import SETTINGS, of_settings
from jaxformer.data.tokenizer_file import TokenizerFile
from jaxformer.errors import UserError
from jaxformer.inspection import symbols
from jaxformer.inspection.hugging_face import LAYOUTS
from jaxformer.inspection.layout import Fields, Layout, Row, Settings, fields_of, of_the_key
from jaxformer.inspection.symbols import TOKENIZER
from jaxformer.model import transformer
from jaxformer.schema import Config
from jaxformer.train import directory as directories
from jaxformer.train.score import own_data
from jaxformer.train.state import TrainState

WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
SOFTMAX = 'model.embedding.softmax'
NO_IDS = {'model.ids.pad': -1, 'model.ids.start': 0, 'model.ids.mask': 0}
"""Ids that any vocabulary has, until the sizes are known to be those of the tensors."""


def read(directory: str | Path) -> tuple[ConfigDict, dict[str, Any]]:
    """(configuration, parameters as a tree of numpy arrays) of a model that transformers' `save_pretrained` wrote.

    The configuration is `configs/base.py` with the model's fields; token ids stay those of the checkpoint. Parameters
    are float32, which holds F16 and BF16 exactly: in bfloat16 itself the steps of further training would be lost, as
    they are smaller than half of what lies between a weight and the next number. Tensors are read one at a time; one
    with numbers that are not finite is warned of.

    Raises:
      UserError: a file is missing or damaged, config.json asks for something that is not supported, or a tensor is
        missing, left over, or of another shape than config.json says.
    """
    directory = Path(directory)
    settings, layout = _settings(directory)
    return _read(directory, settings, layout)[:2]


def _read(
    directory: Path, settings: Settings, layout: Layout
) -> tuple[ConfigDict, dict[str, Any], TokenizerFile | None]:
    """(configuration, parameters, tokenizer), as `read`."""
    tensors = Tensors(directory, layout)
    fields = _fields(directory / SETTINGS, layout, settings)
    of_settings(settings, directory / SETTINGS)  # refuses what is no id
    if fields.get(SOFTMAX) == 'tied' and tensors.differing_softmax(layout):
        fields[SOFTMAX] = 'untied'  # transformers ties only what is equal
    edited = config.load(pyfile.ROOT / 'configs' / 'base.py')
    usual = {path: min(edited.model.ids[path.rpartition('.')[2]], fields['model.vocab_size'] - 1) for path in NO_IDS}
    max_length = int(fields.get('model.max_length', edited.model.max_length))
    cfg = _changed(directory / SETTINGS, layout, edited, fields | NO_IDS | _data(fields, max_length))
    shapes = parameter_shapes(cfg)
    rows = [row for row in layout.rows if row.counts(fields, shapes)]
    tensors.refuse_strangers(layout, rows, shapes)
    tokenizer = symbols.tokenizer(directory, fields['model.vocab_size'])
    ids = usual | {path: fields[path] for path in NO_IDS if path in fields}
    _changed(directory / SETTINGS, layout, edited, ids | symbols.model_ids(directory, settings, fields, tokenizer))
    params: dict[str, np.ndarray] = {}
    for row in rows:
        params |= row.join(map(tensors.weights, row.names(shapes)), shapes, np.float32)
    if without := [path for path in shapes if path not in params]:
        raise UserError(f'{directory / SETTINGS}: {layout.name} has no tensor for parameter {without[0]}')
    return edited, flax.traverse_util.unflatten_dict(params, sep='/'), tokenizer


def run(directory: str | Path, workdir: epath.PathLike) -> Config:
    """Makes `workdir` the directory of a run at step 0, with a fresh optimiser, of the model in `directory`.

    vocab.json holds the tokenizer.json of `directory`; without one, a name for each id ('<7>' where none is known).

    Raises:
      UserError: as `read`, or `workdir` holds a run or cannot be written.
    """
    workdir = epath.Path(workdir).expanduser()
    if (workdir / files.CONFIG).exists() or (workdir / files.GRID).exists():
        raise UserError(f'--workdir={workdir}: holds a run (or a grid) already; choose another directory')
    directory = Path(directory)
    settings, layout = _settings(directory)
    edited, params, tokenizer = _read(directory, settings, layout)
    vocab = symbols.vocabulary(directory, settings, config.resolve(edited), tokenizer)
    if tokenizer:
        config.override(edited, symbols.with_tokenizer(directory / TOKENIZER, edited.model.family))
    cfg = config.resolve(edited)
    zero = jnp.int32(0)
    state = TrainState(zero, params, optim.build(cfg).init(params), zero, zero)
    with directories.claimed(cfg, workdir):
        checkpoint.save(workdir / files.CHECKPOINTS, 0, state, {'next_index': 0}, config.to_dict(cfg), keep=1)
        files.write_json(workdir / files.VOCAB, vocab.to_json())
        files.write_json(workdir / files.CONFIG, config.to_dict(cfg))
    return cfg


def parameter_shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """{path: shape} of the parameters of a model whose vocabulary (and classes) the configuration says."""
    params = transformer.abstract_params(cfg.model, cfg.model.vocab_size, cfg.model.head.num_classes)
    return {path: leaf.shape for path, leaf in flax.traverse_util.flatten_dict(params, sep='/').items()}


def advice(cfg: Config, workdir: epath.PathLike) -> str:
    """What can be done with an import, in one line or three."""
    if cfg.data.tokenizer != 'file':
        return f'{workdir}: no {TOKENIZER} in the directory: only ids, and no text can be read'
    here = shlex.quote(str(workdir))
    look = (
        f"inspect --workdir={here} attention --input='a text'"
        if cfg.model.family == 'mlm'
        else f'decode --workdir={here} --input=FILE'
    )
    data = ' '.join(own_data(cfg.model.family))
    return (
        f'{workdir}: a run at step 0; look at it: jaxformer {look}\n'
        f'evaluate it: jaxformer eval --workdir={here} {data}\n'
        f'train from it: jaxformer train --config={here}/{files.CONFIG} --config.train.start_from={here} '
        f'{data} --config.optim.schedule=linear '
        '--config.optim.learning_rate=5e-5 --config.optim.warmup_steps=100 --workdir=OTHER'
    )


class Tensors:
    """The tensors of a directory by the names that `layout` gives them, read from one file or from several."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.directory = directory
        self._places: dict[str, tuple[Any, str]] = {}  # name → (open file, name in it)
        for path in self._paths():
            try:
                file = safe_open(path, framework='numpy')
            except (SafetensorError, OSError) as error:
                raise UserError(f'{path}: not a whole safetensors file ({error}); copy it anew') from None
            for stored in file.keys():  # noqa: SIM118 - no dict
                name = stored
                for pattern, replacement in layout.renamed:
                    name = re.sub(pattern, replacement, name)
                self._places[name] = file, stored

    def _paths(self) -> list[Path]:
        if (self.directory / WEIGHTS).exists():
            return [self.directory / WEIGHTS]
        if not (self.directory / INDEX).exists():
            raise UserError(
                f'{self.directory / WEIGHTS}: missing; only safetensors are read, which '
                '`model.save_pretrained(directory)` of transformers writes'
            )
        index = files.read_json(self.directory / INDEX)
        if not isinstance(index, dict) or not isinstance(index.get('weight_map'), dict):
            raise UserError(f'{self.directory / INDEX}: has no weight_map; copy it anew')
        return [self.directory / name for name in sorted(set(index['weight_map'].values()))]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str) -> np.ndarray:
        """The tensor, read now."""
        file, stored = self._places[name]
        return file.get_tensor(stored)

    def weights(self, name: str) -> np.ndarray:
        """The tensor, read now; a warning where numbers of it are not finite."""
        values = self.read(name)
        if bad := int(np.sum(~np.isfinite(values))):
            logging.warning('%s: tensor %s: %d of %d numbers are not finite', self.directory, name, bad, values.size)
        return values

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._places[name]
        return tuple(file.get_slice(stored).get_shape())

    def dtype(self, name: str) -> str:
        """'F32', 'F16', 'BF16' …"""
        file, stored = self._places[name]
        return file.get_slice(stored).get_dtype()

    def equal(self, name: str, other: str) -> bool:
        """Whether two tensors hold the same numbers."""
        return self.shape(name) == self.shape(other) and np.array_equal(self.read(name), self.read(other))

    def differing_softmax(self, layout: Layout) -> bool:
        """Whether there is an output layer with other numbers than the table that it could be tied to."""
        names = {row.name for row in layout.rows if row.paths == ('softmax',)}
        return any(
            copy in names and copy in self and of in self and not self.equal(copy, of) for copy, of in layout.copies
        )

    def refuse_strangers(self, layout: Layout, rows: list[Row], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises UserError where a tensor is missing, left over, of another shape or of no known type."""
        used: set[str] = set()
        says = f'by {SETTINGS} ({layout.name})'
        for name, shape in ((name, row.shape(shapes)) for row in rows for name in row.names(shapes)):
            used.add(name)
            if name not in self:
                raise UserError(f'{self.directory}: tensor {name} is missing, and {list(shape)} {says}')
            if self.shape(name) != shape:
                raise UserError(
                    f'{self.directory}: tensor {name} is {list(self.shape(name))}, and {list(shape)} {says}'
                )
            if self.dtype(name) not in ('F32', 'F16', 'BF16'):
                raise UserError(
                    f'{self.directory}: tensor {name} is of type {self.dtype(name)}; only F32, F16 and BF16 are read'
                )
        for name in self._places:
            if name in used or any(re.search(pattern, name) for pattern in layout.ignored):
                continue
            original = next((of for copy, of in layout.copies if copy == name and of in self), None)
            if original is None:
                raise UserError(f'{self.directory}: tensor {name} is left over: there is none {says}')
            if not self.equal(name, original):
                raise UserError(f'{self.directory}: tensor {name} is not {original} once more, which it is {says}')


def _settings(directory: Path) -> tuple[Settings, Layout]:
    """(the content of config.json, the layout that it names)."""
    path = directory / SETTINGS
    if not path.exists():
        raise UserError(f'{path}: missing; give a directory that `save_pretrained` of transformers wrote')
    settings = files.read_json(path)
    if not isinstance(settings, dict):
        raise UserError(f'{path}: no object; copy it anew')
    candidates = [layout for layout in LAYOUTS if layout.model_type == settings.get('model_type')]
    if not candidates:
        supported = ', '.join(dict.fromkeys(layout.model_type for layout in LAYOUTS))
        raise UserError(f'{path}: model_type={json.dumps(settings.get("model_type"))}: not one of {supported}')
    architectures = settings.get('architectures')
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(a, str) for a in architectures)
    ):
        raise UserError(f'{path}: architectures={json.dumps(architectures)}: must be a list of names')
    architectures = architectures or [candidates[0].name]
    for layout in candidates:
        if layout.name in architectures:
            return settings, layout
    supported = ', '.join(layout.name for layout in candidates)
    raise UserError(f'{path}: architectures={json.dumps(architectures)}: not one of {supported}')


def _changed(path: Path, layout: Layout, edited: ConfigDict, fields: Fields) -> Config:
    """Sets fields and gives what they make. Raises UserError by the names of the settings in the file `path`."""
    try:
        config.override(edited, fields)
        return config.resolve(edited)
    except UserError as error:
        raise UserError(f'{path}: {of_the_key(layout, error)}') from error


def _fields(path: Path, layout: Layout, settings: Settings) -> Fields:
    try:
        return fields_of(layout, settings)
    except UserError as error:
        raise UserError(f'{path}: {error}') from error


def _data(fields: Fields, max_length: int) -> dict[str, Any]:
    """Fields of data that go with the family: what is read does not say on which data it was trained."""
    length, family = min(128, max_length), fields['model.family']
    sides = (length, length) if family == 'seq2seq' else (length,)
    changes: dict[str, Any] = {'data.buckets': (sides,), 'eval.max_decode_length': min(64, max_length)}
    if family != 'seq2seq':
        changes |= {'data.name': 'stdlib_labels' if family == 'classifier' else 'stdlib', 'data.tokenizer': 'bytes'}
    if fields.get('model.head.pooling') == 'tokens':
        changes['data.labels'] = 'syntax'
    return changes
