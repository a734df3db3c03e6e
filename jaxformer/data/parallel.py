"""Two text files, line by line: line i of one is the source of line i of the other."""

from etils import epath

from jaxformer.data.examples import Pair, without_empty
from jaxformer.data.held_out import SPLITS, divided
from jaxformer.data.text import IN_NAME, read_lines
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Pair]]:
    """The pairs of each split; files without {split} in their names are split by a hash of the source line.

    From these, pairs with a blank side are left out of every split.

    Raises:
      UserError: a file cannot be read, or two that belong together differ in their number of lines.
    """
    del directory
    if (IN_NAME in data.source) != (IN_NAME in data.target):
        raise UserError(
            f'config.data.source={data.source}, config.data.target={data.target}: {IN_NAME} in both names, or in none'
        )
    if IN_NAME in data.source:
        return {
            split: aligned(data.source.replace(IN_NAME, split), data.target.replace(IN_NAME, split)) for split in SPLITS
        }
    pairs = without_empty(aligned(data.source, data.target), data.source)
    return divided(pairs, (pair['source'] for pair in pairs))


def aligned(source: str, target: str) -> list[Pair]:
    """The pairs of lines of two files."""
    sides = [read_lines(epath.Path(path).expanduser()) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f'{source} has {len(sides[0])} lines and {target} has {len(sides[1])}; '
            'line i of one has to belong to line i of the other'
        )
    return [{'source': a, 'target': b, 'references': [b]} for a, b in zip(*sides, strict=True)]
