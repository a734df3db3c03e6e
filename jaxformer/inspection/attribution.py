"""Which symbols of a text a model's outputs depend on, by gradients and by deletion, beside what it attends to.

Attention weights say what is mixed, not what matters: here are measures of the latter, to be held against them. An
output is the log-probability of a symbol (or class) that the model gave; its inputs are the symbols that the encoder
reads, or, of a language model, those that the decoder reads. Whatever the run computes in, this is float32.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from jaxformer.decode.greedy import outputs
from jaxformer.decode.open import OpenRun
from jaxformer.inspection import example as examples
from jaxformer.inspection.example import Example, arrays, spelled
from jaxformer.inspection.rollout import cross_rollout, rollout
from jaxformer.model import transformer
from jaxformer.model.family import Family

TOLERANCE, FLOOR = 0.01, 1e-3
"""Of completeness: a share of the change, and nats below which a gap is rounding."""

RULE, LIMIT = 4, 3000
"""Points of Gauss and Legendre's on a piece of the way, and on all that are tried."""

TOGETHER = 8
"""Texts that go through the model at once."""

ATTENTION = ('attention', 'last_layer', 'rollout')


@dataclasses.dataclass(frozen=True, eq=False)
class Attribution:
    """Of one text: R outputs, C inputs.

    outputs, inputs: their symbols. scores_R: log-probability of each output, in nats.
    by: name → float32 [R, C]; nan where an input cannot be left out. Those of ATTENTION are missing where the mixer has
      no weight for every key.
        gradient_x_input     the gradient by the embedding of an input, times it
        integrated_gradients the same along the way from an embedding of zeros (Sundararajan et al. 2017, eq. 1)
        occlusion            how much the score falls when the input is deleted from the text
        attention            the weights, mean of all layers and heads; last_layer: of its heads; rollout: see there
    baseline_R: the scores with embeddings of zeros. gap_R: scores − baseline − the sum of the integrated gradients.
    points: of the path.
    """

    text: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    scores_R: np.ndarray
    by: dict[str, np.ndarray]
    baseline_R: np.ndarray
    gap_R: np.ndarray
    points: int


def of_run(run: OpenRun, text: str, target: str | None = None) -> Attribution:
    """Every measure, of one text.

    Raises:
      UserError: as `example.of_text`, or a side that is longer than the learned positions.
    """
    run = in_float32(run)
    given = examples.of_text(run, text, target)
    inputs = arrays(run, [given.source], [given.labels])
    ids_R = _outputs(run, given, inputs)
    C = len(given.source) or len(given.labels)
    gradient, scores = gradient_x_input(run, inputs, ids_R)
    integrated, baseline, gap, points = integrated_gradients(run, inputs, ids_R)
    by = {
        'gradient_x_input': gradient[:, :C],
        'integrated_gradients': integrated[:, :C],
        'occlusion': occlusion(run, given, ids_R, scores),
        **attended(run, given, inputs),
    }
    read = given.source or (run.cfg.model.ids.start, *given.labels[:-1])
    names = run.vocab.classes if run.cfg.model.family == 'classifier' else None
    return Attribution(
        text=text,
        outputs=tuple(names[id_] for id_ in ids_R) if names else spelled(run.vocab, ids_R.tolist()),
        inputs=spelled(run.vocab, read),
        scores_R=scores,
        by={name: np.asarray(array, np.float32) for name, array in by.items()},
        baseline_R=baseline,
        gap_R=gap,
        points=points,
    )


def in_float32(run: OpenRun) -> OpenRun:
    """The run with a model that computes in float32, by the plain formula of attention."""
    cfg = run.cfg.model
    cfg = dataclasses.replace(
        cfg,
        precision=dataclasses.replace(cfg.precision, compute='float32', softmax='float32'),
        attention=dataclasses.replace(cfg.attention, kernel='plain'),
    )
    return dataclasses.replace(run, model=transformer.build(cfg, len(run.vocab), len(run.vocab.classes)))


def _outputs(run: OpenRun, given: Example, inputs: tuple[np.ndarray, ...]) -> np.ndarray:
    """int [R]: what the decoder wrote; of an encoder what is most probable, at each place or of the whole text."""
    if given.labels:
        return np.asarray(given.labels)
    logits_RV = np.asarray(_forward(run.model, run.params, inputs)[0])[0]
    if run.cfg.model.family == 'mlm':
        logits_RV = np.where(outputs(logits_RV.shape[-1], len(run.vocab), run.vocab.ids), logits_RV, -np.inf)
    return logits_RV[: len(given.source)].argmax(-1)


