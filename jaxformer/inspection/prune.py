"""Heads taken out of a model: masked (they add nothing), or pruned (they are not there, and it computes the same)."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from jaxformer import checkpoint, config, files, optim, sharding
from jaxformer.decode.open import OpenRun
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.model.heads import Rows, groups, left
from jaxformer.model.keep import KINDS
from jaxformer.schema import Config, ModelConfig
from jaxformer.train import directory as directories
from jaxformer.train import state as states

WITH_HEADS = ('attention', 'static', 'linformer')


class Head(NamedTuple):
    """kind: encoder, decoder or cross. layer, head: from 0, the head as the design counts it."""

    kind: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f'{self.kind}.{self.layer + 1}.{self.head + 1}'


def of_model(model: ModelConfig) -> list[Head]:
    """The heads that a model has."""
    mixers = {
        'encoder': model.encoder_mixer if model.family != 'lm' else '',
        'decoder': model.decoder_mixer if model.family in ('seq2seq', 'lm') else '',
        'cross': 'attention' if model.family == 'seq2seq' else '',
    }
    return [
        Head(kind, layer, head)
        for kind in KINDS
        if mixers[kind] in WITH_HEADS
        for layer, row in enumerate(left(model, kind))
        for head in row
    ]


def parse(text: str, model: ModelConfig) -> list[Head]:
    """Heads by their names, as in 'encoder.1.2,cross.3.1' (kind, layer and head, counted from 1).

    Raises:
      UserError: what is no name, or names a head that the model does not have.
    """
    there = {str(head): head for head in of_model(model)}
    names = text.split(',')
    for name in names:
        if name not in there:
            form = re.fullmatch(r'(encoder|decoder|cross)\.\d+\.\d+', name)
            remedy = (
                f'the model has {", ".join(list(there)[:4])} …' if form else 'write kind.layer.head, as encoder.1.2'
            )
            raise UserError(f'--heads: {name!r}: no such head; {remedy}')
    return [there[name] for name in dict.fromkeys(names)]


def masked(params: Any, model: ModelConfig, heads: Iterable[Head]) -> Any:
    """Parameters with which these heads add nothing: their rows of the output projection are zero."""
    return weighed(params, model, mask(model, heads))


def mask(model: ModelConfig, heads: Iterable[Head]) -> dict[str, np.ndarray]:
    """{kind: [N, H]}: 0 for these heads, 1 for the others that are left."""
    there = of_model(model)
    found = {kind: np.ones(np.shape(left(model, kind)), np.float32) for kind in dict.fromkeys(h.kind for h in there)}
    for head in heads:
        found[head.kind][head.layer, left(model, head.kind)[head.layer].index(head.head)] = 0
    return found


def weighed(params: Any, model: ModelConfig, weight: dict[str, Any]) -> Any:
    """Parameters with which each head adds `weight` [N, H] times what it did (Michel et al. 2019, 2.3)."""
    flat = dict(flax.traverse_util.flatten_dict(params, sep='/'))
    for kind, weight_NH in weight.items():
        path = f'{where(model, kind)}/out'
        flat[path] = flat[path] * jnp.asarray(weight_NH, flat[path].dtype)[:, :, None, None]
    return flax.traverse_util.unflatten_dict(flat, sep='/')


def where(model: ModelConfig, kind: str) -> str:
    """Path of the parameters of a kind of attention."""
    if kind == 'cross':
        return 'decoder/layers/cross_attention'
    return f'{kind}/layers/self_{model.decoder_mixer if kind == "decoder" else model.encoder_mixer}'


def kept(model: ModelConfig, kind: str, heads: Iterable[Head]) -> Rows:
    """The heads of each layer that stay when `heads` go.

    The layers of a stack share one shape. Where more go from one layer than from another, the first has heads stay that
    are masked: as many of each key head, and as many key heads, as the layer that keeps most.
    """
    gone = {(head.layer, head.head) for head in heads if head.kind == kind}
    rows, per = left(model, kind), model.num_heads // model.num_kv_heads
    stay = [[head for head in row if (layer, head) not in gone] for layer, row in enumerate(rows)]
    shares = [[[h for h in row if h // per == group] for group in groups(model, tuple(row))] for row in stay]
    most_groups = max([1, *map(len, shares)])
    most = max([1, *(len(share) for layer in shares for share in layer)])
    found = []
    for layer, row in enumerate(rows):
        # Key heads in use first, then others; of each those that stay first, then others.
        used = groups(model, tuple(stay[layer]))
        chosen = [*used, *(group for group in groups(model, row) if group not in used)][:most_groups]
        new: list[int] = []
        for group in chosen:
            of_group = [head for head in row if head // per == group]
            new += sorted(of_group, key=lambda head, layer=layer: ((layer, head) in gone, head))[:most]  # type: ignore[misc]
        found.append(tuple(sorted(new)))
    return tuple(found)


def pruned(cfg: Config, params: Any, heads: Sequence[Head]) -> tuple[Config, Any]:
    """(configuration, parameters) of the model without these heads; its outputs are those of the masked one."""
    model = cfg.model
    flat = dict(flax.traverse_util.flatten_dict(masked(params, model, heads), sep='/'))
    edited = config.to_dict(cfg)
    for kind in {head.kind for head in heads}:
        old, new = left(model, kind), kept(model, kind, heads)
        edited['model']['kept_heads'][kind] = new
        numbers = {
            'H': np.array([[before.index(head) for head in row] for before, row in zip(old, new, strict=True)]),
            'G': np.array(
                [
                    [groups(model, before).index(group) for group in groups(model, row)]
                    for before, row in zip(old, new, strict=True)
                ]
            ),
        }
        for path in [path for path in flat if path.startswith(f'{where(model, kind)}/')]:
            letters = sharding.letters(path)
            for letter in set(letters) & set(numbers):
                flat[path] = _taken(flat[path], numbers[letter], letters.index(letter))
        table = f'{kind}/position/relative_bias'
        if kind != 'cross' and table in flat and model.relative.tables == 'per_layer':
            flat[table] = _taken(flat[table], numbers['H'], 2)
    return config.from_dict(edited), flax.traverse_util.unflatten_dict(flat, sep='/')


def _taken(array: Any, number_NX: np.ndarray, axis: int) -> jax.Array:
    """Of each layer (axis 0) what has these numbers along an axis."""
    return jnp.stack([jnp.take(layer, row, axis=axis - 1) for layer, row in zip(array, number_NX, strict=True)])


@dataclasses.dataclass(frozen=True)
class Pruned:
    """What `write` has done. zeros: heads that are masked, but had to stay, as a layer keeps more than another."""

    heads: int
    zeros: int
    before: int
    after: int

    def __str__(self) -> str:
        stay = f', {self.zeros} of them masked, as a layer cannot have fewer than another' if self.zeros else ''
        return (
            f'{self.heads} heads pruned{stay}; parameters {self.before:,} → {self.after:,} '
            f'(−{1 - self.after / self.before:.1%})'
        )


def write(run: OpenRun, heads: Sequence[Head], workdir: epath.PathLike) -> Pruned:
    """Makes `workdir` the directory of a run at step 0, with a fresh optimiser, of the model without these heads.

    Raises:
      UserError: `workdir` holds a run or cannot be written.
    """
    workdir = epath.Path(workdir).expanduser()
    if (workdir / files.CONFIG).exists() or (workdir / files.GRID).exists():
        raise UserError(f'--output={workdir}: holds a run (or a grid) already; choose another directory')
    cfg, params = pruned(run.cfg, run.params, heads)
    model = transformer.build(cfg.model, len(run.vocab), len(run.vocab.classes))
    state = states.create(model, optim.build(cfg), cfg.seed).replace(params=params)
    with directories.claimed(cfg, workdir):
        checkpoint.save(workdir / files.CHECKPOINTS, 0, state, {'next_index': 0}, config.to_dict(cfg), keep=1)
        files.write_json(workdir / files.VOCAB, run.vocab.to_json())
        files.write_json(workdir / files.CONFIG, config.to_dict(cfg))
    before, after = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (run.params, params))
    fewer = len(of_model(run.cfg.model)) - len(of_model(cfg.model))
    return Pruned(len(heads), len(heads) - fewer, before, after)
