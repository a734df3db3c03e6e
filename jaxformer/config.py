"""Configuration: from a file of edits to a frozen, validated record.

`configs/*.py` hold the fields with their defaults and comments (`configs/base.py` holds each once), `schema.py` their
types. `load` → `override` → `resolve` gives a `Config`; nothing changes it afterwards.
"""

import copy
import dataclasses
import difflib
import functools
import hashlib
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_collections

from jaxformer import files, history, pyfile, rules
from jaxformer.choices import CHOICES
from jaxformer.errors import UserError
from jaxformer.rules import validate
from jaxformer.schema import Config
from jaxformer.values import coerce

__all__ = ['CHOICES', 'validate']  # re-exported


def load(path: str | Path) -> ml_collections.ConfigDict:
    """Returns what `get_config()` of a configuration file (`configs/x.py`) gives, or the config.json of a run holds.

    No field of the latter is derived from others.

    Raises:
      UserError: there is no such file, it fails, or it gives something else than a ConfigDict.
    """
    if Path(path).suffix == '.json':
        return _recorded(Path(path))
    return given(path, pyfile.run(path, needs=('get_config',))['get_config'])


def given(path: str | Path, get_config: Callable[[], Any]) -> ml_collections.ConfigDict:
    """What `get_config()` of the file `path` gives.

    Raises:
      UserError: it fails, or gives something else than a ConfigDict.
    """
    try:
        config = get_config()
    except Exception as error:  # whatever a person's file may raise
        raise pyfile.failure(path, error) from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise UserError(f'{path}: get_config() gives {type(config).__name__}, not a ConfigDict; see configs/base.py')
    return config


def _recorded(path: Path) -> ml_collections.ConfigDict:
    try:
        values = files.read_json(path)
    except FileNotFoundError:
        raise UserError(f'{path}: no such file; give a configuration file or the config.json of a run') from None
    try:
        return ml_collections.ConfigDict(to_dict(from_record(values)))
    except UserError as error:
        raise UserError(f'{path}: {error}') from error


def override(config: ml_collections.ConfigDict, changes: Mapping[str, Any]) -> None:
    """Sets dotted fields of `config` in place, e.g. `{'model.num_heads': 4}`.

    A value may be text, as on a command line (`'1e-5'`, `'(1, 2)'`, `'None'`), or already of its type. Fields derived
    from a changed one follow it, unless they are set themselves.

    Raises:
      UserError: an unknown field (with the nearest name), or a value of the wrong type.
    """
    hints = dict(_leaves(Config))
    for path, value in changes.items():
        if path not in hints:
            raise UserError(f'config.{path}: no such field; did you mean config.{_nearest(path, hints)}?')
        parent, _, name = path.rpartition('.')
        node = config
        for part in parent.split('.') if parent else ():
            if part not in node:
                raise UserError(f'config.{parent}: missing; start from configs/base.py')
            node = node[part]
        node[name] = coerce(path, value, hints[path])


def resolve(config: ml_collections.ConfigDict) -> Config:
    """Turns a ConfigDict into the frozen record and validates it."""
    _refuse_rounded_head_width(config)
    return from_dict(ml_collections.FrozenConfigDict(config).as_configdict().to_dict())


