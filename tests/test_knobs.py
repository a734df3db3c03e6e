"""No knob is dead: every field is read by the code, and every field of model and optimiser changes a number.

What the fields of train, eval, data, mesh and runtime do to a run is tested where they are read.
"""

import dataclasses
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quick import jit

import jaxformer
from jaxformer import choices, config, hyperparameters, objectives, optim, schema, sharding
from jaxformer.ablate import together
from jaxformer.data import corpus
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.predict import Decoder
from jaxformer.model import ops, transformer
from jaxformer.train.loop import train
from jaxformer.train.step import loss_fn

ROOT = Path(__file__).parents[1]
PACKAGE = str(Path(jaxformer.__file__).parent)

SMALL = {
    'model.vocab_size': 0,
    'model.d_model': 16,
    'model.num_heads': 2,
    'model.d_k': 6,
    'model.d_v': 7,
    'model.d_ff': 11,
    'model.num_layers': 1,
    'optim.learning_rate': 0.1,
    'optim.schedule': 'constant',
    'optim.warmup_steps': 0,
    'train.num_steps': 8,
}
LM = {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((9,),)}
MLM = LM | {'model.family': 'mlm'}
CLASSIFIER = LM | {'model.family': 'classifier', 'data.name': 'stdlib_labels'}


def resolved(changes):
    edited = config.load(ROOT / 'configs' / 'base.py')
    config.override(edited, SMALL | changes)
    return config.resolve(edited)


# Every field is read

DERIVES_ONLY = {'model.num_layers', 'model.mixer'}  # others follow them
NOT_USES = ('/schema.py', '/config.py', '/rules.py', '/choices.py')  # files that read fields to check or to copy them


@pytest.fixture
def reads(monkeypatch):
    """The (class, field) pairs that files of the package other than NOT_USES read while a test runs."""
    found = set()

    def recording(cls):
        original = cls.__getattribute__

        def read(self, name):
            caller = sys._getframe(1).f_code.co_filename
            if caller.startswith(PACKAGE) and not caller.endswith(NOT_USES):
                found.add((cls, name))
            return original(self, name)

        return read

    for cls in vars(schema).values():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            monkeypatch.setattr(cls, '__getattribute__', recording(cls))
    return found


def fields(cls=schema.Config, prefix=''):
    """{dotted path: (class, field)} of every field below a dataclass."""
    found = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type):
            found |= fields(field.type, f'{prefix}{field.name}.')
        else:
            found[f'{prefix}{field.name}'] = (cls, field.name)
    return found


OF_FAMILIES = {
    'seq2seq': {'model.position': 'learned', 'data.name': 'copy', 'data.buckets': ((5, 5),)},
    'lm': {'data.name': 'text', 'data.tokenizer': 'bpe', 'data.packing': 'documents', 'eval.split': 'train'},
    'mlm': {'data.name': 'text', 'data.tokenizer': 'bytes'},
    'classifier': {'data.name': 'labelled', 'data.tokenizer': 'characters', 'eval.split': 'test'},
}
DESIGNS = [  # in which every field of a model matters
    {'model.encoder_mixer': 'linformer', 'model.decoder_mixer': 'conv', 'model.feed_forward': 'gelu'},
    {'model.encoder_mixer': 'lstm', 'model.decoder_mixer': 'static', 'model.embedding.norm': 'on'},
    {'model.attention.pattern': 'global_local', 'model.position': 'rotary'},
    {'model.attention.pattern': 'window2d', 'model.position': 't5_relative'},
    LM | {'model.attention.kernel': 'blockwise'},
    MLM | {'model.head.transform': 'on', 'model.embedding.token_types': 2},
    CLASSIFIER,
]
SOURCES = [  # in which every field of the data matters
    {'data.name': 'parallel', 'data.source': 'setup.py', 'data.target': 'setup.py', 'data.tokenizer': 'bytes'},
    {'data.name': 'sort'},
    LM | {'data.tokenizer': 'file', 'data.tokenizer_file': 'setup.py'},
    CLASSIFIER,
]


