"""From a run to functions that JAX runs without this package: StableHLO by `jax.export`, and the parameters.

  jaxformer export --stablehlo --workdir=RUN --output=DIR && python DIR/decode.py < LINES

DIR holds of a seq2seq model `encode` (parameters, source, room) → cache, of a language model `prefill` (parameters,
tokens, room) → (logits, cache), and of both `step` (parameters, tokens, cache) → (logits, cache), for any number of
rows, of source symbols, of tokens at once and of positions in the cache (that of `room`, whose length alone counts),
up to model.max_length where tables by position end there; lowered for CPUs, CUDA GPUs and TPUs. signature.json says
what goes in and out; decode.py is an example.
"""

import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import export

from jaxformer import files, sharding
from jaxformer.decode.greedy import outputs
from jaxformer.decode.open import OpenRun, open_run, read_config
from jaxformer.errors import RunError, UserError
from jaxformer.inspection import tensors
from jaxformer.model import transformer
from jaxformer.model.family import Family
from jaxformer.schema import ModelConfig

Array = jax.Array
Spec = Any  # a tree of jax.ShapeDtypeStruct

PLATFORMS = ('cpu', 'cuda', 'tpu')
SIGNATURE, PARAMETERS, EXAMPLE = 'signature.json', 'parameters.safetensors', 'decode.py'
FAMILIES = ('seq2seq', 'lm')
REQUIRES = ('jax', 'numpy', 'safetensors', 'flatbuffers')
"""Packages that decode.py needs."""
DIMENSIONS = {
    'rows': 'of the batch',
    'source': 'symbols of the source, its end included',
    'tokens': 'that are read at once',
    'positions': 'that the cache has room for',
}


def run(workdir: epath.PathLike, step: int | None, output: str | Path) -> Path:
    """Writes a checkpoint of a run, None for the newest whole one, to the directory `output`.

    Raises:
      UserError: as `open_run`; a family that goes on with no token; a model whose functions depend on the very lengths;
        `output` holds something of these names, or a run, or cannot be written.
      RunError: the disk is full.
    """
    output = Path(output)
    family = read_config(workdir).model.family
    if family not in FAMILIES:
        raise UserError(
            f'{workdir}: a run of model.family={family} has no step; --stablehlo takes {", ".join(FAMILIES)}'
        )
    names = (SIGNATURE, PARAMETERS, EXAMPLE, files.VOCAB, files.CONFIG, files.GRID)
    if there := [name for name in names if (output / name).exists()]:
        raise UserError(f'--output={output}: holds {there[0]} already; choose another directory')
    opened = open_run(workdir, step)
    params = flax.traverse_util.flatten_dict(opened.params, sep='/')
    written = _exported(opened, params)
    try:
        output.mkdir(parents=True, exist_ok=True)
        tensors.write(output / PARAMETERS, {name: np.asarray(leaf) for name, leaf in params.items()})
        for name, (exported, _) in written.items():
            files.write_atomic(output / _file(name), bytes(exported.serialize()))
        files.write_atomic(output / EXAMPLE, Path(__file__).with_name('stablehlo_example.py').read_bytes())
        files.write_json(output / files.VOCAB, opened.vocab.to_json())
        files.write_json(output / SIGNATURE, _signature(opened, written))
    except OSError as error:
        reason = f'--output={output}: {error.strerror or error}'
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f'{reason}; free space, remove {output} and run the same command again') from error
        raise UserError(f'{reason}; choose another directory') from error
    return output


def _file(name: str) -> str:
    return f'{name}.stablehlo'


def _exported(opened: OpenRun, params: Mapping[str, Array]) -> dict[str, tuple[export.Exported, Mapping[str, Spec]]]:
    """{name: (the function, the specs of its arguments by name)}."""
    cfg = opened.cfg.model
    plain = dataclasses.replace(cfg, attention=dataclasses.replace(cfg.attention, kernel='plain'))  # the same numbers
    model = transformer.build(plain, len(opened.vocab))
    of = jax.ShapeDtypeStruct
    arguments: dict[str, Spec] = {'parameters': jax.tree.map(lambda leaf: of(leaf.shape, leaf.dtype), dict(params))}

    def begin(*names: str) -> dict[str, Spec]:
        """The arguments of the function that begins, and for a step the tokens that follow."""
        sizes = _sizes(cfg, names)
        tokens, room = of((sizes['rows'], sizes.get('tokens', 1)), jnp.int32), of((sizes['positions'],), jnp.bool_)
        source = {'source': of((sizes['rows'], sizes['source']), jnp.int32)} if 'source' in names else {}
        return arguments | (source or {'tokens': tokens}) | {'room': room, 'next': tokens}

    translates = cfg.family == 'seq2seq'
    first, function = ('encode', _encode(model)) if translates else ('prefill', _prefill(model))
    own = ('rows', 'source', 'positions') if translates else ('rows', 'tokens', 'positions')
    try:
        given = begin(*own)
        del given['next']
        follows = begin(*dict.fromkeys([*own, 'tokens']))
        tokens = follows.pop('next')
        result = jax.eval_shape(function, *follows.values())
        stepped = arguments | {'tokens': tokens, 'cache': result if translates else result[1]}
        return {
            name: (export.export(jax.jit(called), platforms=PLATFORMS)(*specs.values()), specs)
            for name, called, specs in ((first, function, given), ('step', _step(model), stepped))
        }
    except Exception as error:  # jax.export raises errors of many kinds
        first_line = str(error).strip().split('\n')[0]
        raise UserError(f'{opened.workdir}: cannot be exported for any length: {first_line}') from error


