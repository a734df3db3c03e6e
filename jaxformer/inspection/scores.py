"""What each head looks at, in numbers: how widely, how far, and whether at the places that heads are known for."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import objectives
from jaxformer.data.corpus import Split
from jaxformer.data.pipeline import eval_batches
from jaxformer.decode.open import OpenRun
from jaxformer.inspection.attention import Maps, forward
from jaxformer.inspection.choice import ALL, Choice
from jaxformer.model import ops
from jaxformer.model.heads import left
from jaxformer.model.keep import KINDS

PLACES = ('first', 'previous', 'diagonal', 'next')
NAMES = ('entropy', 'distance', *PLACES, 'slant')
LEAST_STRENGTH, LEAST_SHARE = 0.01, 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Of the heads of one kind of attention, [L, H] float64 each by name, means over rows (queries).

    entropy: of the weights, in nats. distance: mean |key − query| in positions. first, previous, diagonal, next: the
    weight on the first key, on the key before the query's own position (from the second row on), on its own, and on the
    one after. slant: how far the mean key lies from the straight line between the corners, as a share of the keys.
    strength: the norm of value·out of the head, as a share of the greatest in its layer: what it can add at all.
    layers, heads: numbers from 0. rows: how many rows the means rest on. names: [L][H], as `prune` calls the heads;
      they keep their names where others have gone.
    """

    kind: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    rows: int
    of: Mapping[str, np.ndarray]
    names: tuple[tuple[str, ...], ...] = ()

    def role(self, layer: int, head: int) -> str:
        """'dead' (strength below 1 %), or the one of PLACES that has more than half of the weight, or ''."""
        if self.of['strength'][layer, head] < LEAST_STRENGTH:
            return 'dead'
        largest = max(PLACES, key=lambda name: self.of[name][layer, head])
        return largest if self.of[largest][layer, head] > LEAST_SHARE else ''


def of_rows(weights_BHTS: Any) -> jax.Array:
    """[B, H, T, 7]: NAMES of each row of weights; in the place of the slant, which takes the lengths, the mean key."""
    T, S = weights_BHTS.shape[-2:]
    w, query_T1, key_S = jnp.asarray(weights_BHTS, jnp.float32), jnp.arange(T)[:, None], jnp.arange(S)
    found = (
        ops.entropy(w),
        jnp.sum(w * jnp.abs(key_S - query_T1), -1),
        w[..., 0],
        *(jnp.sum(w * (key_S == query_T1 + step), -1) for step in (-1, 0, 1)),
        jnp.sum(w * key_S, -1),
    )
    return jnp.stack(found, axis=-1)


def of_maps(run: OpenRun, maps: Maps, choice: Choice = ALL) -> list[Scores]:
    """The scores of one text, whose maps have all rows."""
    sums = {}
    for kind in choice.keep(run.cfg.model):
        weights = getattr(maps, kind)
        T, S = weights.shape[-2:]
        rows = np.asarray(of_rows(weights))[:, None]  # one example: [L, 1, H, T, 7]
        sums[kind] = _sums(rows, np.array([T]), np.array([S]))
    return _scores(run, choice, sums)


def of_split(run: OpenRun, split: Split, choice: Choice = ALL) -> list[Scores]:
    """The scores over all examples of a split that fit the buckets; only sums over rows are ever kept."""
    keep = {kind: dataclasses.replace(part, reduce=of_rows) for kind, part in choice.keep(run.cfg.model).items()}
    objective, pad = objectives.of(run.cfg, run.model.vocab_size), run.cfg.model.ids.pad
    sums: dict[str, Any] = {}
    for batch in eval_batches(split, run.cfg.data.buckets, run.cfg.eval.batch_size):
        inputs = objective({name: jnp.asarray(array) for name, array in batch.items()}, None).inputs
        _, found = forward(run.params, inputs, run.model, tuple(keep.items()))
        lengths = [np.asarray((side != pad).sum(-1)) for side in inputs[:2]]
        S, T = (lengths[0], lengths[-1]) if run.cfg.model.family == 'seq2seq' else (lengths[0], lengths[0])
        sides = {'encoder': (S, S), 'decoder': (T, T), 'cross': (T, S)}
        for kind, rows in jax.device_get(found).items():
            part = _sums(rows, *sides[kind])
            sums[kind] = jax.tree.map(np.add, sums[kind], part) if kind in sums else part
    return _scores(run, choice, sums)


