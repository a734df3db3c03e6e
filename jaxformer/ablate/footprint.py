"""What the training steps of a grid's cells take of each device's memory, before anything is run."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxformer.ablate import count
from jaxformer.ablate.cells import Cell
from jaxformer.ablate.shown import columns
from jaxformer.decode import cache
from jaxformer.train import memory


def of_cells(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of each cell: its id, and of the bucket that takes most the bytes on each device (see `memory.StepMemory`).

    One step is compiled per cell and bucket, on the devices that are here. Beside it, decode_cache is what decoding a
    batch keeps, all rows of it, and what eval.unroll=on has apart (`decode/cache.py`); 0 where nothing is decoded.

    Raises:
      UserError: mesh, batch or buckets of a cell do not fit each other.
    """
    found = []
    for cell in cells:
        steps = memory.of_step(cell.config, *count.data_sizes(cell.config))
        bucket, most = max(steps.items(), key=lambda item: item[1].total)
        sizes = {name: getattr(most, name) for name in ('arguments', 'teacher', 'temporaries', 'total')}
        sizes['decode_cache'] = cache.of_search(cell.config)
        found.append({'id': cell.id, 'label': cell.label, 'bucket': bucket, **sizes})
    return found


def as_text(footprints: Sequence[Mapping[str, Any]]) -> str:
    """What `of_cells` found, for people."""
    titles = {'arguments': 'state and batch', 'teacher': 'teacher', 'temporaries': 'temporaries', 'total': 'total'}
    titles |= {'decode_cache': 'cache of decoding (all devices)'}
    names = [
        name for name in titles if name not in ('teacher', 'decode_cache') or any(cell[name] for cell in footprints)
    ]
    rows = [('', 'cell', 'bucket', *(titles[name] for name in names))]
    for index, cell in enumerate(footprints):
        bucket = ' x '.join(map(str, cell['bucket']))
        rows.append((str(index), cell['label'], bucket, *(f'{cell[name] / 2**20:,.1f} MiB' for name in names)))
    devices = f'{jax.device_count()} device{"s" * (jax.device_count() > 1)} ({jax.default_backend()})'
    return '\n'.join(
        [*columns(rows), '', f'memory of each of {devices}, by the compiled step of the bucket that takes most']
    )
