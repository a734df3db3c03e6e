"""What cannot work is refused at the door, with field and reason; what is let in can be built and traced."""

import ast
import copy
import dataclasses
import functools
import inspect
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxformer import choices, config, losses, rules
from jaxformer.errors import UserError
from jaxformer.model import transformer

BASE = Path(__file__).parents[1] / 'configs' / 'base.py'
TEXT = {'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((12,),)}
FAMILIES = {
    'seq2seq': {'data.buckets': ((9, 7), (12, 11))},
    'lm': {'model.family': 'lm', **TEXT},
    'mlm': {'model.family': 'mlm', **TEXT},
    'classifier': {'model.family': 'classifier', **TEXT, 'data.name': 'stdlib_labels'},
}
SIZES = {'model.d_model': 10, 'model.num_heads': 6, 'model.d_k': 4, 'model.d_v': 7, 'model.d_ff': 11}
SIZES |= {'model.num_layers': 2, 'model.vocab_size': 0, 'model.max_length': 12, 'eval.max_decode_length': 8}


@functools.cache
def _base():
    return config.load(BASE)


def resolved(changes):
    edited = copy.deepcopy(_base())
    config.override(edited, changes)
    return config.resolve(edited)


LM, MLM, CLASSIFIER = FAMILIES['lm'], FAMILIES['mlm'], FAMILIES['classifier']
LEARNED = {'model.position': 'learned', 'model.max_length': 30}

LM_OF_LSTM = {
    'model.family': 'lm', 'model.mixer': 'lstm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes',
    'data.buckets': ((16,),),
}  # fmt: skip
REFUSED = [  # (changes, field, part of the reason)
    # Sizes and heads
    ({'model.num_kv_heads': 3}, 'model.num_kv_heads', 'a divisor of model.num_heads=8'),
    ({'model.vocab_size': 4}, 'model.vocab_size', 'four are special'),
    ({'model.residual': 'deepnorm', 'model.norm': 'none'}, 'model.norm', 'residual grows'),
    ({'model.embedding.norm': 'on', 'model.norm': 'none'}, 'model.embedding.norm', 'no norm to apply'),
    (LM | {'model.embedding.tables': 'separate'}, 'model.embedding.tables', 'it reads one text'),
    (LM | {'model.head.transform': 'on'}, 'model.head.transform', 'no such part; mlm has'),
    (MLM | {'model.head.pooler': 'on'}, 'model.head.pooler', 'no such part; classifier has'),
    ({'model.head.pooling': 'mean'}, 'model.head.pooling', 'no such part; classifier has'),
    (CLASSIFIER | {'model.embedding.softmax': 'untied'}, 'model.embedding.softmax', 'no such part'),
    (CLASSIFIER | {'model.embedding.softmax_bias': 'on'}, 'model.embedding.softmax_bias', 'no such part'),
    (CLASSIFIER | {'model.embedding.logit_scale': 'rsqrt_d_model'}, 'model.embedding.logit_scale', 'no such part'),
    (
        CLASSIFIER | {'model.head.pooling': 'tokens', 'data.labels': 'syntax', 'model.head.pooler': 'on'},
        'model.head.pooler',
        'nothing is pooled',
    ),
    ({'model.conv.dilations': ()}, 'model.conv.dilations', 'one or more integers'),
    ({'model.conv.dilations': (1, 0)}, 'model.conv.dilations', 'one or more integers'),
    ({'model.ids.start': 37_000}, 'model.ids.start', 'below model.vocab_size=37000'),
    (MLM | {'model.ids.pad': 4}, 'model.ids.mask', 'padding is never predicted'),
    ({'train.masking.random': 0.3}, 'train.masking.random', 'at most 1 - train.masking.replaced=0.8'),
    # Mixers
    ({'model.mixer': 'linformer'}, 'model.decoder_mixer', 'each slot would hold the future'),
    (LM | {'model.decoder_mixer': 'linformer'}, 'model.decoder_mixer', 'each slot would hold the future'),
    *(
        ({'model.encoder_mixer': mixer, 'model.attention.pattern': 'local'}, 'model.encoder_mixer', reason)
        for mixer, reason in (('lstm', 'has no keys'), ('conv', 'has no keys'), ('linformer', 'slot per projection'))
    ),
    (LM | {'model.mixer': 'gru', 'model.attention.score': 'dot'}, 'model.decoder_mixer', 'gru scores nothing'),
    (MLM | {'model.mixer': 'static', 'model.attention.score': 'additive'}, 'model.encoder_mixer', 'scores nothing'),
    (LM | {'model.encoder_mixer': 'conv'}, 'model.encoder_mixer', 'has no encoder'),
    (MLM | {'model.decoder_layers': 5}, 'model.decoder_layers', 'has no decoder'),
    # Patterns and positions
    (
        LM_OF_LSTM | {'model.attention.kernel': 'blockwise'},
        'model.attention.kernel',
        'plain without a stack of attention',
    ),
    (
        {'model.attention.kernel': 'blockwise', 'model.precision.softmax': 'compute'},
        'model.precision.softmax',
        'float32 with model.attention.kernel=blockwise',
    ),
    ({'model.attention.shift': 1}, 'model.attention.shift', 'only window2d shifts'),
    (LM | {'model.kept_heads.cross': ((0,), (1,))}, 'model.kept_heads.cross', 'no such heads'),
    ({'model.encoder_mixer': 'conv', 'model.kept_heads.encoder': ((0,),)}, 'model.kept_heads.encoder', 'no such heads'),
    ({'model.num_layers': 2, 'model.kept_heads.decoder': ((0,),)}, 'model.kept_heads.decoder', 'each of the 2 layers'),
    ({'model.num_layers': 1, 'model.kept_heads.decoder': ((1, 0),)}, 'model.kept_heads.decoder', 'rising'),
    ({'model.num_layers': 1, 'model.kept_heads.decoder': ((8,),)}, 'model.kept_heads.decoder', 'from 0 to 7'),
    ({'model.num_layers': 2, 'model.kept_heads.cross': ((0,), (1, 2))}, 'model.kept_heads.cross', 'one shape'),
    (
        {'model.num_layers': 1, 'model.num_kv_heads': 2, 'model.kept_heads.cross': ((0, 1, 4),)},
        'model.kept_heads.cross',
        'as many of each key head',
    ),
    (MLM | {'train.teacher': 'runs/other'}, 'train.teacher', 'empty with model.family=mlm'),
    ({'train.spike_factor': 0.5}, 'train.spike_factor', 'more than 1'),
    ({'model.attention.pattern': 'window2d', 'model.attention.shift': 4}, 'model.attention.shift', 'window=4'),
    (
        {'model.attention.pattern': 'global_local', 'model.attention.global_positions': ()},
        'model.attention.global_positions',
        'one or more positions',
    ),
    ({'model.attention.global_positions': (-1,)}, 'model.attention.global_positions', 'from 0 to 2147483647'),
    ({'model.attention.global_positions': (2**31,)}, 'model.attention.global_positions', 'from 0 to 2147483647'),
    ({'model.conv.dilations': (1, 2**31)}, 'model.conv.dilations', 'from 0 to 2147483647'),
    ({'data.buckets': ((9, 2**31),)}, 'data.buckets', 'from 0 to 2147483647'),
    ({'model.position': 'rotary', 'model.d_k': 5}, 'model.d_k', 'even with model.position=rotary'),
    ({'model.position': 'rotary', 'model.encoder_mixer': 'static'}, 'model.encoder_mixer', 'no queries and keys'),
    ({'model.position': 'alibi', 'model.encoder_mixer': 'linformer'}, 'model.encoder_mixer', 'no scores of key'),
    (LM | {'model.position': 't5_relative', 'model.mixer': 'conv'}, 'model.decoder_mixer', 'no scores of key'),
    ({'model.position': 'rotary', 'model.attention.score': 'additive'}, 'model.attention.score', 'have no angle'),
    ({'model.position': 't5_relative', 'model.relative.max_distance': 16}, 'model.relative.max_distance', 'half of'),
    # Data
    ({'data.name': 'cmudict2'}, 'data.name', "did you mean 'cmudict'?"),
    ({'data.name': 'nonsense'}, 'data.name', 'or a TFDS name'),
    ({'data.name': 'stdlib'}, 'data.name', 'sort, parallel, help_pages with model.family=seq2seq'),
    ({'data.name': 'wmt14_translate/de-en', 'data.source': 'de'}, 'data.target', 'the name of a TFDS feature'),
    ({'data.name': 'parallel', 'data.target': 'b'}, 'data.source', 'set with data.name=parallel'),
    (CLASSIFIER | {'data.name': 'labelled'}, 'data.source', 'set with data.name=labelled'),
    (LM | {'data.targets': 'a'}, 'data.targets', 'whose examples are no pairs'),
    ({'data.tokenizer': 'bpe'}, 'data.tokenizer', 'native with data.name=cmudict'),
    (LM | {'data.tokenizer': 'native'}, 'data.tokenizer', 'characters, bytes, bpe or file'),
    (LM | {'data.tokenizer': 'file'}, 'data.tokenizer_file', 'set with data.tokenizer=file'),
    (CLASSIFIER | {'data.labels': 'syntax'}, 'model.head.pooling', 'tokens with data.labels=syntax'),
    (CLASSIFIER | {'model.head.pooling': 'tokens'}, 'model.head.pooling', 'first with data.labels=package'),
    (
        CLASSIFIER | {'data.name': 'labelled', 'data.source': 'a', 'model.head.pooling': 'tokens'},
        'model.head.pooling',
        'one label per line',
    ),
    (LM | {'data.packing': 'documents', 'model.mixer': 'conv'}, 'model.decoder_mixer', 'mixes what shares a row'),
    (MLM | {'data.packing': 'documents', 'model.mixer': 'static'}, 'model.encoder_mixer', 'mixes what shares a row'),
    ({'data.min_length': 13}, 'data.min_length', 'at most data.max_length=12'),
    # Lengths
    ({'data.buckets': ()}, 'data.buckets', 'at least one'),
    ({'data.buckets': ((9, 9), (9,))}, 'data.buckets', 'and (9,) is not'),
    (LM | {'data.buckets': ((9, 9),)}, 'data.buckets', '(length,) each with model.family=lm'),
    (LM | {'data.buckets': ((9,), (12,))}, 'data.buckets', 'text is cut into rows of one length'),
    ({'data.buckets': ((9, 9), (8, 12))}, 'data.buckets', 'ascending in both lengths, and (8, 12) comes after (9, 9)'),
    (CLASSIFIER | {'data.buckets': ((9,), (8,))}, 'data.buckets', 'ascending in length'),
    (LEARNED, 'model.max_length', 'at least 64 (the longest of data.buckets and eval.max_decode_length) with learned'),
    (MLM | LEARNED | {'data.buckets': ((31,),)}, 'model.max_length', 'at least 31'),
    (MLM | {'model.mixer': 'linformer', 'model.max_length': 11}, 'model.max_length', 'a static or linformer mixer'),
    # Searches
    ({'eval.num_best': 3}, 'eval.num_best', '1 with eval.search=greedy'),
    ({'eval.search': 'beam', 'eval.num_best': 5}, 'eval.num_best', 'at most eval.beam_size=4'),
    ({'eval.search': 'sampling'}, 'eval.search', "did you mean 'sample'?"),
    ({'eval.max_source_length': 0}, 'eval.max_source_length', 'at least 1'),
    ({'eval.temperature': 0}, 'eval.temperature', 'from 0.001 to 1000'),
    # Training and mesh
    ({'train.accumulation': 3}, 'train.accumulation', 'a divisor of train.batch_size=256'),
    ({'mesh.fsdp': -1}, 'mesh', 'more than one axis is -1'),
    ({'mesh.seq': 0}, 'mesh.seq', 'at least 1'),
    ({'mesh.strategy': 'ddp'}, 'mesh.strategy', "one of dp, fsdp, tp, fsdp+tp, sp, ''"),
    ({'mesh.strategy': 'fsdp', 'mesh.model': 2}, 'mesh.model', 'must be 1 with mesh.strategy=fsdp'),
    ({'mesh.strategy': 'fsdp', 'mesh.data': 2}, 'mesh.data', 'which divides the devices along fsdp'),
    ({'mesh.strategy': 'fsdp+tp', 'mesh.model': -1}, 'mesh.model', 'at least 1 with mesh.strategy=fsdp+tp'),
]


def refusal(changes):
    with pytest.raises(UserError) as caught:
        resolved(changes)
    return str(caught.value)


@pytest.mark.parametrize(('changes', 'field', 'reason'), REFUSED, ids=lambda part: str(part)[:60])
def test_what_cannot_work_is_refused_with_field_and_reason(changes, field, reason):
    message = refusal(changes)
    assert re.match(rf'config\.{re.escape(field)}[=:]', message) and reason in message and '\n' not in message, message


def test_every_rule_is_broken_by_some_case_above():
    """Every `yield` and `raise` of the rules is reached."""
    functions = [
        rules._model,
        rules._absent_stack,
        rules._heads,
        rules._ids,
        rules._mixers,
        rules._attention,
        rules._positions,
    ]
    functions += [rules._data, rules._lengths, rules._search, rules._train, rules._mesh]
    wanted = set()
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(inspect.cleandoc('\n' + ''.join(lines)))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Yield | ast.Raise)]
        wanted |= {(function.__name__, first + node.lineno - 1) for node in found}
    reached = set()

    def trace(frame, event, arg):
        if frame.f_code.co_filename != rules.__file__:
            return None
        reached.add((frame.f_code.co_name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    for changes, _, _ in REFUSED:
        try:
            sys.settrace(trace)
            resolved(changes)
        except UserError:
            pass
        finally:
            sys.settrace(before)
    assert len(wanted) > 30 and wanted <= reached, sorted(wanted - reached)


# Any configuration at all

_EDGES = (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 10**12, -1)
_SIZES = (0, 1, 2, 3, 6, 12, 40, -1)
VALUES = {
    **{path: choices for path, choices in config.CHOICES.items() if path.startswith(('model.', 'data.'))},
    'data.name': ('cmudict', 'copy', 'stdlib', 'text', 'stdlib_labels', 'labelled', 'no/such'),
    'data.source': ('', 'a'),
    'data.buckets': (((12,),), ((9, 7),), ((9, 7), (12, 11)), ((3,),), ((40,),), ((40, 3),), ()),
    'eval.max_decode_length': (1, 8, 40),
    **{f'model.{name}': _SIZES for name in ('d_model', 'num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff')},
    **{f'model.{name}': _SIZES for name in ('max_length', 'linformer.rank', 'conv.width', 'recurrent.width')},
    **{f'model.{name}': (0, 1, 2, 3) for name in ('num_layers', 'encoder_layers', 'decoder_layers', 'scan_unroll')},
    **{f'model.attention.{name}': _EDGES for name in ('window', 'grid_width', 'shift')},
    **{f'model.relative.{name}': (3, 4, 5, 8, 9, 64, 10**6) for name in ('num_buckets', 'max_distance')},
    'model.relative.max_distance': (1, 3, 9, 2**31 - 1),
    'model.attention.global_positions': ((), (0,), (3, 1), (-1,), (2**31 - 1,), (10**12,)),
    'model.conv.dilations': ((), (1,), (2, 1), (0,), (1, 40), (2**31,)),
    'model.rotary.base': (0.5, 1.0, 1e30),
    'model.norm_epsilon': (0.0, 1e-12, 1.0, 2.0),
    'model.ids.pad': (-2, -1, 0, 3, 12, 2**31),
    'model.ids.start': (-1, 0, 1, 12, 2**31),
    'model.ids.mask': (-1, 0, 4, 12, 2**31),
    'model.vocab_size': (0, 3, 5, 20, 2**31),
    'model.embedding.token_types': (-1, 0, 1, 3),
    'model.head.num_classes': (-1, 0, 1, 5),
    **{f'model.dropout.{site}': (-0.1, 0.0, 0.999, 1.0) for site in ('attention', 'residual', 'embedding')},
}


@st.composite
def any_changes(draw):
    """A family's base with up to six fields changed to anything."""
    fields = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=6, unique=True))
    drawn = {path: draw(st.sampled_from(VALUES[path])) for path in fields}
    return FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))] | SIZES | drawn