def run(family, directory, name='', teacher=''):
    """Training, evaluation and decoding of three steps: the second and third meet numbers that are not finite."""
    source = directory / 'source.txt'
    lines = [f'{"even" if i % 2 == 0 else "odd"}\t{"spam " * (i % 3)}eggs {i}' for i in range(400)]
    source.write_text('\n'.join(lines) + '\n')
    changes = {
        'model.family': family,
        'optim.learning_rate': 1e30,
        'optim.weight_decay': 0.1,
        'optim.clip_norm': 1.0,
        'train.num_steps': 3,
        'train.batch_size': 4,
        'train.nan_policy': 'skip',
        'train.teacher': str(teacher),
        'eval.max_decode_length': 6,
        'data.source': str(source),
        'data.dir': str(directory / 'data'),
        'data.tokenizer_size': 300,
        'data.num_examples': 20,
        'data.max_length': 4,
        'data.buckets': ((32,),),
        'runtime.compilation_cache': jax.config.jax_compilation_cache_dir,
    }
    return train(resolved(changes | OF_FAMILIES[family]), directory / (name or family))


def trace_search(cfg):
    symbols = Vocabulary.of([str(i) for i in range(9)])
    decoder = Decoder(cfg, transformer.build(cfg.model, V), symbols, sharding.make_mesh(cfg.mesh))
    assert decoder.reading(['1 2'])
    decoder.search.lower(transformer.abstract_params(cfg.model, V), jnp.zeros((2, 5), jnp.int32), jnp.arange(2))


def test_every_field_is_read(reads, tmp_path):
    """By a run of each family, a model of each design, or a data set of each kind."""
    for family in choices.KIND_OF_FAMILY:
        split = OF_FAMILIES[family].get('eval.split', 'dev')
        assert {name.split('/')[0] for name in run(family, tmp_path)} == {split}
    run('lm', tmp_path, 'student', tmp_path / 'lm')
    for changes in DESIGNS:
        cfg = resolved(changes)
        jax.eval_shape(loss_of(cfg), transformer.abstract_params(cfg.model, V, Y))
    for search in config.CHOICES['eval.search']:
        trace_search(resolved({'eval.search': search}))
    for changes in SOURCES:
        corpus.prepared_directory(resolved(changes).data)
    cfg = resolved({'data.name': 'copy', 'data.dir': str(tmp_path / 'data'), 'cohort.mode': 'map', 'cohort.size': 2})
    assert together.Shared(cfg).fitting([cfg] * 3) == 2 and together.mode_of(cfg) == 'map'
    assert {path for path, pair in fields().items() if pair not in reads} == DERIVES_ONLY


def test_what_is_read_by_nobody_is_found(reads):
    cfg = resolved({})
    optim.schedule(cfg)
    assert (schema.OptimConfig, 'schedule') in reads and (schema.OptimConfig, 'epsilon') not in reads
    assert cfg.optim.epsilon == 1e-9
    assert (schema.OptimConfig, 'epsilon') not in reads  # read here, but not by the package


def test_what_derives_only_is_passed_on():
    model = resolved({'model.num_layers': 3, 'model.mixer': 'gru'}).model
    assert (model.encoder_layers, model.decoder_layers) == (3, 3)
    assert (model.encoder_mixer, model.decoder_mixer) == ('gru', 'gru')


# Every field of the model changes the parameters or the loss

OTHER_MIXERS = tuple(mixer for mixer in choices.MIXERS if mixer != 'attention')

RESHAPING = {
    'model.family': ('lm', 'mlm', 'classifier'),
    'model.vocab_size': (17,),
    'model.d_model': (18,),
    'model.num_heads': (4,),
    'model.num_kv_heads': (1,),
    'model.d_k': (8,),
    'model.d_v': (8,),
    'model.d_ff': (12,),
    'model.num_layers': (2,),
    'model.encoder_layers': (2,),
    'model.decoder_layers': (2,),
    'model.mixer': OTHER_MIXERS,
    'model.encoder_mixer': OTHER_MIXERS,
    'model.decoder_mixer': tuple(mixer for mixer in OTHER_MIXERS if mixer != 'linformer'),  # has no causal form
    'model.max_length': (70,),
    'model.feed_forward_bias': ('off',),
    'model.attention.bias': ('qkv', 'all'),
    'model.kept_heads.encoder': (((1,),),),
    'model.kept_heads.decoder': (((1,),),),
    'model.kept_heads.cross': (((1,),),),
    'model.linformer.rank': (3,),
    'model.conv.width': (4,),
    'model.recurrent.width': (9,),
    'model.relative.num_buckets': (9,),
    'model.relative.tables': ('per_layer',),
    'model.embedding.tables': ('separate',),
    'model.embedding.softmax': ('untied',),
    'model.embedding.norm': ('on',),
    'model.embedding.token_types': (2,),
    'model.embedding.softmax_bias': ('on',),
    'model.head.transform': ('on',),
    'model.head.pooler': ('on',),
    'model.head.num_classes': (5,),
    'model.precision.parameters': ('bfloat16',),
}

