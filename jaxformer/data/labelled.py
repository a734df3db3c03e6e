"""A file of lines with a label, a tab and a text."""

from etils import epath

from jaxformer.data.examples import Labelled
from jaxformer.data.held_out import SPLITS, divided
from jaxformer.data.text import IN_NAME, read_lines
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Labelled]]:
    """The texts of each split; a file without {split} in its name is split by a hash of the text.

    Raises:
      UserError: a file cannot be read, or a line of it has no label.
    """
    del directory
    if IN_NAME in data.source:
        return {split: parse(data.source.replace(IN_NAME, split)) for split in SPLITS}
    rows = parse(data.source)
    return divided(rows, (row.text for row in rows))


def parse(path: str) -> list[Labelled]:
    """The lines of a file; blank ones are none."""
    rows = []
    for number, line in enumerate(read_lines(epath.Path(path).expanduser()), start=1):
        label, tab, text = line.partition('\t')
        if tab and label.strip():
            rows.append(Labelled(text, label.strip()))
        elif line.strip():
            raise UserError(f'{path}, line {number}: no label before a tab; write label, tab, text')
    return rows
