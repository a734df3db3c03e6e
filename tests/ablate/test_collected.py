"""What is read of a grid's directory is what was planned."""

import standin

from jaxformer import config
from jaxformer.ablate import collect, launch, match, plan
from jaxformer.ablate.cells import NOT_IN_ID


def test_each_cell_s_configuration_comes_back_whole(tmp_path):
    """Fields set as text, lists, derived, worked out, and set by the baseline alone."""
    cells = """[
        {'optim.beta1': 0.8, 'model.d_ff': 64},
        {'model.num_heads': '4', 'model.d_ff': 64, 'optim.beta1': 0.8},
        {'data.buckets': ((16, 16), (24, 25))},
        {'model.feed_forward': 'swiglu', 'model.d_ff': EQUAL_FLOPS, 'optim.clip_norm': 1},
    ]"""
    extra = "from jaxformer.ablate.match import EQUAL_FLOPS\n\nAXIS = 'model.num_heads'"
    grid = plan.resolve(plan.read(standin.grid_file(tmp_path, cells, extra), {'model.d_model': '64'}))
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    results = collect.collect(tmp_path / 'grid')
    assert [cell.entry.id for cell in results.cells] == [cell.id for cell in grid.cells]
    for found, planned in zip(results.cells, grid.cells, strict=True):
        assert config.config_hash(found.config, without=NOT_IN_ID) == planned.id
        assert (found.cost, dict(found.unlike)) == (planned.cost, dict(planned.unlike))
    assert results.cells[3].config.model.d_ff not in (64, 2048)
    assert abs(results.cells[3].cost.flops / results.cells[0].cost.flops - 1) < match.TOLERANCE