REVALUING = {
    'seed': (1,),
    'model.residual': ('pre', 'branch', 'sandwich', 'deepnorm', 'none'),
    'model.norm': ('rmsnorm', 'none'),
    'model.norm_epsilon': (0.1,),
    'model.position': ('learned', 'rotary', 'alibi', 't5_relative', 'none'),
    'model.feed_forward': ('gelu', 'silu', 'geglu', 'swiglu', 'none'),
    'model.gelu': ('exact',),
    'model.ids.pad': (6,),
    'model.ids.start': (2,),
    'model.ids.mask': (5,),
    'model.attention.score': ('dot', 'additive'),
    'model.attention.pattern': ('local', 'global_local', 'window2d'),
    'model.attention.window': (1,),
    'model.attention.global_positions': ((3,),),
    'model.attention.grid_width': (2,),
    'model.attention.shift': (1,),
    'model.conv.dilations': ((2,),),
    'model.sinusoidal.layout': ('halves',),
    'model.rotary.base': (7.0,),
    'model.rotary.layout': ('interleaved',),
    'model.relative.max_distance': (6,),
    'model.embedding.scale': ('none',),
    'model.embedding.logit_scale': ('rsqrt_d_model',),
    'model.head.pooling': ('mean', 'tokens'),
    'model.dropout.attention': (0.2,),
    'model.dropout.residual': (0.2,),
    'model.dropout.feed_forward': (0.2,),
    'model.dropout.embedding': (0.2,),
    'model.precision.compute': ('bfloat16', 'float16'),
    'model.precision.softmax': ('compute',),
    'optim.label_smoothing': (0.2,),
    'train.masking.rate': (0.5,),
    'train.masking.replaced': (0.1,),
    'train.masking.random': (0.2,),
}

REPROGRAMMING = {  # the numbers stay, see tests/model
    'model.remat': ('block', 'dots'),
    'model.scan_unroll': (2,),
    'model.attention.kernel': ('blockwise', 'library', 'pallas'),
    'model.attention.block': (3,),
}

BESIDES = {
    ('model.family', 'lm'): LM,
    ('model.family', 'mlm'): MLM,
    ('model.family', 'classifier'): CLASSIFIER,
    ('model.mixer', 'linformer'): {'model.decoder_mixer': 'attention'},
    'model.max_length': {'model.position': 'learned', 'data.buckets': ((9, 9),), 'eval.max_decode_length': 9},
    'model.gelu': {'model.feed_forward': 'gelu'},
    'model.ids.mask': MLM,
    'model.attention.window': {'model.attention.pattern': 'local'},
    'model.attention.global_positions': {'model.attention.pattern': 'global_local', 'model.attention.window': 1},
    'model.attention.grid_width': {'model.attention.pattern': 'window2d', 'model.attention.window': 2},
    'model.attention.shift': {
        'model.attention.pattern': 'window2d',
        'model.attention.window': 2,
        'model.num_layers': 2,  # every other one is shifted
    },
    'model.linformer.rank': {'model.encoder_mixer': 'linformer'},
    'model.conv.width': {'model.mixer': 'conv'},
    'model.conv.dilations': {'model.mixer': 'conv'},
    'model.recurrent.width': {'model.mixer': 'lstm'},
    'model.rotary.base': {'model.position': 'rotary'},
    'model.rotary.layout': {'model.position': 'rotary'},
    'model.relative.num_buckets': {'model.position': 't5_relative'},
    'model.relative.max_distance': {'model.position': 't5_relative', 'model.relative.num_buckets': 8},
    'model.relative.tables': {'model.position': 't5_relative', 'model.num_layers': 2},
    'model.head.transform': MLM,
    'model.head.pooling': CLASSIFIER,
    ('model.head.pooling', 'tokens'): {'data.labels': 'syntax'},
    'model.head.pooler': CLASSIFIER,
    'model.head.num_classes': CLASSIFIER,
    'model.precision.softmax': {'model.precision.compute': 'bfloat16'},
    'model.remat': {'model.num_layers': 2},
    'model.scan_unroll': {'model.num_layers': 2},
    'model.attention.block': {'model.attention.kernel': 'blockwise'},
    'train.masking.rate': MLM,
    'train.masking.replaced': MLM,
    'train.masking.random': MLM,
}
"""What has to be set for a field (in both configs that are compared) or for a choice of it (in one) to matter."""

