"""Which heads matter: what the loss on a split becomes without each of them, and without more and more of them.

By masking: the change of the loss when the head adds nothing. By gradient: the mean over examples of |∂L/∂ξ|, ξ = 1
being the factor on what the head adds (Michel et al. 2019, 3 and 4): one pass for all heads, to first order.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from jaxformer import losses, objectives
from jaxformer.ablate import resample
from jaxformer.data import too_few
from jaxformer.data.corpus import Split
from jaxformer.data.splits import PairSplit
from jaxformer.decode.open import OpenRun, on_every_device
from jaxformer.decode.predict import Decoder
from jaxformer.errors import UserError
from jaxformer.inspection import prune
from jaxformer.inspection.attention import FORMATS
from jaxformer.inspection.prune import Head
from jaxformer.train.evaluate import Evaluator

Array = np.ndarray
DRAWS = 5  # orders at random, beside those by importance


@dataclasses.dataclass(frozen=True, eq=False)
class Importance:
    """[R] of the R heads of a model, each with the ends of its interval by resampling the examples.

    masking: change of the loss (nats per label) without the head. gradient: mean |∂L/∂ξ| over examples, L being what
    the labels of an example cost together. loss: of the whole model.
    """

    heads: tuple[Head, ...]
    loss: float
    masking: resample.Intervals
    gradient: resample.Intervals

    def order(self, by: str = 'masking') -> list[Head]:
        """The heads, the one that matters least first."""
        return [self.heads[number] for number in np.argsort(getattr(self, by).value, kind='stable')]


class Study:
    """The losses of a run on a split, with any heads masked; one program for all of them."""

    def __init__(self, run: OpenRun, split: Split) -> None:
        self.run, self.split, self.heads = run, split, tuple(prune.of_model(run.cfg.model))
        self._mesh, self._params = on_every_device(run)
        self._evaluator = Evaluator(run.cfg, run.model, self._mesh)

    def losses(self, masked: Sequence[Head] = ()) -> tuple[Array, Array]:
        """([n] nats, [n] labels) of each example, with these heads masked."""
        params = prune.masked(self._params, self.run.cfg.model, masked) if masked else self._params
        found = self._evaluator.examples(params, self.split)
        return found['nll'], found['tokens']

    def importance(self, resamples: int = resample.RESAMPLES) -> Importance:
        """Of every head, by masking and by gradient."""
        whole, tokens = self.losses()
        nll_RN = np.stack([whole, *(self.losses([head])[0] for head in self.heads)])
        R = len(self.heads)
        differences = np.concatenate([-np.ones((R, 1)), np.eye(R)], axis=1)
        below = np.broadcast_to(tokens, nll_RN.shape)
        masking = resample.intervals(nll_RN, below, differences, resamples=resamples)
        slope_RN = np.abs(self.slopes())
        gradient = resample.intervals(slope_RN, np.ones_like(slope_RN), np.eye(R), resamples=resamples)
        return Importance(self.heads, float(whole.sum() / tokens.sum()), masking, gradient)

    def slopes(self) -> Array:
        """[R, n]: ∂L/∂ξ of each head and example, at ξ = 1, in the order of the split."""
        run, model = self.run, self.run.cfg.model
        objective = objectives.of(run.cfg, run.model.vocab_size)

        def loss(weight: Any, params: Any, row: dict[str, jax.Array]) -> jax.Array:
            inputs, labels_BT, weights_BT = objective(jax.tree.map(lambda part: part[None], row), None)
            weighed = prune.weighed(params, model, weight)
            return losses.cross_entropy(run.model.apply({'params': weighed}, *inputs)[0], labels_BT, weights_BT)

        slopes = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, None, 0)))
        ones = prune.mask(model, ())
        found, ids = [], []
        for batch in self._evaluator.batches(self.split):
            parts = jax.device_get(slopes(ones, run.params, dict(batch)))
            rows = np.concatenate([parts[kind].reshape(len(batch['example_id']), -1) for kind in ones], axis=1)
            found.append(rows[batch['example_id'] >= 0])
            ids.append(batch['example_id'][batch['example_id'] >= 0])
        return np.concatenate(found)[np.argsort(np.concatenate(ids), kind='stable')].T

    def curve(self, order: Sequence[Head], steps: int = 8) -> list[tuple[int, float]]:
        """(heads left, loss) as the heads of `order` are masked, the first first, in so many steps."""
        points = []
        for gone in sorted({round(len(order) * step / steps) for step in range(steps + 1)}):
            nll, tokens = self.losses(order[:gone])
            points.append((len(order) - gone, float(nll.sum() / tokens.sum())))
        return points

    def orders(self, importance: Importance, draws: int = DRAWS) -> dict[str, list[Head]]:
        """The heads by masking and by gradient, what matters least first, and at random ('random 1' …)."""
        orders = {by: importance.order(by) for by in ('masking', 'gradient')}
        for draw in range(draws):
            numbers = np.random.default_rng(draw).permutation(len(self.heads))
            orders[f'random {draw + 1}'] = [self.heads[number] for number in numbers]
        return orders

    def in_turn(self, number: int) -> list[Head]:
        """So many heads, each the one without which the loss is least once those before it are gone.

        Heads that can stand in for one another are so not taken all at once; R passes over the split for each head.
        """
        gone: list[Head] = []
        for _ in range(number):
            left = [head for head in self.heads if head not in gone]
            gone.append(left[int(np.argmin([self.losses([*gone, head])[0].sum() for head in left]))])
        return gone

    def curves(self, importance: Importance, steps: int = 8, draws: int = DRAWS) -> dict[str, list[tuple[int, float]]]:
        """Curves of `orders`."""
        return {name: self.curve(order, steps) for name, order in self.orders(importance, draws).items()}

    def refuse_left(self, left: int, judged: Split) -> None:
        """Raises UserError where `decoded` has nothing to decode, or there are no such many heads."""
        if (family := self.run.cfg.model.family) != 'seq2seq':
            raise UserError(f'--keep={left}: there is nothing to decode in model.family={family}')
        assert isinstance(judged, PairSplit)
        too_few.refuse(self.run.cfg.data, judged.name, len(judged))
        R = len(self.heads)
        if not 0 <= left < R:
            raise UserError(f'--keep={left}: a number from 0 to {R - 1}, as there are {R} heads')

    def decoded(self, orders: Mapping[str, Sequence[Head]], left: int, judged: Split) -> dict[str, dict[str, float]]:
        """Error rates of decoding a split of pairs: of the whole model, and with `left` heads by each of the orders."""
        assert isinstance(judged, PairSplit)
        decoder, model = Decoder(self.run.cfg, self.run.model, self.run.vocab, self._mesh), self.run.cfg.model
        gone = {'all heads': [], **{name: order[: len(self.heads) - left] for name, order in orders.items()}}
        found = {}
        for name, heads in gone.items():
            outputs = decoder.outputs(prune.masked(self._params, model, heads), judged)
            truncated = float(outputs.truncated.mean())
            found[name] = decoder.totals(decoder.errors(outputs, judged)) | {'truncated': truncated}
        return found


def as_json(importance: Importance, curves: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, Any]:
    """The numbers, the head that matters most first, and the curves."""
    rows = []
    for head in reversed(importance.order()):
        number = importance.heads.index(head)
        row: dict[str, Any] = {'head': str(head)}
        for by in ('masking', 'gradient'):
            found = getattr(importance, by)
            row[by] = [float(ends[number]) for ends in (found.value, found.low, found.high)]
        rows.append(row)
    return {'loss': importance.loss, 'heads': rows, 'curves': {name: list(points) for name, points in curves.items()}}


def as_text(importance: Importance, curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """A line per head, a line per point of the curves, and what to prune to keep half."""
    content = as_json(importance, curves)
    lines = [f'loss {importance.loss:.4f}; without the head, its change and 95 % interval; mean |gradient|, the same']
    for row in content['heads']:
        cells = [f'{value:9.4f} [{low:.4f}, {high:.4f}]' for value, low, high in (row['masking'], row['gradient'])]
        lines.append(f'  {row["head"]:<14}' + ''.join(f'{cell:<30}' for cell in cells).rstrip())
    if curves:
        names = list(curves)
        lines += ['', 'loss by the number of heads that are left, the least important masked first']
        lines.append(f'{"heads":>7}' + ''.join(f'{name:>10}' for name in names))
        for points in zip(*curves.values(), strict=True):
            lines.append(f'{points[0][0]:>7}' + ''.join(f'{loss:>10.4f}' for _, loss in points))
    half = ','.join(map(str, importance.order()[: len(importance.heads) // 2]))
    return '\n'.join([*lines, '', f'half of them, the least important: jaxformer inspect prune --heads={half}'])


def decoded_text(decoded: Mapping[str, Mapping[str, float]], left: int) -> str:
    """A line for each order, in percent, and one with mean and standard deviation over those at random."""
    names = list(next(iter(decoded.values())))
    lines = [f'error rates of decoding test, %, with {left} heads left']
    lines.append(f'{"":<18}' + ''.join(f'{n:>16}' for n in names))
    for name, found in decoded.items():
        lines.append(f'{name:<18}' + ''.join(f'{100 * found[n]:>16.2f}' for n in names))
    random = [found for name, found in decoded.items() if name.startswith('random')]
    if len(random) > 1:
        columns = [[100 * found[n] for found in random] for n in names]
        cells = [f'{np.mean(column):.2f} ± {np.std(column, ddof=1):.2f}' for column in columns]
        lines.append(f'{"random, mean ± sd":<18}' + ''.join(f'{cell:>16}' for cell in cells))
    return '\n'.join(lines)


def figure(curves: Mapping[str, Sequence[tuple[int, float]]]) -> Any:
    """A matplotlib figure of the curves; the orders at random are one colour."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6, 4), layout='constrained')
    axes = drawn.subplots()
    style: Callable[[str], dict[str, Any]] = lambda name: (  # noqa: E731
        {'color': '0.7', 'label': 'at random' if name == 'random 1' else None}
        if name.startswith('random')
        else {'marker': 'o', 'markersize': 3, 'label': f'by {name}'}
    )
    for name, points in curves.items():
        axes.plot([left for left, _ in points], [loss for _, loss in points], **style(name))
    axes.set_xlabel('heads that are left')
    axes.set_ylabel('loss, nats per label')
    axes.invert_xaxis()
    axes.legend(frameon=False)
    axes.spines[['top', 'right']].set_visible(False)
    return drawn


def draw(curves: Mapping[str, Sequence[tuple[int, float]]], directory: epath.PathLike, fmt: str = 'png') -> epath.Path:
    """Writes the figure as `directory/heads.<fmt>`.

    Raises:
      UserError: an unknown format, or a directory that cannot be written.
    """
    if fmt not in FORMATS:
        raise UserError(f'format {fmt!r}: choose one of {", ".join(FORMATS)}')
    path = epath.Path(directory) / f'heads.{fmt}'
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open('wb') as file:
            figure(curves).savefig(file, format=fmt, dpi=150)
    except OSError as error:
        raise UserError(f'{directory}: {error.strerror or error}; choose a directory that can be written') from error
    return path
