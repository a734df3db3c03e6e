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

import jaxformer
from jaxformer import config, optim, sharding
from jaxformer.model import ops, transformer
from jaxformer.train.loop import train
from jaxformer.train.step import loss_fn

ROOT = Path(__file__).parents[1]
PACKAGE = str(Path(jaxformer.__file__).parent)

SMALL = {
    'model.vocab_size': 0,
    'model.d_model': 16,
    'model.num_heads': 2,
    'model.d_k': 5,
    'model.d_v': 7,
    'model.d_ff': 11,
    'model.num_layers': 1,
    'optim.learning_rate': 0.1,
    'optim.schedule': 'constant',
    'optim.warmup_steps': 0,
    'train.num_steps': 8,
}


def resolved(changes):
    edited = config.load(ROOT / 'configs' / 'base.py')
    config.override(edited, SMALL | changes)
    return config.resolve(edited)


# Every field is read

DERIVES_ONLY = {'model.num_layers'}  # encoder_layers and decoder_layers follow it


@pytest.fixture
def reads(monkeypatch):
    """The (class, field) pairs that files of the package other than config.py read while a test runs."""
    found = set()

    def recording(cls):
        original = cls.__getattribute__

        def read(self, name):
            caller = sys._getframe(1).f_code.co_filename
            if caller.startswith(PACKAGE) and not caller.endswith('/config.py'):
                found.add((cls, name))
            return original(self, name)

        return read

    for cls in vars(config).values():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            monkeypatch.setattr(cls, '__getattribute__', recording(cls))
    return found


def fields(cls=config.Config, prefix=''):
    """{dotted path: (class, field)} of every field below a dataclass."""
    found = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type):
            found |= fields(field.type, f'{prefix}{field.name}.')
        else:
            found[f'{prefix}{field.name}'] = (cls, field.name)
    return found


def test_every_field_is_read_by_a_run(reads, tmp_path):
    """Training, evaluation and decoding of three steps: the second and third meet numbers that are not finite."""
    cfg = resolved(
        {
            'model.position': 'learned',
            'model.feed_forward': 'swiglu',
            'optim.learning_rate': 1e30,
            'optim.weight_decay': 0.1,
            'optim.clip_norm': 1.0,
            'train.num_steps': 3,
            'train.batch_size': 4,
            'train.nan_policy': 'skip',
            'eval.max_decode_length': 6,
            'data.name': 'copy',
            'data.dir': str(tmp_path / 'data'),
            'data.num_examples': 20,
            'data.max_length': 4,
            'data.buckets': ((5, 5),),
            'runtime.compilation_cache': str(tmp_path / 'xla'),
        }
    )
    kept = jax.config.jax_compilation_cache_dir
    try:
        metrics = train(cfg, tmp_path / 'run')
    finally:
        jax.config.update('jax_compilation_cache_dir', kept)
    assert 'dev/per' in metrics
    unread = {path for path, pair in fields().items() if pair not in reads}
    assert unread == DERIVES_ONLY


def test_what_is_read_by_nobody_is_found(reads):
    cfg = resolved({})
    optim.schedule(cfg)
    assert (config.OptimConfig, 'schedule') in reads and (config.OptimConfig, 'beta1') not in reads
    assert cfg.optim.beta1 == 0.9
    assert (config.OptimConfig, 'beta1') not in reads  # read here, but not by the package


def test_num_layers_is_passed_on():
    model = resolved({'model.num_layers': 3}).model
    assert (model.encoder_layers, model.decoder_layers) == (3, 3)


# Every field of the model changes the parameters or the loss

RESHAPING = {
    'model.vocab_size': (17,),
    'model.d_model': (18,),
    'model.num_heads': (4,),
    'model.num_kv_heads': (1,),
    'model.d_k': (6,),
    'model.d_v': (8,),
    'model.d_ff': (12,),
    'model.num_layers': (2,),
    'model.encoder_layers': (2,),
    'model.decoder_layers': (2,),
    'model.max_length': (70,),
    'model.embedding.tables': ('separate',),
    'model.embedding.softmax': ('untied',),
    'model.precision.parameters': ('bfloat16',),
}

