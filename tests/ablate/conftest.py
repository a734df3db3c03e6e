"""Grids of the stand-in that several modules look at."""

import numpy as np
import pytest
import standin

from jaxformer.ablate import collect, launch
from jaxformer.errors import RunError
from jaxformer.train import per_example

CELLS = "product({'model.num_heads': (8, 1, 16)})"  # d_k 64, 512 and 32


@pytest.fixture
def workdir(tmp_path):
    """A grid of 3 cells × 3 seeds of which the last cell failed, with markup in the reason."""
    grid = standin.make_plan(tmp_path, CELLS)
    train = standin.Standin(fail={32: RunError('loss <b>nan</b> & more')})
    launch.run(grid, tmp_path / 'grid', 3, train, say=lambda line: None)
    return tmp_path / 'grid'


@pytest.fixture
def whole(workdir):
    """The same with results per example, which come to the recorded rates."""
    for cell in collect.collect(workdir).cells:
        for result in cell.done:
            symbols = np.full(40, 10)
            errors = 10 * result.final['dev/per'][1] * np.tile([0.5, 1.5], 20)
            arrays = {'example_id': np.arange(40), 'errors': errors, 'symbols': symbols, 'wrong': errors > 2}
            per_example.write(result.run.path, 'dev', arrays)
    return workdir
