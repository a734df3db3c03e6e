"""What a trained model attends to while it reads and writes one text: the weights, and pictures of them."""

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxformer.decode.greedy import outputs
from jaxformer.decode.open import OpenRun, open_run
from jaxformer.errors import UserError
from jaxformer.inspection import example
from jaxformer.inspection.choice import ALL, Choice, attending
from jaxformer.model.family import Family
from jaxformer.model.keep import KINDS, Collect

FORMATS = ('png', 'svg', 'pdf')


@dataclasses.dataclass(frozen=True, eq=False)
class Maps:
    """Attention weights (float32, before dropout) of one text, without any padding; each row sums to 1.

    encoder [N, H, S, S]: row and column are source symbols, end of sequence included.
    decoder [N, H, T, T]: row and column are decoder inputs; columns to the right of the diagonal are 0.
    cross [N, H, T, S]: row is a decoder input, column a source symbol.

    A kind that the model does not have (no such stack, or a mixer without a weight for every key) has N = 0, as has one
    that was not chosen. Of chosen layers, heads and rows there are only these, in the order of `choice`.
    A row of decoder and cross stands for the symbol that the decoder reads at that position (`inputs`: the beginning
    of sequence first), not for the one it writes there: that is `predicted`, the most probable next symbol, one a row.
    """

    text: str
    step: int
    source: tuple[str, ...]
    inputs: tuple[str, ...]
    predicted: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    choice: Choice = ALL

    def axes(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(symbol of each row, symbol of each column) of the maps of a kind ('encoder', 'decoder', 'cross')."""
        rows, columns = {
            'encoder': (self.source, self.source),
            'decoder': (self.inputs, self.inputs),
            'cross': (self.inputs, self.source),
        }[kind]
        return _picked(rows, self.choice.rows), columns


def maps(
    workdir: epath.PathLike,
    text: str,
    step: int | None = None,
    target: str | None = None,
    choice: Choice = ALL,
) -> Maps:
    """The attention maps of a run at `step` (None: its newest whole checkpoint) for a source text.

    Args:
      text: as a line of the data's source, e.g. a word of CMUdict. Symbols that the run does not know are read as
        unknown, with a warning.
      target: symbols separated by blanks that the decoder is made to write; None is what greedy decoding gives.
      choice: what is looked at; the weights of other layers, heads and rows are not kept by the pass, either.

    Raises:
      UserError, RunError: as `open_run` and `of_run`.
    """
    return of_run(open_run(workdir, step), text, target, choice)


def of_run(run: OpenRun, text: str, target: str | None = None, choice: Choice = ALL) -> Maps:
    """As `maps`, of a run that is open already. The data set need not be there.

    Raises:
      UserError: a blank text, a target symbol that the run does not know, or a side that is longer than its learned
        positions.
    """
    if not attending(run.cfg.model):
        raise UserError(f'{run.workdir}: mixers without a weight for every key; there are no maps to draw')
    keep = choice.keep(run.cfg.model)
    read = example.of_text(run, text, target)
    source, labels, special = read.source, read.labels, run.vocab.ids
    arrays = example.arrays(run, [source], [labels])
    S, T = len(source), len(labels)
    for kind in keep:
        if bad := [row for row in choice.rows or () if not 0 <= row < (S if kind == 'encoder' else T)]:
            raise UserError(
                f'row {bad[0] + 1}: the {kind} attention of this text has rows 1 to {S if kind == "encoder" else T}'
            )
    logits_BTV, collected = jax.device_get(forward(run.params, arrays, run.model, tuple(keep.items())))
    cut = {'encoder': (S, S), 'decoder': (T, T), 'cross': (T, S)}
    if choice.rows is not None:
        cut = {kind: (len(choice.rows), columns) for kind, (_, columns) in cut.items()}
    found = {
        kind: np.asarray(collected[kind][:, 0, :, :rows, :columns], np.float32)
        if kind in collected
        else np.zeros((0, 0, rows, columns), np.float32)
        for kind, (rows, columns) in cut.items()
    }
    allowed_V = outputs(logits_BTV.shape[-1], len(run.vocab), special)
    predicted = np.where(allowed_V, logits_BTV[0, :T], -np.inf).argmax(-1) if T else np.zeros(0, int)
    return Maps(
        text=text,
        step=run.step,
        source=example.spelled(run.vocab, source),
        inputs=example.spelled(run.vocab, [run.cfg.model.ids.start, *labels[:-1]] if labels else []),
        predicted=example.spelled(run.vocab, predicted.tolist()),
        choice=choice,
        **found,
    )


@functools.partial(jax.jit, static_argnames=('model', 'collect'))
def forward(
    params: Any, inputs: tuple[jax.Array, ...], model: Family, collect: Collect = ()
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(logits_BTV, what was collected) of a deterministic pass; what is collected does not change the logits."""
    logits_BTV, collected = model.apply({'params': params}, *inputs, collect=collect)
    return logits_BTV, dict(collected)


def draw(maps: Maps, directory: epath.PathLike, fmt: str = 'png') -> list[epath.Path]:
    """Draws a figure per kind and layer, all heads side by side, as `directory/<text>-step<n>-<kind>-layer<n>.<fmt>`.

    Layers and heads count from 1 in names and titles. Colours run from 0 to 1 in every figure, so that figures compare.

    Returns:
      the paths, in the order encoder, decoder, cross.

    Raises:
      UserError: an unknown format, or a directory that cannot be written.
    """
    if fmt not in FORMATS:
        raise UserError(f'format {fmt!r}: choose one of {", ".join(FORMATS)}')
    directory = epath.Path(directory)
    name = re.sub(r'\W+', '-', maps.text.strip())[:40].strip('-') or 'text'
    name = f'{name}-step{maps.step}'
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            there = len(getattr(maps, kind))
            for layer, number in enumerate(_numbers(maps.choice.layers, there)[:there]):
                path = directory / f'{name}-{kind}-layer{number + 1}.{fmt}'
                with path.open('wb') as file:
                    figure(maps, kind, layer).savefig(file, format=fmt, dpi=150)
                paths.append(path)
    except OSError as error:
        raise UserError(f'{directory}: {error.strerror or error}; choose a directory that can be written') from error
    return paths


def figure(maps: Maps, kind: str, layer: int) -> Any:
    """The matplotlib figure of the heads of one layer; `layer` is its place in the maps, from 0."""
    from jaxformer.inspection.heatmap import heat_maps

    weights_HTS = getattr(maps, kind)[layer]
    rows, columns = maps.axes(kind)
    where = f'{TITLES[kind]}, layer {_numbers(maps.choice.layers, len(getattr(maps, kind)))[layer] + 1}'
    read = {'encoder': 'source symbol', 'decoder': 'decoder input', 'cross': 'source symbol'}[kind]
    if kind != 'encoder':
        rows = tuple(
            f'{symbol} → {written}'
            for symbol, written in zip(rows, _picked(maps.predicted, maps.choice.rows), strict=True)
        )
    return heat_maps(
        weights_HTS,
        heads=[number + 1 for number in _numbers(maps.choice.heads, len(weights_HTS))],
        rows=rows,
        columns=columns,
        row_title='source symbol (query)' if kind == 'encoder' else 'input → prediction (query)',
        column_title=f'{read} attended to (key)',
        title=f'{where}\n“{_short(maps.text)}”, step {maps.step:,}',
    )


TITLES = {'encoder': 'Encoder self-attention', 'decoder': 'Decoder self-attention', 'cross': 'Cross-attention'}


def _numbers(chosen: tuple[int, ...] | None, there: int) -> tuple[int, ...]:
    return tuple(range(there)) if chosen is None else chosen


def _picked(names: tuple[str, ...], rows: tuple[int, ...] | None) -> tuple[str, ...]:
    return names if rows is None else tuple(names[row] for row in rows)


def _short(text: str) -> str:
    text = ' '.join(text.split())
    return text if len(text) <= 40 else f'{text[:39]}…'
