"""The space of designs: how a valid configuration is drawn, in which everything that may vary does.

What goes with what stands here a second time, apart from jaxformer/rules.py: where the rules refuse a draw, one of the
two is wrong.
"""

import copy
import functools
import random
from pathlib import Path

from jaxformer import config
from jaxformer.choices import CHOICES

BASE = Path(__file__).parents[2] / 'configs' / 'base.py'

# Small, and all different, so that a mixed-up axis cannot pass. Neither H·K nor H·E is the width of the model.
SIZES = {'d_model': 10, 'num_heads': 6, 'd_k': 4, 'd_v': 7, 'd_ff': 11, 'recurrent.width': 9}
OTHER_SIZES = {'d_model': 9, 'num_heads': 4, 'd_k': 6, 'd_v': 5, 'd_ff': 13, 'recurrent.width': 7}
MAX_LENGTH, RANK, BUCKETS = 15, 2, 5
TEXT = {'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((14,),)}
OF_FAMILY = {
    'seq2seq': {'data.buckets': ((5, 6),)},
    'lm': TEXT,
    'mlm': TEXT,
    'classifier': TEXT | {'data.name': 'stdlib_labels'},
}
STACKS = {'seq2seq': ('encoder', 'decoder'), 'lm': ('decoder',), 'mlm': ('encoder',), 'classifier': ('encoder',)}
FREE = (  # fields whose every choice goes with every other field
    'feed_forward', 'feed_forward_bias', 'gelu', 'attention.bias', 'sinusoidal.layout', 'rotary.layout',
    'relative.tables', 'embedding.scale', 'precision.parameters', 'precision.softmax',
)  # fmt: skip
OF_SOME = {  # fields of what only some families have
    'embedding.tables': ('seq2seq',),
    'embedding.softmax': ('seq2seq', 'lm', 'mlm'),
    'embedding.softmax_bias': ('seq2seq', 'lm', 'mlm'),
    'embedding.logit_scale': ('seq2seq', 'lm', 'mlm'),
    'head.transform': ('mlm',),
    'head.pooling': ('classifier',),
    'head.pooler': ('classifier',),
}
SOME = {  # of the values of other fields; what takes long to compile is rare
    'remat': ('none', 'none', 'none', 'block'),
    'scan_unroll': (1, 1, 1, 1, 0, 2),
    'norm_epsilon': (1e-6, 1e-3),
    'ids.pad': (0, 3),
    'ids.start': (1, 4),
    'attention.window': (2, 1, 3),
    'attention.grid_width': (2, 3),
    'attention.global_positions': ((0,), (1, 3)),
    'conv.width': (3, 1, 2),
    'conv.dilations': ((1,), (2, 1)),
    'relative.max_distance': (4, 9),
    'rotary.base': (10_000.0, 50.0),
    'embedding.token_types': (0, 2),
}


def valid_changes(number):
    """Design `number`: changes to configs/base.py that make a valid configuration, {dotted field: value}."""
    rng = random.Random(number)

    def choice(name, unless=()):
        return rng.choice([value for value in CHOICES[f'model.{name}'] if value not in unless])

    family = choice('family')
    sizes = rng.choice((SIZES, OTHER_SIZES))
    model = {**sizes, 'family': family, 'num_kv_heads': rng.choice((sizes['num_heads'], 2, 1))}
    model |= {'vocab_size': 0, 'max_length': MAX_LENGTH, 'linformer.rank': RANK, 'relative.num_buckets': BUCKETS}
    model |= {name: choice(name) for name in FREE} | {name: rng.choice(values) for name, values in SOME.items()}
    model |= {name: choice(name) for name, families in OF_SOME.items() if family in families}
    if model.get('head.pooling') == 'tokens':
        model['head.pooler'] = 'off'
    rate = rng.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.3))
    model |= {f'dropout.{site}': rate for site in ('attention', 'residual', 'feed_forward', 'embedding')}

    mixed = rng.random() < 0.5  # the other half is of attention alone: most choices are about it
    used = set()
    for stack in STACKS[family]:
        no_mixer = {'linformer'} if stack == 'decoder' else ()
        model[f'{stack}_mixer'] = choice(f'{stack}_mixer', no_mixer) if mixed else 'attention'
        model[f'{stack}_layers'] = rng.choice((1, 2))
        used.add(model[f'{stack}_mixer'])

    biased = set() if used <= {'attention'} else {'alibi', 't5_relative'}
    model['position'] = choice('position', biased | (set() if used <= {'attention', 'linformer'} else {'rotary'}))
    model['attention.pattern'] = choice('attention.pattern') if used <= {'attention', 'static'} else 'full'
    windows = model['attention.window'] if model['attention.pattern'] == 'window2d' else 1
    model['attention.shift'] = rng.randrange(windows)
    scored = family == 'seq2seq' or used <= {'attention', 'linformer'}
    angles = {'additive'} if model['position'] == 'rotary' else set()
    model['attention.score'] = choice('attention.score', angles) if scored else 'scaled_dot'

    model['residual'] = choice('residual')
    model['norm'] = choice('norm', {'none'} if model['residual'] == 'deepnorm' else ())
    model['embedding.norm'] = choice('embedding.norm', {'on'} if model['norm'] == 'none' else ())

    if model['precision.softmax'] == 'float32' and (family == 'seq2seq' or 'attention' in used):
        model['attention.kernel'] = choice('attention.kernel')
        model['attention.block'] = rng.choice((2, 3, 512))
        if model['attention.kernel'] == 'library':
            model['d_v'] = model['d_k']  # it takes no other, and gives way
    if model['remat'] == 'block':
        model['remat'] = rng.choice(('block', 'dots'))

    changes = {f'model.{name}': value for name, value in model.items()} | OF_FAMILY[family]
    changes |= {'eval.max_decode_length': 8}
    changes['data.labels'] = 'syntax' if model.get('head.pooling') == 'tokens' else 'package'
    if family in ('lm', 'mlm') and used <= {'attention', 'rnn', 'lstm', 'gru'}:
        changes['data.packing'] = rng.choice(CHOICES['data.packing'])
    return changes


@functools.cache
def _base():
    return config.load(BASE)


def resolved(changes):
    """configs/base.py with changes."""
    edited = copy.deepcopy(_base())
    config.override(edited, changes)
    return config.resolve(edited)