V, Y = 13, 3  # of the data


def cases(table):
    return [(path, value) for path, values in table.items() for value in values]


def shapes(changes):
    tree = transformer.abstract_params(resolved(changes).model, V, Y)
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def batch_of(cfg):
    rng = np.random.default_rng(0)
    draw = lambda low, high, *shape: jnp.asarray(rng.integers(low, high, shape), jnp.int32)  # noqa: E731
    batch = {'example_id': jnp.arange(2)}
    if cfg.model.family == 'seq2seq':
        return batch | {'source': draw(4, V, 2, 9), 'target': draw(4, V, 2, 9)}
    if cfg.model.family == 'classifier':
        shape = (2, 9) if cfg.model.head.pooling == 'tokens' else (2,)
        return batch | {'tokens': draw(4, V, 2, 9), 'label': draw(0, Y, *shape)}
    return batch | {'tokens': draw(4, V, 2, 9)}


def loss_of(cfg):
    """The loss of a fixed batch with dropout at step 7, as a function of the parameters."""
    model, batch = transformer.build(cfg.model, V, Y), batch_of(cfg)
    objective, key_2 = objectives.of(cfg, V), ops.fold(jnp.zeros(2, jnp.uint32), cfg.seed, 7)
    return lambda params: loss_fn(params, batch, key_2, model, objective, hyperparameters.of(cfg))[0]


def loss(cfg):
    """The loss at parameters that are drawn by their names, so that those which two configs share are equal."""

    def draw(path, leaf):
        rng = np.random.default_rng(zlib.crc32(sharding.path_name(path).encode()))
        return jnp.asarray(0.5 * rng.standard_normal(leaf.shape), leaf.dtype)

    params = jax.tree_util.tree_map_with_path(draw, transformer.abstract_params(cfg.model, V, Y))
    return float(jit(loss_of(cfg))(params))


@pytest.fixture(scope='module')
def base_losses():
    """Loss of the base config and of the base with what stands in BESIDES, each once."""
    known = {}

    def get(besides):
        key = str(besides)
        if key not in known:
            known[key] = loss(resolved(besides))
        return known[key]

    return get


def with_value(path, value):
    """(changes of the base that is compared with, the changes that set the field)."""
    besides = BESIDES.get(path, {})
    return besides, besides | BESIDES.get((path, value), {}) | {path: value}


@pytest.mark.parametrize(('path', 'value'), cases(RESHAPING))
def test_a_field_changes_the_parameters(path, value):
    besides, changes = with_value(path, value)
    assert shapes(changes) != shapes(besides)


@pytest.mark.parametrize(('path', 'value'), cases(REVALUING))
def test_a_field_changes_the_loss(path, value, base_losses):
    besides, changes = with_value(path, value)
    changed = loss(resolved(changes))
    assert np.isfinite(changed) and changed != base_losses(besides)


@pytest.mark.parametrize(('path', 'value'), cases(REPROGRAMMING))
def test_a_field_changes_the_program_alone(path, value):
    def program(changes):
        cfg = resolved(BESIDES.get(path, {}) | changes)
        params = transformer.abstract_params(cfg.model, V, Y)
        return str(jax.make_jaxpr(jax.grad(loss_of(cfg)))(params))

    assert program({path: value}) != program({})
    assert shapes(BESIDES.get(path, {}) | {path: value}) == shapes(BESIDES.get(path, {}))


