"""How other software writes a model: tables of its tensors and of its settings, read in both directions.

A `Layout` is data. What reads it knows no name of it: `fields_of` makes fields of a configuration from settings and
`settings_of` the reverse; `Row.join` makes parameters from tensors and `Row.split` the reverse.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxformer import rules
from jaxformer.errors import UserError
from jaxformer.inspection import limits
from jaxformer.schema import Config

Settings = dict[str, Any]  # what a config.json holds
Fields = dict[str, Any]  # {'model.d_model': 12, …}
Shapes = Mapping[str, tuple[int, ...]]  # of parameters, by path

CHANGES_NO_WEIGHT = 'model.dropout.'
"""Fields that are carried where the other side has them, and are no reason to refuse where it has not."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor of the other side, and the parameter (or parameters, side by side) that it is here.

    name: its name; {n} counts the layers, which are one array with a leading axis here.
    paths: 'decoder/layers/self_attention/query'; several paths where one tensor holds several parameters.
    axes: '(H K) D -> D H K': its axes, then those of one parameter (of one layer). Brackets hold what is one axis of
      the tensor, * counts the parameters in `paths`, and 1 is an axis of that length.
    when: (field, its values) where the row counts only under a choice. Besides, a row counts where its parameters are.
    """

    name: str
    paths: tuple[str, ...]
    axes: str
    when: tuple[str, tuple[str, ...]] | None = None

    def counts(self, fields: Mapping[str, Any], shapes: Shapes) -> bool:
        """Whether a model with these fields and parameters has this tensor."""
        chosen = self.when is None or fields[self.when[0]] in self.when[1]
        return chosen and all(path in shapes for path in self.paths)

    def names(self, shapes: Shapes) -> Iterator[str]:
        """The tensor's name in each layer (one name where it does not lie in a layer)."""
        layers = shapes[self.paths[0]][0] if '{n}' in self.name else 1
        return (self.name.replace('{n}', str(layer)) for layer in range(layers))

    def shape(self, shapes: Shapes) -> tuple[int, ...]:
        """The tensor's shape."""
        groups, _, sizes = self._axes(shapes)
        return tuple(int(np.prod([sizes[axis] for axis in group])) for group in groups)

    def join(self, tensors: Iterable[np.ndarray], shapes: Shapes, dtype: Any) -> dict[str, np.ndarray]:
        """{path: parameter} from the tensor of each layer in turn."""
        groups, ours, sizes = self._axes(shapes)
        theirs = [axis for group in groups for axis in group]
        order = [theirs.index(axis) for axis in ('*', *ours)]
        joined = {path: np.empty(shapes[path], dtype) for path in self.paths}
        for layer, tensor in enumerate(tensors):
            parts = tensor.reshape([sizes[axis] for axis in theirs]).transpose(order)
            for path, part in zip(self.paths, parts, strict=True):
                here = joined[path][layer] if '{n}' in self.name else joined[path]
                here[...] = part.reshape(here.shape)
        return joined

    def split(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """{name: tensor} of every layer from the parameters."""
        shapes = {path: params[path].shape for path in self.paths}
        groups, ours, sizes = self._axes(shapes)
        order = [('*', *ours).index(axis) for group in groups for axis in group]
        tensors = {}
        for layer, name in enumerate(self.names(shapes)):
            here = [params[path][layer] if '{n}' in self.name else params[path] for path in self.paths]
            parts = np.stack([part.reshape([sizes[axis] for axis in ours]) for part in here])
            tensors[name] = np.ascontiguousarray(parts.transpose(order).reshape(self.shape(shapes)))
        return tensors

    def _axes(self, shapes: Shapes) -> tuple[list[list[str]], list[str], dict[str, int]]:
        """(axes of the tensor in their groups, axes of a parameter without those of length 1, sizes)."""
        left, right = self.axes.split(' -> ')
        shape = shapes[self.paths[0]][1 if '{n}' in self.name else 0 :]
        sizes = {'*': len(self.paths)} | dict(zip(right.split(), shape, strict=True))
        groups = [re.sub('[()1]', '', group).split() for group in re.findall(r'\([^)]*\)|\S+', left)]
        if not any('*' in group for group in groups):
            groups[0] = ['*', *groups[0]]  # of size 1
        return groups, [axis for axis in right.split() if axis != '1'], sizes


@dataclasses.dataclass(frozen=True)
class Key:
    """A setting that is a field: the same value, or `read`/`write` of it.

    name: 'rope_parameters.rope_theta' lies in an object. aliases: other names of it, read in their order, all written.
    absent, null: the setting's value where there is none, or none is said (as absent, unless given); a function of the
      settings before it; … where there has to be one.
    also: further fields that are set with it, of which nothing is written.
    """

    name: str
    field: str
    absent: Any = ...
    null: Any = ...
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    aliases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def may_set(self) -> tuple[str, ...]:
        return (self.field, *self.also)

    def fields(self, value: Any) -> Fields:
        if self.read is None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise UserError(f'{self.name}={json.dumps(value)}: must be a number')
        try:
            value = value if self.read is None else self.read(value)
        except (TypeError, ValueError, AttributeError):
            raise UserError(f'{self.name}={json.dumps(value)}: cannot be read as config.{self.field}') from None
        return dict.fromkeys(self.may_set, value)

    def setting(self, cfg: Config) -> Any:
        value = rules.get(cfg, self.field)
        return value if self.write is None else self.write(value)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting whose values each stand for fields (or for nothing, where only that value is supported).

    Of two values that stand for the same fields, the first is written.
    """

    name: str
    values: Mapping[Any, Mapping[str, Any]]
    absent: Any = ...
    aliases: tuple[str, ...] = ()
    null = ...
    also = ()

    @property
    def may_set(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for fields in self.values.values() for path in fields))

    def fields(self, value: Any) -> Fields:
        for known, fields in self.values.items():
            if known == value and type(known) is type(value):
                return dict(fields)
        supported = ', '.join(map(json.dumps, self.values))
        raise UserError(f'{self.name}={json.dumps(value)}: not supported; only {supported}')

    def setting(self, cfg: Config) -> Any:
        for value, fields in self.values.items():
            if all(rules.get(cfg, path) == wanted for path, wanted in fields.items()):
                return value
        path = self._obstacle(cfg)
        allowed = dict.fromkeys(str(fields[path]) for fields in self.values.values() if path in fields)
        raise rules.refused(path, rules.get(cfg, path), f'one of {", ".join(allowed)} for its {self.name}')

    def _obstacle(self, cfg: Config) -> str:
        """The first field whose value none of the choices has, or else the last field of all."""
        for path in self.may_set:
            if all(fields.get(path) != rules.get(cfg, path) for fields in self.values.values()):
                return path
        return self.may_set[-1]


@dataclasses.dataclass(frozen=True)
class Demand:
    """What the settings have to fulfil together: `name` is refused with `text` where `holds` does not."""

    name: str
    holds: Callable[[Settings], bool]
    text: str


@dataclasses.dataclass(frozen=True)
class Layout:
    """One kind of model as it is written elsewhere.

    name, model_type: as its config.json calls it.
    fields: what every such model is, unless `keys` says otherwise; a value may be a function of the settings.
    renamed: (pattern, replacement) from older or shorter names to those of `rows`.
    copies: (name, name of the tensor that it holds once more). A file may have it, but not with other numbers.
    ignored: patterns of tensors that carry nothing.
    """

    name: str
    model_type: str
    fields: Mapping[str, Any]
    keys: tuple[Key | Choice, ...]
    rows: tuple[Row, ...]
    demands: tuple[Demand, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()


def fields_of(layout: Layout, settings: Settings) -> Fields:
    """The fields of a model with these settings (the content of a config.json).

    Raises:
      UserError: a setting is missing or asks for something that is not supported; it is named.
    """
    known: Settings = {}
    fields: Fields = {}
    for key in layout.keys:
        known[key.name] = value = _setting(key, settings, known)
        fields |= (found := key.fields(value))
        if isinstance(key, Key) and any(said is not None for said in _values(key, settings)):  # not what follows
            limits.refuse_beyond(key.field, found[key.field], f'{key.name}={json.dumps(value)}')
    for demand in layout.demands:
        if not demand.holds(known):
            raise UserError(f'{demand.name}={json.dumps(known[demand.name])}: must be {demand.text}')
    return {path: value(known) if callable(value) else value for path, value in layout.fields.items()} | fields


def settings_of(layout: Layout, cfg: Config) -> Settings:
    """The settings of a model with this configuration: those from which `fields_of` makes it again.

    Raises:
      UserError: this layout cannot express the configuration; the field is named.
    """
    settings: Settings = {'architectures': [layout.name], 'model_type': layout.model_type}
    said = {path for key in layout.keys for path in key.may_set}
    # Before the rest, as they say most plainly what kind of model it is, and the family before all.
    for path in sorted(layout.fields, key=lambda path: path != 'model.family'):
        if path not in said and not callable(layout.fields[path]):
            _refuse_another(cfg, path, layout.fields[path])
    known = {key.name: key.setting(cfg) for key in layout.keys}
    for demand in layout.demands:
        if not demand.holds(known):
            field = next(key.may_set[0] for key in layout.keys if key.name == demand.name)
            raise rules.refused(field, rules.get(cfg, field), demand.text)
    for key in layout.keys:
        value = known[key.name]
        if value is not None or isinstance(key, Key):
            for name in (key.name, *key.aliases):
                _put(settings, name, value)
    fields = fields_of(layout, settings)
    companions = {path for key in layout.keys for path in key.also}
    for path, value in fields.items():
        if path not in companions and not path.startswith(CHANGES_NO_WEIGHT):
            _refuse_another(cfg, path, value)
    return settings


def _refuse_another(cfg: Config, path: str, value: Any) -> None:
    if rules.get(cfg, path) != value:
        raise rules.refused(path, rules.get(cfg, path), f'{value!r}')


def of_the_key(layout: Layout, error: UserError) -> UserError:
    """The error of a field, with the name of the setting that it came from, where one can be told."""
    field = str(error).partition('=')[0].removeprefix('config.')
    name = next((f'{key.name}: ' for key in layout.keys if field in key.may_set), '')
    return UserError(f'{name}{error}')


def _setting(key: Key | Choice, settings: Settings, known: Settings) -> Any:
    """The value of a setting, by any of its names, or what stands for none."""
    for value in _values(key, settings):
        if value is None and isinstance(key, Choice) and None in key.values:
            return None
        if value is not None:
            return value
        if key.null is not ...:
            return key.null
    if key.absent is ...:
        raise UserError(f'{key.name}: missing')
    return key.absent(known) if callable(key.absent) else key.absent


def _values(key: Key | Choice, settings: Settings) -> Iterator[Any]:
    """What the settings hold under the names of a key, in their order; nothing where they hold none of them."""
    for name in (key.name, *key.aliases):
        node: Any = settings
        *groups, last = name.split('.')
        for group in groups:
            node = node.get(group)
            if not isinstance(node, dict | None):
                raise UserError(f'{group}={json.dumps(node)}: must be an object')
            node = node or {}
        if last in node:
            yield node[last]


def _put(settings: Settings, name: str, value: Any) -> None:
    *groups, last = name.split('.')
    for group in groups:
        settings = settings.setdefault(group, {})
    settings[last] = value
