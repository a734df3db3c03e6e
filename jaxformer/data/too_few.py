"""What is said where a split has no examples, or so few that numbers about it mean little."""

from absl import logging

from jaxformer.data.held_out import SHARES
from jaxformer.data.text import IN_NAME, PIECE
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

FEW = 30
"""Examples of a split (rows of a text) below which a warning is due."""

UNITS = {'text': f'pieces of about {PIECE:,} characters', 'parallel': 'lines', 'labelled': 'lines'}
"""data.name → what of a file without {split} in its name goes to one split or another."""


def refuse(data: DataConfig, split: str, count: int) -> None:
    """Raises UserError where a split has no examples."""
    if not count:
        raise UserError(f'{_named(data)}: no example for {split}; {_remedy(data, split)}')


def warn(data: DataConfig, split: str, count: int) -> None:
    """Warns of a split with few examples."""
    if count < FEW:
        number = f'{count} example{"s" * (count != 1)}'
        logging.warning('%s: %s has only %s; %s', _named(data), split, number, _remedy(data, split))


def _named(data: DataConfig) -> str:
    return f'config.data.source={data.source}' if data.name in UNITS else f'config.data.name={data.name}'


def _remedy(data: DataConfig, split: str) -> str:
    if data.name not in UNITS:
        return 'ask for more, or use another data set'
    if IN_NAME in data.source:
        return f'write more into {data.source.replace(IN_NAME, split)}'
    shares = ', '.join(f'{share} % to {name}' for name, share in SHARES.items())
    return (
        f'a hash divides its {UNITS[data.name]} ({shares}); give more text, '
        f'or a file for each split, with {IN_NAME} in data.source for train, dev and test'
    )
