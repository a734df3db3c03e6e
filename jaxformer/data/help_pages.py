"""Help pages of LibreOffice in two languages: elements with the same id on the same page say the same.

The pages are those of the Debian packages libreoffice-help-en-us and libreoffice-help-de (MPL-2.0) and their like,
below /usr/share/libreoffice/help/LANGUAGE; data.source and data.target name two such folders. A page belongs to a split
whole, so that none is learnt from and judged by. Importing this module imports tensorflow_datasets.
"""

import hashlib
import html.parser
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from jaxformer.data import pairs, text
from jaxformer.data.examples import Pair
from jaxformer.data.held_out import SPLITS, split_of
from jaxformer.data.pairs import PairsBuilder
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

WORDS, LEAST = (3, 60), 2
"""Least and greatest number of words of a source, and least of a target: shorter ones are names and labels."""

RATIO = 0.4, 2.5
"""Least and greatest number of characters of a target for one of its source."""

_TAGS = ('p', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6')
_IDS = ('hd_id', 'par_id')  # of what is translated; other ids are numbered anew by each build


class _Elements(html.parser.HTMLParser):
    """Id → text of the headings and paragraphs of a page, in their order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, str] = {}
        self._id, self._tag = '', ''
        self._parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _TAGS:
            self._end()
            name = dict(attrs).get('id') or ''
            self._id, self._tag = (name, tag) if name.startswith(_IDS) else ('', '')
        elif tag == 'br':
            self._parts.append(' ')

    def handle_endtag(self, tag: str) -> None:
        if tag == self._tag:
            self._end()

    def handle_data(self, data: str) -> None:
        if self._id:
            self._parts.append(data)

    def _end(self) -> None:
        if self._id and (words := ''.join(self._parts).split()):
            self.texts.setdefault(self._id, ' '.join(words))
        self._id, self._tag, self._parts = '', '', []


def elements(page: str) -> dict[str, str]:
    """Id → text of the translated headings and paragraphs of a page; blanks and line ends in a row are one blank."""
    parser = _Elements()
    parser.feed(page)
    parser.close()
    return parser.texts


def aligned(source: dict[str, str], target: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The texts of one page in both languages that are translations of each other, in the order of the source."""
    for name, ours in source.items():
        theirs = target.get(name, '')
        words, ratio = len(ours.split()), len(theirs) / len(ours)
        fits = WORDS[0] <= words <= WORDS[1] and len(theirs.split()) >= LEAST and RATIO[0] <= ratio <= RATIO[1]
        if fits and ours != theirs:
            yield ours, theirs


def pages(field: str, folder: str) -> dict[str, Path]:
    """Path below the folder → page, in alphabetical order. Raises UserError, naming the field, where there is none."""
    root = Path(folder).expanduser()
    found = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob('*.html'))}
    if not found:
        raise UserError(
            f'config.data.{field}={folder}: no help pages (*.html) below it; install libreoffice-help-en-us and '
            'libreoffice-help-de, and give /usr/share/libreoffice/help/en-US and …/de'
        )
    return found


def fingerprint(data: DataConfig) -> str:
    """Another text where a page of either folder is another one (by its path, size and time of change)."""
    folders = [pages(field, getattr(data, field)) for field in ('source', 'target')]
    found = [text.fingerprint([epath.Path(page) for page in folder.values()]) for folder in folders]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


class HelpPages(PairsBuilder):
    """Headings and paragraphs of LibreOffice's help in two languages."""

    def __init__(self, source: str, target: str, **options: Any) -> None:
        self._folders = {'source': source, 'target': target}
        super().__init__(**options)

    def pairs(self) -> dict[str, list[Pair]]:
        """What is on several pages belongs to the first of them, so that no pair is in two splits."""
        sides = [pages(field, folder) for field, folder in self._folders.items()]
        taken: dict[str, list[Pair]] = {split: [] for split in SPLITS}
        seen = set()
        for name in (name for name in sides[0] if name in sides[1]):
            for pair in aligned(*(elements(text.read_text(side[name])) for side in sides)):
                if pair not in seen:
                    seen.add(pair)
                    taken[split_of(name)].append({'source': pair[0], 'target': pair[1], 'references': [pair[1]]})
        if not seen:
            raise UserError(
                f'config.data.source={self._folders["source"]}, config.data.target={self._folders["target"]}: '
                'no page has the same name and the same ids in both; give the folders of two languages of one release'
            )
        return taken


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Pair]]:
    """The pairs of each split, by way of `directory`.

    Raises:
      UserError: a folder has no pages, or the two have nothing in common.
    """
    return pairs.read(HelpPages(data.source, data.target, data_dir=directory, file_format='array_record'))
