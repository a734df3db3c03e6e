"""Values as the types of fields: what a person wrote (command line, grid, JSON) made exact, or refused."""

import ast
import types
import typing
from typing import Any

from jaxformer.errors import UserError


def coerce(path: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type (text is read as on a command line), or a UserError with field, value and type."""
    if isinstance(hint, types.UnionType):  # float | None
        if value is None or value == 'None':
            return None
        hint = typing.get_args(hint)[0]
    error = UserError(f'config.{path}={value!r}: must be {_TYPE_NAMES[hint]}')
    if isinstance(value, str) and hint is not str:
        try:
            value = ast.literal_eval({'true': 'True', 'false': 'False'}.get(value, value.strip()))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval may raise
            raise error from None
    if typing.get_origin(hint) is tuple:
        return _coerce_tuple(value, hint, error)
    if hint is bool or hint is str:
        if not isinstance(value, hint):
            raise error
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise error
    try:
        number = hint(value)
    except (ValueError, OverflowError):  # an integer that is infinite or not a number, a float beyond 1e308
        raise error from None
    if hint is int and number != value:
        raise error
    return number


def _coerce_tuple(value: Any, hint: Any, error: UserError) -> Any:
    """Tuples of integers, as `hint` says, or tuples of such; lists (of JSON) are taken for tuples."""
    item, *rest = typing.get_args(hint)
    if not isinstance(value, (tuple, list)) or (rest != [Ellipsis] and len(value) != 1 + len(rest)):
        raise error
    if typing.get_origin(item) is tuple:
        return tuple(_coerce_tuple(part, item, error) for part in value)
    if not all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        raise error
    return tuple(value)


_TYPE_NAMES = {
    int: 'an integer',
    float: 'a number',
    bool: 'true or false',
    str: 'text',
    tuple[int, ...]: 'a tuple of integers such as (1, 2) or (3,)',
    tuple[tuple[int, ...], ...]: 'a tuple of tuples of integers such as ((8, 8), (16, 16))',
}