def trace(cfg):
    """Traces whatever a run of the model consists of: the gradient of a loss with dropout, and steps of decoding."""
    sizes = cfg.model.vocab_size or 13, cfg.model.head.num_classes or 3  # of the data
    model, params = transformer.build(cfg.model, *sizes), transformer.abstract_params(cfg.model, *sizes)
    rows = [jax.ShapeDtypeStruct((2, width), jnp.int32) for width in cfg.data.buckets[-1]]
    if cfg.data.packing == 'documents' and cfg.model.family in ('lm', 'mlm'):
        rows.append(rows[0])
    token = jax.ShapeDtypeStruct((2, 3), jnp.int32)

    def loss(params, *inputs):
        logits, _ = model.apply({'params': params}, *inputs, key_2=jnp.zeros(2, jnp.uint32), collect=('attention',))
        zeros = jnp.zeros(logits.shape[:2], jnp.int32)
        return losses.cross_entropy(logits, zeros, jnp.ones(zeros.shape), 0.1)

    jax.eval_shape(jax.grad(loss), params, *rows)
    if cfg.model.family in choices.WITH_DECODER:
        start = rows[0] if cfg.model.family == 'seq2seq' else 2

        def decode(params, start, tokens):
            length = max(cfg.eval.max_decode_length, 3)
            cache = model.apply({'params': params}, start, length, method='start_cache')
            return model.apply({'params': params}, tokens, cache, method='extend')

        call = decode if cfg.model.family == 'seq2seq' else lambda params, tokens: decode(params, start, tokens)
        jax.eval_shape(call, params, *([start] if cfg.model.family == 'seq2seq' else []), token)


