"""Code of the standard library with classes: the package that a piece belongs to, or the syntax of each token."""

import collections
import tokenize

from absl import logging
from etils import epath

from jaxformer.data import stdlib, syntax
from jaxformer.data.examples import Labelled
from jaxformer.data.held_out import SPLITS, divided
from jaxformer.schema import DataConfig

PACKAGES = 12
"""The packages with the most modules are the classes of data.labels=package."""


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Labelled]]:
    """The modules of each split, by a hash of their path; `prepare` cuts them into pieces."""
    del directory
    return {'package': _by_package, 'syntax': _by_syntax}[data.labels]()


def _by_package() -> dict[str, list[Labelled]]:
    packages: dict[str, dict[str, Labelled]] = collections.defaultdict(dict)
    for module, text in stdlib.texts().items():
        package, inside, _ = module.partition('/')
        if inside:
            packages[package][module] = Labelled(text, package)
    largest = sorted(packages, key=lambda package: len(packages[package]), reverse=True)[:PACKAGES]
    found: dict[str, list[Labelled]] = {split: [] for split in SPLITS}
    for package in sorted(largest):  # one by one, so that each has modules in every split
        for split, rows in divided(list(packages[package].values()), packages[package]).items():
            found[split] += rows
    return found


def _by_syntax() -> dict[str, list[Labelled]]:
    examples, names = [], []
    texts = stdlib.texts()
    for module, text in texts.items():
        try:
            examples.append(Labelled(text, syntax.of_characters(text)))
            names.append(module)
        except (SyntaxError, tokenize.TokenError):
            continue
    if left_out := len(texts) - len(names):
        logging.warning(
            'config.data.name=stdlib_labels: %d modules that this Python cannot tokenize are left out', left_out
        )
    return divided(examples, names)
