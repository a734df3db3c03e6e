"""What a model wrote for the training examples, as their targets (sequence-level distillation, Kim & Rush 2016)."""

import re
from collections.abc import Sequence

import numpy as np
from absl import logging
from etils import epath

from jaxformer.data.examples import Pair
from jaxformer.data.text import read_lines
from jaxformer.errors import UserError

_NUMBERED = re.compile(r'[0-9]+ \|\|\| ')

_REMEDY = 'let `jaxformer decode --workdir=TEACHER --split=train --output=FILE` of a run on the same data write it'

_SHOWN = 40  # characters of a damaged line

_SAMPLED = 1000
"""Hypotheses, spread over all, that are held against the targets of train."""

_LEAST, _ALIKE = 100, 0.9
"""Hypotheses by which anything is said; what two targets share that say nothing of each other's places."""


def in_place(pairs: Sequence[Pair], path: str) -> list[Pair]:
    """Each pair with what the file holds for it in the place of its target; as many times as it holds hypotheses.

    A warning says where what it holds fits other pairs as well.

    Args:
      path: of a file of `jaxformer decode`: a line for each pair, or n-best (see `decode/found.py`).

    Raises:
      UserError: the file cannot be read, is not of as many examples, or a line of n-best is damaged.
    """
    field = f'config.data.targets={path}'
    lines = read_lines(epath.Path(path).expanduser())
    if 2 * sum(bool(_NUMBERED.match(line)) for line in lines) > len(lines):  # a damaged line is no other form
        written = _of_several(field, lines, len(pairs))
    else:
        written = list(enumerate(lines))
    if (outputs := len({number for number, _ in written})) != len(pairs):
        raise UserError(f'{field}: {outputs} outputs and {len(pairs)} pairs in train; {_REMEDY}')
    if not any(text.strip() for _, text in written):
        raise UserError(f'{field}: every output is empty; {_REMEDY}')
    _warn_of_others(field, pairs, written)
    return [{'source': pairs[i]['source'], 'target': text, 'references': [text]} for i, text in written]


def _of_several(field: str, lines: Sequence[str], pairs: int) -> list[tuple[int, str]]:
    """(number, text) of each line of n-best. Raises UserError for the first that is damaged or out of order."""
    written: list[tuple[int, str]] = []
    for place, line in enumerate(lines, 1):
        number, _, rest = line.partition(' ||| ')
        text, mark, score = rest.rpartition(' ||| ')
        last = written[-1][0] if written else -1
        if not mark:
            wrong = f'{_short(line)} is not `number ||| text ||| score`'
        elif not (number.isascii() and number.isdecimal() and len(number) < 19):
            wrong = f'number {_short(number)} is no count from 0'
        elif not _is_number(score):
            wrong = f'score {_short(score)} is no number'
        elif int(number) >= pairs:
            wrong = f'number {number} is beyond the {pairs} pairs of train, which are 0 to {pairs - 1}'
        elif not written and int(number):
            wrong = f'number {number} is the first'
        elif not last <= int(number) <= last + 1:
            wrong = f'number {number} comes after {last}'
        else:
            written.append((int(number), text))
            continue
        raise UserError(f'{field}: line {place}: {wrong}; {_REMEDY}')
    return written


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…')


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _warn_of_others(field: str, pairs: Sequence[Pair], written: Sequence[tuple[int, str]]) -> None:
    """Warns where texts share no more with the targets of their own pairs than with those of others.

    A file says nothing of the sources that it was made of, and its lines may be as many by chance. The others are the
    pairs before and behind, into whose places a lost line moves those that follow it, and the pair half of the data on,
    as far as their targets are unlike. More is by three standard errors.
    """
    some = np.unique(np.linspace(0, len(written) - 1, _SAMPLED).astype(int)).tolist()
    for shift in (1, -1, len(pairs) // 2):
        more = [
            _shared(text, own) - _shared(text, other)
            for number, text in (written[i] for i in some)
            if _shared(own := pairs[number]['target'], other := pairs[(number + shift) % len(pairs)]['target']) < _ALIKE
        ]
        if len(more) >= _LEAST and np.mean(more) <= 3 * np.std(more) / np.sqrt(len(more)):
            logging.warning(
                '%s: its outputs share no more with the targets of their own pairs than with those of others (%+d), as '
                'if they were of other data, or moved; %s', field, shift, _REMEDY,
            )  # fmt: skip
            return


def _shared(one: str, other: str) -> float:
    """Share of pairs of characters that two texts have in common, of those of the one that has more."""
    both = [{text[i : i + 2] for i in range(len(text) - 1)} for text in (f' {one} ', f' {other} ')]
    return len(both[0] & both[1]) / max(map(len, both))