def _sums(rows_LBHTX: np.ndarray, T_B: np.ndarray, S_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([L, H, 7] sums of NAMES, [7] of how many rows each is one) of examples of these lengths."""
    place_T = np.arange(rows_LBHTX.shape[3])
    real_BT = place_T < T_B[:, None]
    rows = rows_LBHTX.astype(np.float64)
    line_BT = place_T / np.maximum(T_B - 1, 1)[:, None]
    slant = np.abs(rows[..., -1] / np.maximum(S_B - 1, 1)[:, None, None] - line_BT[:, None])
    rows = np.concatenate([rows[..., :-1], slant[..., None]], -1)
    counts_BTX = np.repeat(real_BT[..., None], len(NAMES), -1)
    counts_BTX[:, 0, NAMES.index('previous')] = False
    return np.einsum('LBHTX,BTX->LHX', rows, counts_BTX), counts_BTX.sum((0, 1))


def _scores(run: OpenRun, choice: Choice, sums: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[Scores]:
    found = []
    for kind in (kind for kind in KINDS if kind in sums):
        total_LHX, count_X = sums[kind]
        strength_NH = strength(run, kind)
        layers = choice.layers or tuple(range(strength_NH.shape[0]))
        heads = choice.heads or tuple(range(strength_NH.shape[1]))
        means = dict(zip(NAMES, np.moveaxis(total_LHX / np.maximum(count_X, 1), -1, 0), strict=True))
        means['strength'] = strength_NH[np.ix_(layers, heads)]
        there = left(run.cfg.model, kind)
        names = tuple(tuple(f'{kind}.{n + 1}.{there[n][h] + 1}' for h in heads) for n in layers)
        found.append(Scores(kind, layers, heads, int(count_X[0]), means, names))
    return found


def strength(run: OpenRun, kind: str) -> np.ndarray:
    """[N, H]: the Frobenius norm of value·out of each head, as a share of the greatest of its layer."""
    side, name = where(run, kind)
    part = run.params[side]['layers'][name]
    value_NDGE, out_NHED = (np.asarray(part[matrix], np.float64) for matrix in ('value', 'out'))
    H, G = out_NHED.shape[1], value_NDGE.shape[2]
    within = np.repeat(np.einsum('NDGE,NDGX->NGEX', value_NDGE, value_NDGE), H // G, axis=1)
    norm_NH = np.sqrt(np.einsum('NHEX,NHED,NHXD->NH', within, out_NHED, out_NHED, optimize=True).clip(0))
    return norm_NH / np.maximum(norm_NH.max(-1, keepdims=True), 1e-30)


def where(run: OpenRun, kind: str) -> tuple[str, str]:
    """(stack, name of the parameters in its layers) of a kind of attention."""
    if kind == 'cross':
        return 'decoder', 'cross_attention'
    return kind, f'self_{getattr(run.cfg.model, f"{kind}_mixer")}'


def as_json(found: Iterable[Scores]) -> list[dict[str, Any]]:
    """One object per head, layers and heads counted from 1; 'name' is what `heads` and `prune` call it."""
    return [
        {
            'kind': part.kind,
            'layer': layer + 1,
            'head': head + 1,
            'name': part.names[row][column] if part.names else f'{part.kind}.{layer + 1}.{head + 1}',
            **{name: float(values[row, column]) for name, values in part.of.items()},
            'role': part.role(row, column),
        }
        for part in found
        for row, layer in enumerate(part.layers)
        for column, head in enumerate(part.heads)
    ]


def as_text(found: Iterable[Scores]) -> str:
    """A line per head."""
    rows = as_json(found)
    columns = [name for name in rows[0] if name != 'role'] if rows else []
    lines = [''.join(f'{name:>{14 if name == "name" else 10}}' for name in columns)]
    for row in rows:
        cells = [f'{row[name]:.3f}' if isinstance(row[name], float) else str(row[name]) for name in columns]
        aligned = (f'{cell:>{14 if name == "name" else 10}}' for name, cell in zip(columns, cells, strict=True))
        lines.append((''.join(aligned) + f'  {row["role"]}').rstrip())
    return '\n'.join(lines)