def test_without_dropout_the_seed_changes_no_loss():
    """What `seed` changes above is the dropout, and nothing else (and the initialisation, see tests/model)."""
    off = {'model.dropout.residual': 0.0, 'model.dropout.embedding': 0.0}
    assert loss(resolved(off)) == loss(resolved(off | {'seed': 1}))


# Every field of the optimiser changes the parameters after three updates

OPTIMISER = {
    'optim.name': ('sgd',),
    'optim.learning_rate': (0.2,),
    'optim.schedule': ('noam', 'linear', 'cosine'),
    'optim.warmup_steps': (2,),
    'optim.beta1': (0.5,),
    'optim.beta2': (0.5,),
    'optim.epsilon': (0.1,),
    'optim.weight_decay': (0.1,),
    'optim.clip_norm': (0.5,),
    'train.num_steps': (4,),
}
OPTIMISER_BESIDES = {'train.num_steps': {'optim.schedule': 'cosine'}}


def after_three_updates(changes):
    optimizer, params = optim.build(resolved(changes)), {'w': jnp.array([1.0, -2.0, 0.5])}
    state = optimizer.init(params)
    for scale in (1.0, 3.0, -0.5):
        gradient = {'w': scale * jnp.array([0.3, 1.0, -2.0])}
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params['w'])


@pytest.mark.parametrize(('path', 'value'), cases(OPTIMISER))
def test_a_field_changes_the_updates(path, value):
    besides = OPTIMISER_BESIDES.get(path, {})
    changed = after_three_updates(besides | {path: value})
    assert np.all(np.isfinite(changed)) and np.any(changed != after_three_updates(besides))


def test_no_field_and_no_choice_is_left_out_of_these_tables():
    tables = RESHAPING | REVALUING | REPROGRAMMING | OPTIMISER
    groups = ('model.', 'optim.', 'train.masking.')
    assert {path for path in fields() if path.startswith(groups)} == {p for p in tables if p.startswith(groups)}
    for path, allowed in config.CHOICES.items():
        if path.startswith(groups):
            base = config.flatten(resolved({}))[path]
            without = {base, 'linformer'} if path == 'model.decoder_mixer' else {base}
            assert set(tables[path]) == set(allowed) - without, path


# The choices of other fields

ELSEWHERE = {
    'train.nan_policy': 'train/test_faults.py::test_skipping_changes_no_parameter_and_ends_at_its_limit',
    'eval.split': 'test_knobs.py::test_every_field_is_read',
    'eval.search': 'decode/test_search.py::test_each_search_writes_something_else',
    'eval.unroll': 'decode/test_cache.py::test_layers_apart_give_the_same_and_are_read_where_they_lie',
    'eval.length_divisor': 'decode/test_beam.py::test_stopping_early_loses_nothing',
    'data.tokenizer': 'data/test_vocab.py::test_json_holds_all_that_reading_a_text_needs',
    'data.packing': 'data/test_splits.py::test_segments_mark_the_documents',
    'data.labels': 'data/test_stdlib.py::test_another_longest_bucket_and_another_label_are_prepared_anew',
    'runtime.freed_memory': 'test_runtime.py::test_what_is_freed_stays_with_the_process_unless_it_is_to_be_returned',
    'mesh.strategy': 'test_sharding.py::test_a_strategy_is_four_numbers',
    'cohort.mode': 'ablate/test_cohort.py::test_off_and_a_mesh_of_several_devices_mean_one_at_a_time',
}
"""Which test shows what the choices of a field do, where it is not one of the above."""


def test_every_choice_is_tested_here_or_elsewhere():
    here = RESHAPING | REVALUING | REPROGRAMMING | OPTIMISER
    assert not set(ELSEWHERE) & set(here) and set(config.CHOICES) <= set(ELSEWHERE) | set(here)
    for test in ELSEWHERE.values():
        path, name = test.split('::')
        assert f'def {name}(' in (ROOT / 'tests' / path).read_text(), test
