"""What a configuration may be: each field by `choices.py`, and no combination that cannot work; with the reason."""

import difflib
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from jaxformer.choices import (
    BELOW_ONE,
    CHOICES,
    DATA_KINDS,
    KIND_OF_FAMILY,
    NEEDED_AS,
    NEEDED_FILES,
    RANGES,
    STRATEGIES,
    TUPLES,
    WITH_DECODER,
    WITH_ENCODER,
)
from jaxformer.errors import UserError
from jaxformer.schema import Config

Problem = tuple[str, str]  # (field, what it must be), for `refused`


def validate(cfg: Config) -> None:
    """Refuses what cannot work, before any device is touched. Changes nothing.

    Raises:
      UserError: names the field, its value and what is allowed.
    """
    for path, choices in CHOICES.items():
        if (value := get(cfg, path)) not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise refused(path, value, f'one of {", ".join(choice or repr(choice) for choice in choices)}{hint}')
    for path, low, high in RANGES:
        value = get(cfg, path)
        most = min(high, 2**31 - 1) if isinstance(value, int) else high  # integers are int32 on the device
        if value is not None and not (low <= value <= most and value < math.inf):
            open_ended = high == math.inf and not value > most
            raise refused(path, value, f'a finite number, at least {low}' if open_ended else f'from {low} to {most}')
    for path in BELOW_ONE:
        if not 0 <= (value := get(cfg, path)) < 1:
            raise refused(path, value, 'from 0 up to but not including 1')
    for path in TUPLES:
        value = get(cfg, path)
        if any(not 0 <= number < 2**31 for number in _flat(value)):
            raise refused(path, value, f'of integers from 0 to {2**31 - 1}')
    for rule in (_model, _ids, _mixers, _attention, _kept_heads, _positions, _data, _lengths, _search, _train, _mesh):
        for path, allowed in rule(cfg):
            raise refused(path, get(cfg, path), allowed)


def refused(path: str, value: Any, allowed: str) -> UserError:
    """The error of a field that does not hold what it must."""
    return UserError(f'config.{path}={value!r}: must be {allowed}')


def get(cfg: Any, path: str) -> Any:
    """The value of a dotted field."""
    for name in path.split('.'):
        cfg = getattr(cfg, name)
    return cfg


def kind_of_data(name: str) -> str | None:
    """pairs | text | labelled, by data.name; None for a name that stands for nothing."""
    return 'pairs' if '/' in name else DATA_KINDS.get(name)


def stacks(cfg: Config) -> dict[str, str]:
    """{field of its mixer: the mixer} of each stack that the family has."""
    model = cfg.model
    used = {}
    if model.family in WITH_ENCODER:
        used['model.encoder_mixer'] = model.encoder_mixer
    if model.family in WITH_DECODER:
        used['model.decoder_mixer'] = model.decoder_mixer
    return used


def _model(cfg: Config) -> Iterable[Problem]:
    model = cfg.model
    if model.num_heads % model.num_kv_heads:
        yield 'model.num_kv_heads', f'a divisor of model.num_heads={model.num_heads}'
    if 0 < model.vocab_size < 5:
        yield 'model.vocab_size', '0 (from the data) or at least 5 (four are special)'
    if model.residual == 'deepnorm' and model.norm == 'none':
        yield 'model.norm', 'layernorm or rmsnorm with model.residual=deepnorm: its up-scaled residual grows without'
    if model.embedding.norm == 'on' and model.norm == 'none':
        yield 'model.embedding.norm', 'off with model.norm=none: there is no norm to apply'
    if model.embedding.tables == 'separate' and model.family != 'seq2seq':
        yield 'model.embedding.tables', f'shared with model.family={model.family}: it reads one text'
    yield from _absent_stack(model)
    yield from _heads(model)
    if model.head.pooler == 'on' and model.head.pooling == 'tokens':
        yield 'model.head.pooler', 'off with model.head.pooling=tokens: nothing is pooled'
    if any(dilation < 1 for dilation in model.conv.dilations) or not model.conv.dilations:
        yield 'model.conv.dilations', 'one or more integers of at least 1, used by the layers in turn'