@functools.partial(jax.jit, static_argnames=('model', 'collect'))
def _forward(
    model: Family,
    params: Any,
    inputs: tuple[jax.Array, ...],
    x_BCD: jax.Array | None = None,
    collect: tuple[str, ...] = (),
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """(logits [B, R, V], x_BCD, maps if collected) of a pass whose inputs are embedded as x_BCD; None: by the table."""
    seen: list[jax.Array] = []

    def embed(method: Any, args: Any, options: Any, context: nn.module.InterceptorContext) -> Any:
        given = method(*args, **options)
        if context.method_name != '_embed' or seen:  # the first is the encoder's, or that of a decoder alone
            return given
        seen.append(given if x_BCD is None else x_BCD)
        return seen[0]

    with nn.intercept_methods(embed):
        logits_BRV, maps = model.apply({'params': params}, *inputs, collect=collect)
    return logits_BRV, seen[0], dict(maps)


def _scores(logits_RV: jax.Array, ids_R: jax.Array) -> jax.Array:
    """[R] log-probabilities; rows beyond those of ids_R are padding."""
    logprobs_RV = jax.nn.log_softmax(logits_RV[: ids_R.shape[0]])
    return jnp.take_along_axis(logprobs_RV, ids_R[:, None], axis=-1)[:, 0]


@functools.partial(jax.jit, static_argnames=('model',))
def _jacobian(
    model: Family, params: Any, inputs: tuple[jax.Array, ...], ids_R: jax.Array, x_BCD: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(the gradients [R, C, D] of the scores by the embeddings, the scores [R])."""

    scores = lambda x_BCD: _scores(_forward(model, params, inputs, x_BCD)[0][0], ids_R)  # noqa: E731
    scores_R, back = jax.vjp(scores, x_BCD)
    # Not all at once: of each output the way back begins with a row of logits for every place.
    gradient_RBCD = jax.lax.map(lambda one_R: back(one_R)[0], jnp.eye(len(ids_R)), batch_size=TOGETHER)
    return gradient_RBCD[:, 0], scores_R


def _gradients(
    run: OpenRun, inputs: tuple[np.ndarray, ...], ids_R: np.ndarray, x_BCD: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """As `_jacobian`; R is rounded up for it, so that texts of about the same length share a program."""
    R, rows = len(ids_R), 1 if _pooled(run) else inputs[-1].shape[1]
    rounded = np.zeros(min(R + -R % TOGETHER, rows), np.int32)
    rounded[:R] = ids_R
    gradient_RCD, scores_R = _jacobian(run.model, run.params, inputs, rounded, x_BCD)
    return np.asarray(gradient_RCD)[:R], np.asarray(scores_R)[:R]


def _pooled(run: OpenRun) -> bool:
    """Whether there is one output for the whole text."""
    return run.cfg.model.family == 'classifier' and run.cfg.model.head.pooling != 'tokens'


def gradient_x_input(run: OpenRun, inputs: tuple[np.ndarray, ...], ids_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([R, C], the scores [R]); C with its padding, whose part is 0."""
    x_BCD = _forward(run.model, run.params, inputs)[1]
    gradient_RCD, scores_R = _gradients(run, inputs, ids_R, x_BCD)
    return np.einsum('RCD,CD->RC', gradient_RCD, x_BCD[0]), scores_R


class _Piece(NamedTuple):
    """Of the way, from one share of the embeddings to another: the scores there, the integral, what it misses."""

    ends: tuple[float, float]
    scores: tuple[np.ndarray, np.ndarray]
    integral_RC: np.ndarray
    gap_R: np.ndarray


def integrated_gradients(
    run: OpenRun, inputs: tuple[np.ndarray, ...], ids_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """([R, C], baseline [R], gap [R], points) along the straight way from zeros.

    Completeness holds for each piece of the way, too, and so says where an integral is wrong: the piece that misses
    most is halved until all together miss no more than TOLERANCE. (ReLUs bend the scores at many places of the way;
    points by one Gauss rule are three times as many, and more.) A warning says where LIMIT points are not enough.
    """
    x_BCD = _forward(run.model, run.params, inputs)[1]
    x_CD = np.asarray(x_BCD[0], np.float64)
    places, weights = np.polynomial.legendre.leggauss(RULE)

    def at(share: float) -> tuple[np.ndarray, np.ndarray]:
        gradient_RCD, scores_R = _gradients(run, inputs, ids_R, share * x_BCD)
        return gradient_RCD.astype(np.float64), scores_R.astype(np.float64)

    def piece(start: float, end: float, low_R: np.ndarray, high_R: np.ndarray) -> _Piece:
        middle, half = (start + end) / 2, (end - start) / 2
        sum_RCD = sum(weight * at(middle + half * place)[0] for place, weight in zip(places, weights, strict=True))
        integral_RC = np.einsum('RCD,CD->RC', half * sum_RCD, x_CD)
        return _Piece((start, end), (low_R, high_R), integral_RC, high_R - low_R - integral_RC.sum(axis=1))

    baseline_R, scores_R = at(0.0)[1], at(1.0)[1]
    allowed_R = np.maximum(TOLERANCE * np.abs(scores_R - baseline_R), FLOOR)
    pieces = [piece(0.0, 1.0, baseline_R, scores_R)]
    while True:
        gaps_NR = np.stack([each.gap_R for each in pieces])
        gap_R, points = gaps_NR.sum(axis=0), RULE * (2 * len(pieces) - 1)
        # That they cancel is no luck to build on: each by itself may miss ten times as much.
        if np.all(np.abs(gap_R) <= allowed_R) and np.all(np.abs(gaps_NR).sum(axis=0) <= 10 * allowed_R):
            break
        if points >= LIMIT:
            logging.warning('integrated gradients: %d points miss up to %.2g nats', points, np.abs(gap_R).max())
            break
        (start, end), (low_R, high_R), _, _ = pieces.pop(int(np.abs(gaps_NR).max(axis=1).argmax()))
        middle_R = at((start + end) / 2)[1]
        pieces.append(piece(start, (start + end) / 2, low_R, middle_R))
        pieces.append(piece((start + end) / 2, end, middle_R, high_R))
    return sum((each.integral_RC for each in pieces), np.zeros(())), baseline_R, gap_R, points


def occlusion(run: OpenRun, given: Example, ids_R: np.ndarray, scores_R: np.ndarray) -> np.ndarray:
    """[R, C]: how much each score falls when an input is deleted and those behind it move up.

    nan where that is not defined: the start symbol of a decoder, and a place whose own output is asked for.
    """
    family, R = run.cfg.model.family, len(ids_R)
    own = given.source or given.labels
    shorter = [own[:c] + own[c + 1 :] for c in range(len(own))]
    labels = shorter if family == 'lm' else [given.labels] * len(own)
    falls_RA = np.full((R, len(own)), np.nan)
    for c, logprobs_RV in enumerate(_in_groups(run, shorter, labels)):
        # Row of the shorter text in which each output is; where inputs and outputs are the same places, -1 of its own.
        places_R = np.arange(R)
        if family != 'seq2seq' and not _pooled(run):
            places_R = np.where(places_R < c, places_R, np.where(places_R == c, -1, places_R - 1))
        kept = places_R >= 0
        falls_RA[kept, c] = scores_R[kept] - logprobs_RV[places_R[kept], ids_R[kept]]
    if family != 'lm':
        return falls_RA
    # Column c + 1 is the input that label c becomes; what was written before it does not know of it.
    found_RC = np.full((R, R), np.nan)
    found_RC[:, 1:] = np.where(np.arange(R)[:, None] > np.arange(R - 1), falls_RA[:, :-1], 0)
    return found_RC


def _in_groups(run: OpenRun, source: list[tuple[int, ...]], labels: list[tuple[int, ...]]) -> Iterator[np.ndarray]:
    """The log-probabilities [R, V] of each row, worked out TOGETHER at a time, in the shape of the bucket."""
    more = -len(source) % TOGETHER
    source, labels = [*source, *source[:1] * more], [*labels, *labels[:1] * more]
    for start in range(0, len(source) - more, TOGETHER):
        group = slice(start, start + TOGETHER)
        logits_BRV, _, _ = _forward(run.model, run.params, arrays(run, source[group], labels[group]))
        yield from np.asarray(jax.nn.log_softmax(logits_BRV))[: len(source) - more - start]


def attended(run: OpenRun, given: Example, inputs: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """ATTENTION → [R, C], {} where the mixer that looks at the inputs has no weight for every key."""
    _, _, found = _forward(run.model, run.params, inputs, collect=('attention',))
    S, T = len(given.source), len(given.labels)
    sizes = {'encoder': (S, S), 'decoder': (T, T), 'cross': (T, S)}
    maps = {kind: np.asarray(found[kind])[:, 0, :, :t, :s] for kind, (t, s) in sizes.items() if kind in found}
    kind = {'seq2seq': 'cross', 'lm': 'decoder'}.get(run.cfg.model.family, 'encoder')
    if kind not in maps:
        return {}
    by = {'attention': maps[kind].mean(axis=(0, 1)), 'last_layer': maps[kind][-1].mean(axis=0)}
    if kind != 'cross':
        by['rollout'] = rollout(maps[kind])
    elif maps.keys() == sizes.keys():
        by['rollout'] = cross_rollout(maps['encoder'], maps['decoder'], maps['cross'])
    if run.cfg.model.family == 'classifier':
        by = {name: POOLED[run.cfg.model.head.pooling](array) for name, array in by.items()}
    return by


POOLED = {
    'first': lambda array: array[:1],
    'mean': lambda array: array.mean(axis=0, keepdims=True),
    'tokens': lambda array: array,
}
"""model.head.pooling → what its outputs see of the weights of all places."""