COUNT = {'taken': 0, 'refused': 0}


_PATTERN = 'model.attention.pattern'


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(any_changes())
@example(LM | SIZES | {_PATTERN: 'global_local', 'model.attention.global_positions': (10**12,)})
@example(LM | SIZES | {_PATTERN: 'window2d', 'model.attention.grid_width': 2**31 - 1})
def check_any(changes):
    try:
        cfg = resolved(changes)
    except UserError as error:
        COUNT['refused'] += 1
        assert re.match(r'config\.[a-z_.]+(=.*: must be|: more than one)', str(error)), error
        assert '\n' not in str(error)
        return
    COUNT['taken'] += 1
    trace(cfg)


def test_any_configuration_is_refused_with_its_field_or_can_be_traced():
    COUNT.update(taken=0, refused=0)
    check_any()
    print(COUNT)
    assert min(COUNT.values()) > 40, COUNT


def test_a_tracing_that_fails_would_be_seen():
    """Past the door, a rotary model of an odd width fails: it takes the rule to keep it out."""
    cfg = resolved(SIZES | FAMILIES['lm'] | {'model.position': 'rotary'})
    model = dataclasses.replace(cfg.model, d_k=5)
    with pytest.raises((TypeError, ValueError)):
        trace(dataclasses.replace(cfg, model=model))
