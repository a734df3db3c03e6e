"""How fields, values, numbers and tables are written in the plan and in the report."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxformer import config as config_lib


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """Each dotted field by the fewest of its last names that tell it from the others: `model.d_k` → `d_k`.

    The others are those given, and every field or group of a configuration that lies no deeper:
    `model.dropout.residual` is `dropout.residual` and leaves the shorter name to `model.residual`.
    """
    fields = tuple(dict.fromkeys(fields))
    everything = config_lib.fields()
    groups = {'.'.join(field.split('.')[:length]) for field in everything for length in (1, 2)}
    names = {}
    for field in fields:
        parts = field.split('.')
        tails = ['.'.join(parts[-length:]) for length in range(1, len(parts) + 1)]
        shallow = (other for other in {*everything, *groups} if other.count('.') <= field.count('.'))
        others = {*fields, *shallow} - {field}
        unique = (tail for tail in tails if not any(f'.{other}'.endswith(f'.{tail}') for other in others))
        names[field] = next(unique, field)
    return names


def show(value: Any) -> str:
    """A field's value in a label or a table: text bare, everything else as Python writes it."""
    return value if isinstance(value, str) else repr(value)


_LONGEST_LABEL = 22  # characters; in a figure longer ones shrink the curves too far, their number in the table does


def row_name(index: int, label: str = '', short: bool = False) -> str:
    """How a cell is called: 'base', '(1)', or with its label '(1) d_k=16'; with `short` only a label that is short."""
    name = 'base' if index == 0 else f'({index})'
    return f'{name} {label}'.strip() if not short or (index and len(label) <= _LONGEST_LABEL) else name


def changes(pairs: Mapping[str, Sequence[Any]]) -> str:
    """'d_k=16 d_v=16' of {field: (baseline's value, this cell's value)}."""
    return ' '.join(f'{name}={show(pairs[field][1])}' for field, name in short_names(pairs).items())


def printed(figures: Sequence[float | str | None]) -> list[str]:
    """A column of figures as text: numbers with as many decimals as the one that has most, nothing for None."""
    decimals = max((len(repr(value).partition('.')[2]) for value in figures if isinstance(value, float)), default=0)
    numbers = [f'{value:.{decimals}f}' if isinstance(value, float) else value for value in figures]
    return ['' if value is None else str(value) for value in numbers]


def operations(count: float) -> str:
    """A number of operations with three digits: 6.75e18 → '6.75 E', 123456 → '123 k'."""
    for prefix, size in (('E', 1e18), ('P', 1e15), ('T', 1e12), ('G', 1e9), ('M', 1e6), ('k', 1e3)):
        if count >= 0.9995 * size:
            digits = f'{count / size:#.3g}' if count < 999.5 * size else f'{count / size:.0f}'
            return f'{digits.rstrip(".")} {prefix}'
    return f'{count:.0f}'


def duration(seconds: float) -> str:
    """'42 s', '12.5 min', '3.2 h'."""
    if seconds < 100:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.1f} min' if seconds < 6000 else f'{seconds / 3600:.1f} h'


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ['  '.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