def _absent_stack(model: Any) -> Iterable[Problem]:
    """Fields of a stack that the family does not have, where they say something of their own."""
    for stack, families in (('encoder', WITH_ENCODER), ('decoder', WITH_DECODER)):
        if model.family not in families:
            for field, follows in ((f'{stack}_mixer', 'mixer'), (f'{stack}_layers', 'num_layers')):
                if get(model, field) != (value := get(model, follows)):
                    yield (
                        f'model.{field}',
                        f'left at model.{follows}={value}: model.family={model.family} has no {stack}',
                    )


def _heads(model: Any) -> Iterable[Problem]:
    """Parts of a head that the family does not have: they would change nothing."""
    of_family = {
        'model.head.transform': ('off', ('mlm',)),
        'model.head.pooler': ('off', ('classifier',)),
        'model.head.pooling': ('first', ('classifier',)),
        'model.embedding.softmax': ('tied', ('seq2seq', 'lm', 'mlm')),
        'model.embedding.softmax_bias': ('off', ('seq2seq', 'lm', 'mlm')),
        'model.embedding.logit_scale': ('none', ('seq2seq', 'lm', 'mlm')),
    }
    for path, (without, families) in of_family.items():
        if get(model, path.removeprefix('model.')) != without and model.family not in families:
            yield path, f'{without} with model.family={model.family}, which has no such part; {", ".join(families)} has'


def _ids(cfg: Config) -> Iterable[Problem]:
    model = cfg.model
    for name in ('pad', 'start', 'mask'):
        if model.vocab_size and get(model.ids, name) >= model.vocab_size:
            yield f'model.ids.{name}', f'below model.vocab_size={model.vocab_size}'
    if model.family == 'mlm' and model.ids.mask == model.ids.pad:
        yield 'model.ids.mask', f'another id than model.ids.pad={model.ids.pad}: padding is never predicted'
    masking = cfg.train.masking
    if masking.replaced + masking.random > 1:
        yield 'train.masking.random', f'at most 1 - train.masking.replaced={masking.replaced}'


def _mixers(cfg: Config) -> Iterable[Problem]:
    used = stacks(cfg)
    pattern = cfg.model.attention.pattern
    for path, mixer in used.items():
        if mixer == 'linformer' and path == 'model.decoder_mixer':
            yield (
                path,
                'another mixer than linformer, which projects along the positions: each slot would hold the future, '
                'and no causal mask can take it out',
            )
        if pattern != 'full' and mixer not in ('attention', 'static'):
            reason = 'has a slot per projection, not a key per position' if mixer == 'linformer' else 'has no keys'
            yield path, f'attention or static with model.attention.pattern={pattern}: {mixer} {reason} to leave out'
    if cfg.model.attention.score != 'scaled_dot' and cfg.model.family != 'seq2seq':
        for path, mixer in used.items():
            if mixer not in ('attention', 'linformer'):
                yield path, f'attention with model.attention.score={cfg.model.attention.score}: {mixer} scores nothing'


def _attention(cfg: Config) -> Iterable[Problem]:
    attention = cfg.model.attention
    if attention.kernel != 'plain':
        if cfg.model.family != 'seq2seq' and 'attention' not in stacks(cfg).values():
            yield 'model.attention.kernel', 'plain without a stack of attention: only that has another kernel'
        if cfg.model.precision.softmax != 'float32':
            yield 'model.precision.softmax', f'float32 with model.attention.kernel={attention.kernel}, which sums it up'
    if attention.shift and attention.pattern != 'window2d':
        yield 'model.attention.shift', f'0 with model.attention.pattern={attention.pattern}: only window2d shifts'
    if attention.pattern == 'window2d' and attention.shift >= attention.window:
        yield 'model.attention.shift', f'below model.attention.window={attention.window}'
    if attention.pattern == 'global_local' and not attention.global_positions:
        yield 'model.attention.global_positions', 'one or more positions, counted from 0, with pattern global_local'


