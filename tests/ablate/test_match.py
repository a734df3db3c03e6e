import pytest
import standin

from jaxformer.ablate import count, launch, match, plan
from jaxformer.ablate.match import FlatError, nearest
from jaxformer.errors import UserError

MATCH = 'from jaxformer.ablate.match import EQUAL_PARAMETERS'


def counted(function):
    """The function, and a list of what it was asked."""
    asked = []

    def count(width):
        asked.append(width)
        return function(width)

    return count, asked


@pytest.mark.parametrize('start', [1, 7, 384, 5000])
@pytest.mark.parametrize(
    ('function', 'target', 'width'),
    [
        (lambda f: 1000 + 772 * f, 1000 + 772 * 256, 256),
        (lambda f: 1000 + 772 * f, 1000 + 772 * 256 + 385, 256),
        (lambda f: 1000 + 772 * f, 1000 + 772 * 256 + 387, 257),
        (lambda r: 3 * r * r + 5 * r, 3 * 97**2 + 5 * 97 - 20, 97),
        (lambda r: 8 * r**2, 1, 1),
        (lambda f: 900 + f, 100, 1),  # too large already: as small as it goes
    ],
)
def test_the_nearest_width_is_found_in_a_few_counts(function, target, width, start):
    count, asked = counted(function)
    assert nearest(count, target, start) == width
    assert len(asked) == len(set(asked)) < 30


@pytest.mark.parametrize('target', [3, 5, 9])
def test_a_width_that_changes_nothing_is_refused(target):
    with pytest.raises(FlatError, match='does not grow'):
        nearest(lambda width: 5, target, 3)


def size(cfg):
    """Grows with d_ff and with the heads, as a model does."""
    return 10_000 * cfg.model.num_heads + 100 * cfg.model.d_ff * (3 if cfg.model.feed_forward == 'swiglu' else 2)


def resolved(tmp_path, cells, count=size, changes=None):
    return plan.resolve(plan.read(standin.grid_file(tmp_path, cells, MATCH), changes), count)


def test_a_cell_gets_the_width_that_makes_it_as_large_as_the_baseline(tmp_path):
    grid = resolved(tmp_path, "[{}, {'model.feed_forward': 'swiglu', 'model.d_ff': EQUAL_PARAMETERS}]")
    cell = grid.cells[1]
    assert cell.overrides == {'model.feed_forward': 'swiglu'}
    assert cell.config.model.d_ff == 1365  # 2/3 of 2048
    assert cell.derived == {'model.d_ff': (2048, 1365)}
    assert cell.label == 'feed_forward=swiglu'
    assert cell.parameters == pytest.approx(grid.cells[0].parameters, rel=0.01)
    assert grid.warnings == ()


def test_a_cell_gets_the_width_that_makes_it_take_as_many_operations_as_the_baseline(tmp_path):
    """By the formula, on what the data leave: no stand-in."""
    extra = 'from jaxformer.ablate.match import EQUAL_FLOPS'
    sizes = {'model.d_model': '48', 'model.num_heads': '4', 'model.num_layers': '2', 'model.d_ff': '300'}
    cells = (
        "[{}, {'model.mixer': 'conv', 'model.d_ff': EQUAL_FLOPS}, {'model.num_layers': 3, 'model.d_ff': EQUAL_FLOPS}]"
    )
    base = {**sizes, 'model.vocab_size': '50'}
    base.pop('model.num_layers')
    grid = plan.resolve(plan.read(standin.grid_file(tmp_path, cells, extra), base))
    first, *others = grid.cells
    for cell in others:
        assert cell.config.model.d_ff != 300 and grid.warnings == ()
        assert cell.cost.flops == pytest.approx(first.cost.flops, rel=match.TOLERANCE)
        assert cell.cost.flops == count.train_flops(cell.config)
        assert 'parameters' in cell.unlike and 'flops' not in cell.unlike
    with pytest.raises(UserError, match='d_ff cannot be worked out where no flops are counted'):
        plan.resolve(plan.read(standin.grid_file(tmp_path, cells, extra), base), size)


def test_operations_that_cannot_be_matched_are_said(tmp_path):
    extra = 'from jaxformer.ablate.match import EQUAL_FLOPS'
    cells = "[{'model.d_ff': 8}, {'model.num_layers': 60, 'model.d_ff': EQUAL_FLOPS}]"
    grid = plan.resolve(plan.read(standin.grid_file(tmp_path, cells, extra), {'model.d_model': '16'}))
    assert "'num_layers=60' does not take as many FLOPs as the base: model.d_ff=1 comes nearest" in grid.unequal[0]


def test_changes_of_the_base_are_matched_too(tmp_path):
    cells = "[{}, {'model.feed_forward': 'swiglu', 'model.d_ff': EQUAL_PARAMETERS}]"
    wide = resolved(tmp_path, cells, changes={'model.num_heads': '16'})
    assert [cell.config.model.num_heads for cell in wide.cells] == [16, 16]
    assert wide.cells[1].config.model.d_ff == 1365
    narrow = resolved(tmp_path, cells, changes={'model.d_ff': '300'})
    assert [cell.config.model.d_ff for cell in narrow.cells] == [300, 200]
    half = cells.replace('{}, {', "{'model.d_ff': 1024}, {")
    assert resolved(tmp_path, half).cells[1].config.model.d_ff == 683


def test_what_cannot_be_matched_within_a_hundredth_is_planned_with_a_warning_and_not_run(tmp_path):
    grid = resolved(tmp_path, "[{}, {'model.num_heads': 64, 'model.d_ff': EQUAL_PARAMETERS}]")
    assert grid.cells[1].config.model.d_ff == 1
    assert len(grid.warnings) == 1
    assert 'num_heads=64' in grid.warnings[0]
    assert '30.8%' in grid.warnings[0]  # 640,200 against 489,600
    assert f'warning: {grid.warnings[0]}' in plan.as_text(grid, tmp_path / 'grid', 1)
    train = standin.Standin()
    with pytest.raises(UserError, match=r"cell 'num_heads=64'.* model\.d_ff=1 .*30\.8%.*set .*d_ff to a number"):
        launch.run(grid, tmp_path / 'grid', 1, train, say=lambda line: None)
    assert not train.started
    assert not (tmp_path / 'grid').exists()


@pytest.mark.parametrize(
    ('cells', 'count', 'named'),
    [
        ("[{'model.d_ff': EQUAL_PARAMETERS}]", size, 'baseline'),
        ("[{}, {'model.d_ff': EQUAL_PARAMETERS, 'model.d_k': EQUAL_PARAMETERS}]", size, 'd_ff, model.d_k'),
        ("[{}, {'model.d_k': EQUAL_PARAMETERS}]", size, 'model.d_k.*does not grow'),
        ("[{}, {'model.d_ff': EQUAL_PARAMETERS}]", lambda cfg: None, 'counted'),
        ("[{}, {'model.norm': EQUAL_PARAMETERS}]", size, 'model.norm'),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, cells, count, named):
    with pytest.raises(UserError, match=named):
        resolved(tmp_path, cells, count)