def _sizes(cfg: ModelConfig, names: Sequence[str]) -> dict[str, Any]:
    """Sizes that are names, in a scope of their own; what tables by position have no rows for is left out."""
    limits = [f'{name} <= {cfg.max_length}' for name in names if name != 'rows'] if _tables(cfg) else []
    ordered = ['positions >= tokens'] if 'tokens' in names else []
    return dict(zip(names, export.symbolic_shape(', '.join(names), constraints=[*ordered, *limits]), strict=True))


def _tables(cfg: ModelConfig) -> bool:
    return cfg.position == 'learned' or bool({'static', 'linformer'} & {cfg.encoder_mixer, cfg.decoder_mixer})


def _applied(model: Family, params: Mapping[str, Array], method: str, *args: Any) -> Any:
    tree = flax.traverse_util.unflatten_dict(dict(params), sep='/')
    return model.apply({'params': tree}, *args, method=method)


def _encode(model: Family) -> Callable[..., Any]:
    return lambda params, source_BS, room_T: _applied(model, params, 'start_cache', source_BS, room_T.shape[0])


def _prefill(model: Family) -> Callable[..., Any]:
    def prefill(params: Mapping[str, Array], tokens_BT: Array, room_T: Array) -> Any:
        cache = _applied(model, params, 'start_cache', tokens_BT.shape[0], room_T.shape[0])
        return _applied(model, params, 'extend', tokens_BT, cache)

    return prefill


def _step(model: Family) -> Callable[..., Any]:
    return lambda params, tokens_BT, cache: _applied(model, params, 'extend', tokens_BT, cache)


def _signature(opened: OpenRun, written: Mapping[str, tuple[export.Exported, Mapping[str, Spec]]]) -> dict[str, Any]:
    """What signature.json says; arrays in the order in which the functions take and give them."""
    cfg, ids = opened.cfg, opened.vocab.ids
    may = outputs(opened.params['embedding'].shape[0], len(opened.vocab), ids)
    return {
        'family': cfg.model.family,
        'step': opened.step,
        'functions': {
            name: {
                'file': _file(name),
                'arguments': [row for given, spec in specs.items() for row in _rows(given, spec)],
                'results': _results(name, exported),
            }
            for name, (exported, specs) in written.items()
        },
        'dimensions': DIMENSIONS,
        'limits': {name: cfg.model.max_length for name in DIMENSIONS if name != 'rows'} if _tables(cfg.model) else {},
        'room': 'no token goes beyond positions: a step that does overwrites the last one, and its numbers are wrong',
        'requires': REQUIRES,
        'parameters': PARAMETERS,
        'ids': {**dataclasses.asdict(ids), 'start': cfg.model.ids.start, 'pad': cfg.model.ids.pad},
        'num_logits': len(may),
        'num_symbols': len(opened.vocab),
        'never': [int(id_) for id_ in np.flatnonzero(~may) if id_ < len(opened.vocab)],
        'max_decode_length': cfg.eval.max_decode_length,
        'platforms': PLATFORMS,
        'jax': jax.__version__,
        'calling_convention_version': next(iter(written.values()))[0].calling_convention_version,
    }


def _results(name: str, exported: export.Exported) -> list[dict[str, Any]]:
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.out_avals]
    tree = jax.tree.unflatten(exported.out_tree, specs)
    named = {'cache': tree} if name == 'encode' else dict(zip(('logits', 'cache'), tree, strict=True))
    return [row for given, spec in named.items() for row in _rows(given, spec)]


def _rows(name: str, spec: Spec) -> list[dict[str, Any]]:
    return [
        {
            'name': '/'.join([name, *([inner] if (inner := sharding.path_name(path)) else [])]),
            'dtype': leaf.dtype.name,
            'shape': [size if isinstance(size, int) else str(size) for size in leaf.shape],
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(spec)
    ]