REVALUING = {
    'seed': (1,),
    'model.residual': ('pre', 'branch', 'none'),
    'model.norm': ('rmsnorm', 'none'),
    'model.norm_epsilon': (0.1,),
    'model.position': ('learned', 'none'),
    'model.feed_forward': ('gelu', 'silu', 'geglu', 'swiglu', 'none'),
    'model.attention.score': ('dot',),
    'model.embedding.scale': ('none',),
    'model.dropout.attention': (0.2,),
    'model.dropout.residual': (0.2,),
    'model.dropout.feed_forward': (0.2,),
    'model.dropout.embedding': (0.2,),
    'model.precision.compute': ('bfloat16',),
    'model.precision.softmax': ('compute',),
    'optim.label_smoothing': (0.2,),
}

REPROGRAMMING = {'model.remat': ('block',), 'model.scan_unroll': (2,)}  # the numbers stay, see tests/model

BESIDES = {
    'model.max_length': {'model.position': 'learned', 'data.buckets': ((9, 9),), 'eval.max_decode_length': 9},
    'model.precision.softmax': {'model.precision.compute': 'bfloat16'},
    'model.remat': {'model.num_layers': 2},
    'model.scan_unroll': {'model.num_layers': 2},
}
"""What has to be set for a field to matter."""

ONE_CHOICE = {'model.family', 'model.mixer'}


def cases(table):
    return [(path, value) for path, values in table.items() for value in values]


def shapes(changes):
    tree = transformer.abstract_params(resolved(changes).model, 13)
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def loss_of(cfg):
    """(function of parameters, parameters): the loss of a fixed batch with dropout, at step 7."""
    model = transformer.build(cfg.model, 13)
    rng = np.random.default_rng(0)
    batch = {name: jnp.asarray(rng.integers(4, 13, (2, 4)), jnp.int32) for name in ('source', 'target')}
    key_2 = ops.fold(jnp.zeros(2, jnp.uint32), cfg.seed, 7)
    return lambda params: loss_fn(params, batch, key_2, model, cfg.optim.label_smoothing)[0]


def loss(cfg):
    """The loss at parameters that are drawn by their names, so that those which two configs share are equal."""

    def draw(path, leaf):
        rng = np.random.default_rng(zlib.crc32(sharding.path_name(path).encode()))
        return jnp.asarray(0.5 * rng.standard_normal(leaf.shape), leaf.dtype)

    params = jax.tree_util.tree_map_with_path(draw, transformer.abstract_params(cfg.model, 13))
    return float(jax.jit(loss_of(cfg))(params))


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


@pytest.mark.parametrize(('path', 'value'), cases(RESHAPING))
def test_a_field_changes_the_parameters(path, value):
    besides = BESIDES.get(path, {})
    assert shapes(besides | {path: value}) != shapes(besides)


@pytest.mark.parametrize(('path', 'value'), cases(REVALUING))
def test_a_field_changes_the_loss(path, value, base_losses):
    besides = BESIDES.get(path, {})
    changed = loss(resolved(besides | {path: value}))
    assert np.isfinite(changed) and changed != base_losses(besides)


@pytest.mark.parametrize(('path', 'value'), cases(REPROGRAMMING))
def test_a_field_changes_the_program_alone(path, value):
    def program(changes):
        cfg = resolved(BESIDES[path] | changes)
        params = transformer.abstract_params(cfg.model, 13)
        return str(jax.make_jaxpr(jax.grad(loss_of(cfg)))(params))

    assert program({path: value}) != program({})
    assert shapes(BESIDES[path] | {path: value}) == shapes(BESIDES[path])


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
    groups = ('model.', 'optim.')
    assert {path for path in fields() if path.startswith(groups)} == {
        p for p in tables if p.startswith(groups)
    } | ONE_CHOICE
    for path, choices in config.CHOICES.items():
        if path.startswith(groups):
            base = config.flatten(resolved({}))[path]
            assert set(tables.get(path, ())) == set(choices) - {base}, path
