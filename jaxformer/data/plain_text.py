"""Text files of the user's as documents of a language model."""

from etils import epath

from jaxformer.data.held_out import SPLITS, divided
from jaxformer.data.text import IN_NAME, find, pieces, read_text
from jaxformer.schema import DataConfig


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[str]]:
    """The documents of each split: whole files where {split} in the name says which, in the order of their names.

    Else the files are cut into pieces of about 4 KB (`text.pieces`), which are split by a hash of their content without
    the blanks around it.

    Raises:
      UserError: there is no such file, or one that is not UTF-8.
    """
    del directory
    if IN_NAME in data.source:
        return {split: [read_text(file) for file in find('config.data.source', data.source, split)] for split in SPLITS}
    cut = [piece for file in find('config.data.source', data.source) for piece in pieces(read_text(file))]
    return divided(cut, (piece.strip() for piece in cut))
