"""Configuration: from a file of edits to a frozen, validated record.

One letter per dimension, here and everywhere (tensor names, einsum strings, docstrings, sharding rules):

  B batch      T query/target length   S key/source length   D d_model   H heads      G key/value heads
  K d_k        E d_v                   F d_ff                V vocabulary N layers     C cells run together

`configs/*.py` hold the fields with their defaults and comments (`configs/base.py` holds each once); the dataclasses
below have none. `load` → `override` → `resolve` gives a `Config`; nothing changes it afterwards.
"""

import copy
import dataclasses
import difflib
import hashlib
import json
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

from jaxformer import pyfile
from jaxformer.errors import UserError
from jaxformer.values import coerce


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    score: str


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
    tables: str
    softmax: str
    scale: str


@dataclasses.dataclass(frozen=True)
class DropoutConfig:
    attention: float
    residual: float
    feed_forward: float
    embedding: float


@dataclasses.dataclass(frozen=True)
class PrecisionConfig:
    parameters: str
    compute: str
    softmax: str


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    family: str
    vocab_size: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    d_k: int
    d_v: int
    d_ff: int
    num_layers: int
    encoder_layers: int
    decoder_layers: int
    mixer: str
    residual: str
    norm: str
    norm_epsilon: float
    position: str
    max_length: int
    feed_forward: str
    remat: str
    scan_unroll: int
    attention: AttentionConfig
    embedding: EmbeddingConfig
    dropout: DropoutConfig
    precision: PrecisionConfig


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    name: str
    learning_rate: float
    schedule: str
    warmup_steps: int
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float | None
    label_smoothing: float


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    num_steps: int
    batch_size: int
    log_every: int
    checkpoint_every: int
    keep_checkpoints: int
    nan_policy: str
    nan_limit: int
    log_example_ids: bool


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    split: str
    every: int
    decode_every: int
    batch_size: int
    max_decode_length: int


@dataclasses.dataclass(frozen=True)
class DataConfig:
    name: str
    dir: str
    buckets: tuple[tuple[int, int], ...]
    shuffle: bool
    num_examples: int
    min_length: int
    max_length: int
    num_symbols: int


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: int
    fsdp: int
    model: int
    seq: int


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    compilation_cache: str
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int
    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    eval: EvalConfig
    data: DataConfig
    mesh: MeshConfig
    runtime: RuntimeConfig


CHOICES: Mapping[str, tuple[str, ...]] = {
    'model.family': ('seq2seq',),
    'model.mixer': ('attention',),
    'model.residual': ('post', 'pre', 'branch', 'none'),
    'model.norm': ('layernorm', 'rmsnorm', 'none'),
    'model.position': ('sinusoidal', 'learned', 'none'),
    'model.feed_forward': ('relu', 'gelu', 'silu', 'geglu', 'swiglu', 'none'),
    'model.remat': ('none', 'block'),
    'model.attention.score': ('scaled_dot', 'dot'),
    'model.embedding.tables': ('shared', 'separate'),
    'model.embedding.softmax': ('tied', 'untied'),
    'model.embedding.scale': ('sqrt_d_model', 'none'),
    'model.precision.parameters': ('float32', 'bfloat16'),
    'model.precision.compute': ('float32', 'bfloat16'),
    'model.precision.softmax': ('float32', 'compute'),
    'optim.name': ('adam', 'sgd'),
    'optim.schedule': ('noam', 'constant', 'linear', 'cosine'),
    'train.nan_policy': ('stop', 'skip'),
    'eval.split': ('train', 'dev', 'test'),
    'data.name': ('cmudict', 'copy', 'reverse', 'sort'),
}
"""What a categorical field may be. The code that reads a field has a table with the same keys."""


def load(path: str | Path) -> ml_collections.ConfigDict:
    """Returns what `get_config()` of a configuration file (`configs/x.py`) gives.

    Raises:
      UserError: there is no such file, it fails, or it gives something else than a ConfigDict.
    """
    get_config = pyfile.run(path, needs=('get_config',))['get_config']
    try:
        config = get_config()
    except Exception as error:  # whatever a person's file may raise
        raise pyfile.failure(path, error) from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise UserError(f'{path}: get_config() gives {type(config).__name__}, not a ConfigDict; see configs/base.py')
    return config


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


