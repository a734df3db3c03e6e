"""What a search gives, and how it is written down."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

Array = Any  # jax.Array in a search, np.ndarray after it


class Found(NamedTuple):
    """Hypotheses: [B] of those that find one for each row, [B, n] of those that find n, best first.

    tokens: [.., T] int32, the symbols with their EOS, then padding.
    logprob: float32, of these symbols given the source or prompt, EOS included, a forced prefix left out.
    score: float32, what they were ranked by; −inf where there is no further hypothesis.
    truncated: without an EOS within the limit of length.
    """

    tokens: Array
    logprob: Array
    score: Array
    truncated: Array


def as_line(found: Found, row: int, number: int, text: Callable[[np.ndarray], str]) -> str:
    """What a line of input becomes: its hypothesis, or of several each as `number ||| text ||| score` on its own line.

    Args:
      found: [B, n]. number: of the line. text: that of tokens.
    """
    if found.score.shape[1] == 1:
        return text(found.tokens[row, 0])
    scored = zip(found.tokens[row], found.score[row], strict=True)
    return _as_lines(number, ((text(tokens), score) for tokens, score in scored if score != -np.inf))


def blank(number: int, num_best: int) -> str:
    """What a blank line becomes where others become `num_best` hypotheses."""
    return '' if num_best == 1 else _as_lines(number, [('', 0.0)])


def _as_lines(number: int, hypotheses: Iterable[tuple[str, float]]) -> str:
    """In the manner of Moses' n-best lists."""
    return '\n'.join(f'{number} ||| {text} ||| {score:.6f}' for text, score in hypotheses)
