"""Which numbers a field takes, for errors that name a number as it is called elsewhere."""

import math
import typing
from typing import Any

from jaxformer import choices, values
from jaxformer.errors import UserError
from jaxformer.schema import Config

OF_THE_DATA = ('model.vocab_size', 'model.head.num_classes')
"""Sizes that 0 leaves to the data here, and that are always said elsewhere."""

_RANGES = {path: (low, high) for path, low, high in choices.RANGES}


def refuse_beyond(path: str, number: Any, said: str) -> None:
    """Raises UserError, beginning with `said`, where the field `path` takes no such number, whatever others hold."""
    hint: Any = Config
    for name in path.split('.'):
        hint = typing.get_type_hints(hint)[name]
    try:
        number = values.coerce(path, number, hint)
    except UserError:
        raise UserError(f'{said}: must be {"an integer" if hint is int else "a number"}') from None
    if path in choices.BELOW_ONE and not 0 <= number < 1:
        raise UserError(f'{said}: must be from 0 up to but not including 1')
    if path in _RANGES:
        low, high = _RANGES[path]
        low = max(low, 1) if path in OF_THE_DATA else low
        most = min(high, 2**31 - 1) if hint is int else high
        if not (low <= number <= most and number < math.inf):
            raise UserError(
                f'{said}: must be ' + (f'from {low} to {most}' if most < math.inf else f'finite, from {low}')
            )
