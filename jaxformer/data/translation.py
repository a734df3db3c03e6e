"""A translation data set of TFDS, such as wmt14_translate/de-en: the features data.source and data.target as pairs.

It is looked for, and put, where TFDS keeps its data sets (~/tensorflow_datasets, or $TFDS_DATA_DIR). Importing this
module imports tensorflow_datasets.
"""

from typing import Any

import tensorflow_datasets as tfds
from absl import logging
from etils import epath

from jaxformer.data.examples import Pair
from jaxformer.data.held_out import SPLITS, split_of
from jaxformer.data.pairs import as_text, prepare, records
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig

NAMES = {'validation': 'dev', 'valid': 'dev'}
"""TFDS split → ours; others are called the same."""


def read(data: DataConfig, directory: epath.Path) -> dict[str, list[Pair]]:
    """The pairs of each split; a dev or test that the data set does not have is taken from train, by a hash.

    Raises:
      UserError: there is no such data set or feature, or it cannot be downloaded.
    """
    del directory
    splits = _splits(data)
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for name, rows in splits.items():
        found.get(NAMES.get(name, name), []).extend(_pair(data, record) for record in records(rows))
    missing = [split for split in SPLITS[1:] if not found[split]]
    train, found['train'] = found['train'], []
    for pair in train:
        split = split_of(pair['source'])
        found[split if split in missing else 'train'].append(pair)
    return found


def _splits(data: DataConfig) -> dict[str, Any]:
    import tensorflow_datasets.translate  # noqa: F401  (registers the older translation sets)

    logging.info('config.data.name=%s: TFDS prepares it, unless it has done so before', data.name)
    try:
        builder = tfds.builder(data.name, file_format='array_record')
        if unknown := [name for name in (data.source, data.target) if name not in builder.info.features]:
            raise UserError(
                f'config.data.name={data.name}: has no feature {unknown[0]!r}; '
                f'data.source and data.target are two of {", ".join(builder.info.features)}'
            )
        prepare(builder)
        return builder.as_data_source(None)
    except UserError:
        raise
    except tfds.core.DatasetNotFoundError:
        raise UserError(f'config.data.name={data.name}: TFDS has no such data set; see its catalogue') from None
    except Exception as error:  # of the network, the disk or the builder: TFDS lets everything through
        reason = str(error).strip().partition('\n')[0]
        raise UserError(
            f'config.data.name={data.name}: TFDS cannot prepare it ({type(error).__name__}: {reason}); it needs a '
            'network, or a copy of a prepared one in ~/tensorflow_datasets or $TFDS_DATA_DIR'
        ) from error


def _pair(data: DataConfig, record: dict[str, Any]) -> Pair:
    """A record as a pair of lines: a newline inside a text counts as a blank."""
    source, target = (' '.join(as_text(record[name]).split('\n')) for name in (data.source, data.target))
    return {'source': source, 'target': target, 'references': [target]}