def _refuse_rounded_head_width(config: ml_collections.ConfigDict) -> None:
    """d_k = d_model // num_heads must not round silently; a d_k that was set explicitly is free (AIAYN Table 3, B)."""
    if 'model' not in config or not {'d_model', 'num_heads', 'd_k', 'd_v'} <= set(config.model):
        return  # from_dict names what is missing
    d_model, num_heads = config.model.d_model, config.model.num_heads
    if num_heads < 1:
        raise rules.refused('model.num_heads', num_heads, 'at least 1')
    if d_model % num_heads == 0:
        return
    probe = copy.deepcopy(config)
    probe.model.d_model = (d_model // num_heads + 1) * num_heads
    if derived := [name for name in ('d_k', 'd_v') if probe.model[name] != config.model[name]]:
        remedy = ' and '.join(f'model.{name}' for name in derived)
        raise rules.refused('model.d_model', d_model, f'a multiple of model.num_heads={num_heads}, or set {remedy}')


def from_dict(values: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`: builds and validates a `Config`. Keys must equal fields; lists become tuples."""
    cfg = _build(Config, values, '')
    validate(cfg)
    return cfg


def from_record(values: Any) -> Config:
    """As `from_dict`, of what a run has written down; an older version has not yet had all of the fields.

    Raises:
      UserError: also for fields of a newer version.
    """
    filled, known = copy.deepcopy(values), fields()
    old = (path.split('.')[:-1] for path in known if path not in history.BEFORE)
    first = {'.'.join(groups[:depth]) for groups in old for depth in range(1, len(groups) + 1)}
    for path, value in history.BEFORE.items():
        *groups, name = path.split('.')
        node = filled
        for depth, group in enumerate(groups, 1):
            if isinstance(node, dict) and '.'.join(groups[:depth]) not in first:
                node.setdefault(group, {})  # the group itself came later
            node = node.get(group) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.setdefault(name, _at(filled, history.FOLLOWS[path], value) if path in history.FOLLOWS else value)
    for path in _paths(filled):
        if path not in known and not any(other.startswith(f'{path}.') for other in known):
            raise UserError(f'config.{path}: no such field in this version; use the one that wrote it')
    return from_dict(filled)


def _at(values: Any, path: str, default: Any) -> Any:
    """What nested dicts hold at a dotted path."""
    for name in path.split('.'):
        values = values.get(name, default) if isinstance(values, dict) else default
    return values


def _paths(values: Any, prefix: str = '') -> list[str]:
    """The dotted path of everything that is no group itself."""
    if not isinstance(values, dict):
        return [prefix.rstrip('.')] if prefix else []
    return [path for name, value in values.items() for path in _paths(value, f'{prefix}{name}.')]


def to_dict(cfg: Config) -> dict[str, Any]:
    """Nested plain dict of every field; tuples stay tuples (JSON makes lists of them)."""
    return dataclasses.asdict(cfg)


def flatten(cfg: Config) -> dict[str, Any]:
    """`{'model.d_model': 512, …}`: every field by its dotted path."""
    return {path: rules.get(cfg, path) for path, _ in _leaves(Config)}


def canonical_json(cfg: Config) -> str:
    """One text per resolved configuration: sorted keys, no blanks, numbers by their field's type."""
    return json.dumps(to_dict(cfg), sort_keys=True, separators=(',', ':'), allow_nan=False)


def config_hash(cfg: Config, without: tuple[str, ...] = ()) -> str:
    """Twelve hex digits of the SHA-256 of the canonical JSON.

    Left out are the top-level fields in `without`, and those of `history.NOT_IN_ID` that say nothing new.
    """
    values = {key: value for key, value in to_dict(cfg).items() if key not in without}
    for path in history.NOT_IN_ID:
        *groups, name = path.split('.')
        node = functools.reduce(dict.__getitem__, groups, values) if groups[0] in values else {}
        if name in node and node[name] == history.BEFORE[path]:
            del node[name]
    text = json.dumps(values, sort_keys=True, separators=(',', ':'), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def diff(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """`{path: (value in a, value in b)}` of the fields that differ."""
    values_a, values_b = flatten(a), flatten(b)
    return {path: (values_a[path], values_b[path]) for path in values_a if values_a[path] != values_b[path]}


def _leaves(cls: type, prefix: str = '') -> list[tuple[str, Any]]:
    """(dotted path, type) of every field below a dataclass."""
    leaves: list[tuple[str, Any]] = []
    for name, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        leaves += _leaves(hint, f'{prefix}{name}.') if nested else [(f'{prefix}{name}', hint)]
    return leaves


def fields() -> tuple[str, ...]:
    """The dotted path of every field."""
    return tuple(path for path, _ in _leaves(Config))


def _nearest(path: str, known: Mapping[str, Any]) -> str:
    """The known path most like `path`: the same last name first (a forgotten or wrong group), then the spelling."""
    last = path.rpartition('.')[2]
    same_name = [other for other in known if other.rpartition('.')[2] == last]
    return (same_name or difflib.get_close_matches(path, known, n=1, cutoff=0.0))[0]


def _build(cls: type, values: Any, prefix: str) -> Any:
    where = f'config.{prefix}'.rstrip('.')
    if not isinstance(values, Mapping):
        raise UserError(f'{where}={values!r}: must be a group of fields')
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            near = _nearest(f'{prefix}{name}', dict(_leaves(Config)))
            raise UserError(f'config.{prefix}{name}: no such field; did you mean config.{near}?')
    if missing := [name for name in hints if name not in values]:
        raise UserError(f'{where}: field {missing[0]} is missing; start from configs/base.py')
    built = {}
    for name, hint in hints.items():
        path = f'{prefix}{name}'
        nested = dataclasses.is_dataclass(hint)
        built[name] = _build(hint, values[name], f'{path}.') if nested else coerce(path, values[name], hint)  # type: ignore[arg-type]
    return cls(**built)