def _kept_heads(cfg: Config) -> Iterable[Problem]:
    model, kept = cfg.model, cfg.model.kept_heads
    mixers = stacks(cfg)
    for kind in ('encoder', 'decoder', 'cross'):
        if not (rows := getattr(kept, kind)):
            continue
        path = f'model.kept_heads.{kind}'
        mixer = mixers.get(f'model.{kind}_mixer') if kind != 'cross' else 'attention'
        if (kind == 'cross' and model.family != 'seq2seq') or mixer not in ('attention', 'static', 'linformer'):
            yield path, '(): there are no such heads in this model'
            continue
        layers = model.encoder_layers if kind == 'encoder' else model.decoder_layers
        shared = model.num_heads // model.num_kv_heads
        sizes = {tuple(sorted(Counter(head // shared for head in row).values())) for row in rows}
        if len(rows) != layers:
            yield path, f'a row for each of the {layers} layers'
        elif any(tuple(sorted({*row})) != row or not row or row[-1] >= model.num_heads for row in rows):
            yield path, f'numbers from 0 to {model.num_heads - 1} in each row, rising'
        elif len(sizes) > 1 or len({*next(iter(sizes))}) > 1:
            yield (
                path,
                (
                    'as many heads in each row, and as many of each key head that is left: the layers of a stack share '
                    f'one shape (model.num_kv_heads={model.num_kv_heads})'
                ),
            )


def _positions(cfg: Config) -> Iterable[Problem]:
    model = cfg.model
    if model.position in ('rotary', 'alibi', 't5_relative'):
        lacks = 'queries and keys to turn' if model.position == 'rotary' else 'scores of key positions to add to'
        for path, mixer in stacks(cfg).items():
            turned = mixer == 'linformer' and model.position == 'rotary'
            if mixer != 'attention' and not turned:
                others = 'sinusoidal, learned and none go with every mixer'
                yield path, f'attention with model.position={model.position}: {mixer} has no {lacks}; {others}'
    if model.position == 'rotary':
        if model.d_k % 2:
            yield 'model.d_k', 'even with model.position=rotary, which turns pairs of columns'
        if model.attention.score == 'additive':
            yield 'model.attention.score', 'a dot product with model.position=rotary: additive scores have no angle'
    if model.position == 't5_relative' and model.relative.max_distance <= model.relative.num_buckets // 2:
        yield 'model.relative.max_distance', f'above half of model.relative.num_buckets={model.relative.num_buckets}'


def _data(cfg: Config) -> Iterable[Problem]:
    data, family = cfg.data, cfg.model.family
    kind = kind_of_data(data.name)
    if kind is None:
        near = difflib.get_close_matches(data.name, DATA_KINDS, n=1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        names = f'one of {", ".join(DATA_KINDS)}, or a TFDS name with its config, such as wmt14_translate/de-en'
        yield 'data.name', f'{names}{hint}'
    elif kind != KIND_OF_FAMILY[family]:
        fitting = ', '.join(name for name, other in DATA_KINDS.items() if other == KIND_OF_FAMILY[family])
        yield 'data.name', f'one of {fitting} with model.family={family}'
    for name in ('source', 'target') if '/' in data.name else NEEDED_FILES.get(data.name, ()):
        if not get(data, name):
            what = 'the name of a TFDS feature' if '/' in data.name else NEEDED_AS[data.name]
            yield f'data.{name}', f'set with data.name={data.name}: {what}'
    if data.tokenizer != 'native' and data.name in ('cmudict', 'copy', 'reverse', 'sort'):
        yield 'data.tokenizer', f'native with data.name={data.name}, which has symbols of its own'
    if data.tokenizer == 'native' and kind in ('text', 'labelled'):
        yield 'data.tokenizer', f'characters, bytes, bpe or file with data.name={data.name}'
    if not data.tokenizer_file and data.tokenizer == 'file':
        yield 'data.tokenizer_file', 'set with data.tokenizer=file: the tokenizer.json of a model'
    if family == 'classifier' and data.name == 'stdlib_labels':
        wanted = 'tokens' if data.labels == 'syntax' else 'first'
        if (cfg.model.head.pooling == 'tokens') != (data.labels == 'syntax'):
            yield 'model.head.pooling', f'{wanted} with data.labels={data.labels}'
    if family == 'classifier' and data.name == 'labelled' and cfg.model.head.pooling == 'tokens':
        yield 'model.head.pooling', 'first or mean with data.name=labelled: it has one label per line'
    if data.packing == 'documents' and kind == 'text':
        for path, mixer in stacks(cfg).items():
            if mixer not in ('attention', 'rnn', 'lstm', 'gru'):
                yield path, f'attention or recurrent with data.packing=documents: {mixer} mixes what shares a row'
    if data.targets and kind != 'pairs':
        yield 'data.targets', f'empty with data.name={data.name}, whose examples are no pairs'
    if data.min_length > data.max_length:
        yield 'data.min_length', f'at most data.max_length={data.max_length}'


def _lengths(cfg: Config) -> Iterable[Problem]:
    buckets, model = cfg.data.buckets, cfg.model
    sides = 2 if model.family == 'seq2seq' else 1
    if not buckets:
        yield 'data.buckets', 'at least one (source length, target length)'
    for bucket in buckets:
        if len(bucket) != sides:
            shape = ('(length,)', '(source length, target length)')[sides - 1]
            yield 'data.buckets', f'{shape} each with model.family={model.family}, and {bucket} is not'
    if len(buckets) > 1 and kind_of_data(cfg.data.name) == 'text':
        yield 'data.buckets', f'one (length,) with data.name={cfg.data.name}: text is cut into rows of one length'
    for low, high in zip(((1,) * sides, *buckets), buckets, strict=False):
        if any(a > b for a, b in zip(low, high, strict=True)):
            yield (
                'data.buckets',
                f'ascending in {"both lengths" if sides == 2 else "length"}, and {high} comes after {low}',
            )
    if model.position == 'learned' or {'static', 'linformer'} & set(stacks(cfg).values()):
        longest = max(*buckets[-1], cfg.eval.max_decode_length if model.family in WITH_DECODER else 1)
        if longest > model.max_length:
            what = 'learned positions' if model.position == 'learned' else 'a static or linformer mixer'
            yield (
                'model.max_length',
                f'at least {longest} (the longest of data.buckets and eval.max_decode_length) with {what}',
            )


def _search(cfg: Config) -> Iterable[Problem]:
    if cfg.eval.num_best > 1 and cfg.eval.search != 'beam':
        yield 'eval.num_best', f'1 with eval.search={cfg.eval.search}, which finds one; beam finds several'
    elif cfg.eval.num_best > cfg.eval.beam_size:
        yield 'eval.num_best', f'at most eval.beam_size={cfg.eval.beam_size}'


def _train(cfg: Config) -> Iterable[Problem]:
    if cfg.train.batch_size % cfg.train.accumulation:
        yield 'train.accumulation', f'a divisor of train.batch_size={cfg.train.batch_size}'
    if 0 < cfg.train.spike_factor <= 1:
        yield 'train.spike_factor', 'more than 1, or 0 for none: half of all losses are above their median'
    if cfg.train.teacher and cfg.model.family == 'mlm':
        yield 'train.teacher', 'empty with model.family=mlm, whose masked tokens are drawn anew at each step'


def _mesh(cfg: Config) -> Iterable[Problem]:
    sizes = {axis: getattr(cfg.mesh, axis) for axis in ('data', 'fsdp', 'model', 'seq')}
    strategy = cfg.mesh.strategy
    for axis, size in sizes.items():
        if size == 0:
            yield f'mesh.{axis}', '-1 (all devices that are left) or at least 1'
        if strategy:
            divided = STRATEGIES[strategy]
            said = size not in (1, divided.get(axis)) and (axis, size) != ('data', -1)
            if said and not (axis in divided and size > 1):
                least, along = 'at least ' if axis in divided else '', ' and '.join(divided)
                yield f'mesh.{axis}', f'{least}1 with mesh.strategy={strategy}, which divides the devices along {along}'
    if not strategy and list(sizes.values()).count(-1) > 1:
        raise UserError('config.mesh: more than one axis is -1; only one can take the devices that are left')


def _flat(values: Any) -> Iterable[int]:
    return (number for value in values for number in (value if isinstance(value, tuple) else (value,)))
