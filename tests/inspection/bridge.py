"""Models of the five layouts, small and odd, with random parameters; files that hold them."""

import json
import pathlib

import flax.traverse_util
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from jaxformer import config
from jaxformer.inspection import export, import_

BASE = pathlib.Path(__file__).parents[2] / 'configs' / 'base.py'

SIZES = {'model.d_model': 15, 'model.num_heads': 3, 'model.d_ff': 22, 'model.num_layers': 2, 'model.max_length': 11}
PLAIN = {'model.embedding.scale': 'none', 'model.vocab_size': 37, 'eval.max_decode_length': 5}
TEXT = {'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((7,),)}
PAIRS = {'data.buckets': ((7, 7),)}
BERT = {
    **SIZES, **PLAIN, **TEXT, 'model.family': 'mlm', 'model.position': 'learned', 'model.feed_forward': 'gelu',
    'model.gelu': 'exact', 'model.attention.bias': 'all', 'model.embedding.norm': 'on', 'model.head.transform': 'on',
    'model.embedding.softmax_bias': 'on', 'model.embedding.token_types': 4,
}  # fmt: skip
CONFIGS = {
    'gpt2': {
        **SIZES, **PLAIN, **TEXT, 'model.family': 'lm', 'model.residual': 'pre', 'model.position': 'learned',
        'model.feed_forward': 'gelu', 'model.attention.bias': 'all',
    },
    'llama': {
        **SIZES, **PLAIN, **TEXT, 'model.family': 'lm', 'model.residual': 'pre', 'model.norm': 'rmsnorm',
        'model.position': 'rotary', 'model.d_model': 24, 'model.num_heads': 6, 'model.num_kv_heads': 2,
        'model.d_k': 10, 'model.d_v': 10, 'model.feed_forward': 'swiglu', 'model.feed_forward_bias': 'off',
        'model.embedding.softmax': 'untied', 'model.rotary.base': 123.0,
    },
    'bert': BERT,
    't5': {
        **SIZES, **PLAIN, **PAIRS, 'model.residual': 'pre', 'model.norm': 'rmsnorm', 'model.position': 't5_relative',
        'model.feed_forward_bias': 'off', 'model.attention.score': 'dot', 'model.d_k': 4, 'model.d_v': 4,
        'model.decoder_layers': 3, 'model.relative.num_buckets': 10, 'model.embedding.logit_scale': 'rsqrt_d_model',
    },
    'marian': {
        **SIZES, **PLAIN, **PAIRS, 'model.norm_epsilon': 1e-5, 'model.sinusoidal.layout': 'halves',
        'model.attention.bias': 'all', 'model.embedding.softmax_bias': 'on', 'model.embedding.scale': 'sqrt_d_model',
        'model.decoder_layers': 3,
    },
}  # fmt: skip


def make_cfg(name, **changes):
    """The configuration of a layout, with changes (model__gelu='exact')."""
    edited = config.load(BASE)
    config.override(edited, {**CONFIGS[name], **{path.replace('__', '.'): value for path, value in changes.items()}})
    return config.resolve(edited)


def random_params(cfg, seed=0):
    """A tree of random numbers in the type of cfg's parameters."""
    rng = np.random.default_rng(seed)
    dtype = ml_dtypes.bfloat16 if cfg.model.precision.parameters == 'bfloat16' else np.float32
    flat = {path: rng.normal(size=shape).astype(dtype) for path, shape in import_.parameter_shapes(cfg).items()}
    return flax.traverse_util.unflatten_dict(flat, sep='/')


def written(name, directory, **changes):
    """(configuration, parameters) of an exported model."""
    cfg = make_cfg(name, **changes)
    params = random_params(cfg)
    export.write(cfg, params, directory)
    return cfg, params


def edit(directory, settings=None, tensors=None):
    """Changes config.json and the tensors of an exported model; a value of None takes an entry away."""
    path = directory / 'config.json'
    path.write_text(json.dumps(_edited(json.loads(path.read_text()), settings)))
    path = directory / 'model.safetensors'
    save_file(_edited(load_file(path), tensors), path)


def _edited(entries, changes):
    merged = {**entries, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def flatten(params):
    return flax.traverse_util.flatten_dict(params, sep='/')


def assert_same(params, others):
    """The same arrays, bit for bit."""
    params, others = flatten(params), flatten(others)
    assert params.keys() == others.keys()
    for path, values in params.items():
        assert np.asarray(values).dtype == others[path].dtype, path
        assert np.asarray(values).tobytes() == others[path].tobytes(), path
