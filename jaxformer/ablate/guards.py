"""What makes cells hard to compare: quantities that differ from the baseline's though nobody said that they should."""

from collections.abc import Container, Mapping, Sequence

from jaxformer import config as config_lib
from jaxformer.ablate import match, metrics
from jaxformer.ablate.count import Cost
from jaxformer.schema import Config

QUANTITIES = {'parameters': 'parameters', 'flops': 'FLOPs', 'tokens': 'tokens seen', 'batch': 'effective batch'}
"""Fields of `Cost` by their names in print; AXIS may name them beside fields of the configuration."""

_FOLLOW = {'train.num_steps': ('tokens', 'flops'), 'train.batch_size': ('batch',)}
"""Fields that are another name for a quantity: where a cell differs in one that is on the axis, it declares it. (More
steps are more of the same work; a larger batch is not, unless the steps become fewer.)"""


def unlike(base: Cost, cell: Cost, axis: Sequence[str], differing: Container[str]) -> dict[str, float]:
    """{quantity: this cell's over the base's, minus 1} where they differ and the axis does not say so.

    Parameters and FLOPs count as different beyond 1 %, tokens and batch at all; what was not counted, never.

    Args:
      differing: the fields of the configuration in which the two differ.
    """
    declared = {*axis, *(name for field in axis if field in differing for name in _FOLLOW.get(field, ()))}
    found = {}
    for name in QUANTITIES:
        before, now = getattr(base, name), getattr(cell, name)
        if name in declared or not before or now is None or now == before:
            continue
        if name in ('tokens', 'batch') or abs(now - before) > match.TOLERANCE * before:
            found[name] = now / before - 1
    return found


def fields(axis: Sequence[str]) -> tuple[str, ...]:
    """The fields of the configuration on an axis."""
    return tuple(name for name in axis if name not in QUANTITIES)


def described(unlike: Mapping[str, float]) -> str:
    """'parameters −4.2%, FLOPs +12.0%'."""
    return ', '.join(f'{QUANTITIES[name]} {share:+.1%}' for name, share in unlike.items())


def other_units(metric: str, cells: Sequence[tuple[str, Config]]) -> list[str]:
    """A warning for each cell, (label, configuration), whose metric is of other things than the first one's."""
    if metric.endswith('/bits_per_byte'):
        return []
    _, baseline = cells[0]
    found = [(label, [f for f in config_lib.diff(baseline, cfg) if f in metrics.UNITS]) for label, cfg in cells]
    return [
        f'{label!r} has another {", ".join(fields)} than the base: {metrics.title(metric)} is not of the same things '
        "(bits_per_byte compares language models over tokenizers: METRIC = 'bits_per_byte')"
        for label, fields in found
        if fields
    ]