def resolve(config: ml_collections.ConfigDict) -> 'Config':
    """Turns a ConfigDict into the frozen record and validates it."""
    _refuse_rounded_head_width(config)
    return from_dict(ml_collections.FrozenConfigDict(config).as_configdict().to_dict())


def _refuse_rounded_head_width(config: ml_collections.ConfigDict) -> None:
    """d_k = d_model // num_heads must not round silently; a d_k that was set explicitly is free (AIAYN Table 3, B)."""
    if 'model' not in config or not {'d_model', 'num_heads', 'd_k', 'd_v'} <= set(config.model):
        return  # from_dict names what is missing
    d_model, num_heads = config.model.d_model, config.model.num_heads
    if num_heads < 1:
        raise _refused('model.num_heads', num_heads, 'at least 1')
    if d_model % num_heads == 0:
        return
    probe = copy.deepcopy(config)
    probe.model.d_model = (d_model // num_heads + 1) * num_heads
    if derived := [name for name in ('d_k', 'd_v') if probe.model[name] != config.model[name]]:
        remedy = ' and '.join(f'model.{name}' for name in derived)
        raise _refused('model.d_model', d_model, f'a multiple of model.num_heads={num_heads}, or set {remedy}')


def from_dict(values: Mapping[str, Any]) -> 'Config':
    """The inverse of `to_dict`: builds and validates a `Config`. Keys must equal fields; lists become tuples."""
    cfg = _build(Config, values, '')
    validate(cfg)
    return cfg


def to_dict(cfg: 'Config') -> dict[str, Any]:
    """Nested plain dict of every field; tuples stay tuples (JSON makes lists of them)."""
    return dataclasses.asdict(cfg)


def flatten(cfg: 'Config') -> dict[str, Any]:
    """`{'model.d_model': 512, …}`: every field by its dotted path."""
    return {path: _get(cfg, path) for path, _ in _leaves(Config)}


def canonical_json(cfg: 'Config') -> str:
    """One text per resolved configuration: sorted keys, no blanks, numbers by their field's type."""
    return json.dumps(to_dict(cfg), sort_keys=True, separators=(',', ':'), allow_nan=False)


def config_hash(cfg: 'Config', without: tuple[str, ...] = ()) -> str:
    """Twelve hex digits of the SHA-256 of the canonical JSON, leaving out the top-level fields in `without`."""
    values = {key: value for key, value in to_dict(cfg).items() if key not in without}
    text = json.dumps(values, sort_keys=True, separators=(',', ':'), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def diff(a: 'Config', b: 'Config') -> dict[str, tuple[Any, Any]]:
    """`{path: (value in a, value in b)}` of the fields that differ."""
    values_a, values_b = flatten(a), flatten(b)
    return {path: (values_a[path], values_b[path]) for path in values_a if values_a[path] != values_b[path]}


def validate(cfg: 'Config') -> None:
    """Refuses what cannot work, before any device is touched. Changes nothing.

    Raises:
      UserError: names the field, its value and what is allowed.
    """
    for path, choices in CHOICES.items():
        if (value := _get(cfg, path)) not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise _refused(path, value, f'one of {", ".join(choices)}{hint}')
    for path, low, high in _RANGES:
        value = _get(cfg, path)
        most = min(high, 2**31 - 1) if isinstance(value, int) else high  # integers are int32 on the device
        if value is not None and not (low <= value <= most and value < math.inf):
            open_ended = high == math.inf and not value > most
            raise _refused(path, value, f'a finite number, at least {low}' if open_ended else f'from {low} to {most}')
    model, data = cfg.model, cfg.data
    for path in ('model.dropout.attention', 'model.dropout.residual', 'model.dropout.feed_forward',
                 'model.dropout.embedding', 'optim.label_smoothing', 'optim.beta1', 'optim.beta2'):  # fmt: skip
        if not 0 <= (value := _get(cfg, path)) < 1:
            raise _refused(path, value, 'from 0 up to but not including 1')
    if model.num_heads % model.num_kv_heads:
        raise _refused('model.num_kv_heads', model.num_kv_heads, f'a divisor of model.num_heads={model.num_heads}')
    if 0 < model.vocab_size < 5:
        raise _refused('model.vocab_size', model.vocab_size, '0 (from the data) or at least 5 (four are special)')
    _validate_buckets(cfg)
    if data.min_length > data.max_length:
        raise _refused('data.min_length', data.min_length, f'at most data.max_length={data.max_length}')
    if [cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.model, cfg.mesh.seq].count(-1) > 1:
        raise UserError('config.mesh: more than one axis is -1; only one can take the devices that are left')
    for path in ('mesh.data', 'mesh.fsdp', 'mesh.model', 'mesh.seq'):
        if _get(cfg, path) == 0:
            raise _refused(path, 0, '-1 (all devices that are left) or at least 1')


def _validate_buckets(cfg: 'Config') -> None:
    buckets = cfg.data.buckets
    if not buckets:
        raise _refused('data.buckets', buckets, 'at least one (source length, target length)')
    for low, high in zip(((1, 1), *buckets), buckets, strict=False):
        if high[0] < low[0] or high[1] < low[1]:
            raise _refused('data.buckets', buckets, f'ascending in both lengths, and {high} comes after {low}')
    longest = max(buckets[-1][0], buckets[-1][1], cfg.eval.max_decode_length)
    if cfg.model.position == 'learned' and longest > cfg.model.max_length:
        raise _refused(
            'model.max_length',
            cfg.model.max_length,
            f'at least {longest} (the longest of data.buckets and eval.max_decode_length) with learned positions',
        )


_RANGES: tuple[tuple[str, float, float], ...] = (
    ('seed', 0, 2**31 - 1),
    *((f'model.{name}', 1, math.inf) for name in ('d_model', 'num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff')),
    *((f'model.{name}', 1, math.inf) for name in ('num_layers', 'encoder_layers', 'decoder_layers', 'max_length')),
    ('model.vocab_size', 0, math.inf),
    ('model.scan_unroll', 0, math.inf),
    ('model.norm_epsilon', 1e-12, 1),  # with 0 the norm of a row of zeros is not a number
    ('optim.learning_rate', 0, math.inf),
    ('optim.warmup_steps', 0, math.inf),
    ('optim.epsilon', 1e-20, 1),  # with 0 a parameter without gradient becomes not a number
    ('optim.weight_decay', 0, math.inf),
    ('optim.clip_norm', 1e-12, math.inf),
    *((f'train.{name}', 1, math.inf) for name in ('num_steps', 'batch_size', 'log_every', 'checkpoint_every')),
    *((f'train.{name}', 1, math.inf) for name in ('keep_checkpoints', 'nan_limit')),
    ('eval.every', 0, math.inf),
    ('eval.decode_every', 0, math.inf),
    ('eval.batch_size', 1, math.inf),
    ('eval.max_decode_length', 1, math.inf),
    ('data.num_examples', 10, 10**7),
    ('data.min_length', 1, math.inf),
    ('data.max_length', 1, math.inf),
    ('data.num_symbols', 1, 10_000),
    *((f'mesh.{name}', -1, math.inf) for name in ('data', 'fsdp', 'model', 'seq')),
)
"""(field, least, greatest) for every number."""


def _refused(path: str, value: Any, allowed: str) -> UserError:
    return UserError(f'config.{path}={value!r}: must be {allowed}')


def _get(cfg: Any, path: str) -> Any:
    for name in path.split('.'):
        cfg = getattr(cfg, name)
    return cfg


def _leaves(cls: type, prefix: str = '') -> list[tuple[str, Any]]:
    """(dotted path, type) of every field below a dataclass."""
    leaves: list[tuple[str, Any]] = []
    for name, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        leaves += _leaves(hint, f'{prefix}{name}.') if nested else [(f'{prefix}{name}', hint)]
    return leaves


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
