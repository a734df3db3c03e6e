"""What a model wrote for the training examples, as their targets (sequence-level distillation, Kim & Rush 2016)."""

import re
from collections.abc import Sequence

from etils import epath

from jaxformer.data.examples import Pair
from jaxformer.data.text import read_lines
from jaxformer.errors import UserError

_ONE_OF_SEVERAL = re.compile(r'(\d+) \|\|\| (.*) \|\|\| -?(?:\d+\.\d+|inf|nan)')

_REMEDY = 'let `jaxformer decode --workdir=TEACHER --split=train --output=FILE` of a run on the same data write it'


def in_place(pairs: Sequence[Pair], path: str) -> list[Pair]:
    """Each pair with what the file holds for it in the place of its target; as many times as it holds hypotheses.

    Args:
      path: of a file of `jaxformer decode`: a line for each pair, or n-best (see `decode/found.py`).

    Raises:
      UserError: the file cannot be read, or is not of as many examples.
    """
    lines = read_lines(epath.Path(path).expanduser())
    of_several = [_ONE_OF_SEVERAL.fullmatch(line) for line in lines]
    if lines and all(of_several):
        written = [(int(found[1]), found[2]) for found in of_several if found]
    else:
        written = list(enumerate(lines))
    numbers = [number for number, _ in written]
    if (outputs := len(set(numbers))) != len(pairs):
        raise UserError(f'data.targets={path}: {outputs} outputs and {len(pairs)} pairs in train; {_REMEDY}')
    if numbers != sorted(numbers) or numbers[-1] != len(pairs) - 1:
        raise UserError(
            f'data.targets={path}: its numbers are not those from 0 to {len(pairs) - 1}, in order; {_REMEDY}'
        )
    if not any(text.strip() for _, text in written):
        raise UserError(f'data.targets={path}: every output is empty; {_REMEDY}')
    return [{'source': pairs[i]['source'], 'target': text, 'references': [text]} for i, text in written]
