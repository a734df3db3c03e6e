import json
import pathlib

import pytest
import standin

from jaxformer import config as config_lib
from jaxformer import history
from jaxformer.ablate import launch, ledger, plan
from jaxformer.errors import UserError

EXPERIMENTS = pathlib.Path(__file__).parents[2] / 'experiments'


def test_ids_are_stable_when_a_value_is_added(tmp_path):
    before = standin.make_plan(tmp_path, "product({'model.num_heads': (8, 1), 'model.d_k': (16, 24)})")
    after = standin.make_plan(tmp_path, "product({'model.num_heads': (8, 4, 1), 'model.d_k': (16, 24)})")
    ids = {cell.label: cell.id for cell in after.cells}
    assert len(before.cells) == 4
    assert len(set(ids.values())) == 6
    assert all(ids[cell.label] == cell.id for cell in before.cells)


def test_ids_of_a_grid_stay_from_version_to_version():
    """Else whoever has half of it done begins anew. A field that is added joins `history.NOT_IN_ID`."""
    cells = plan.resolve(plan.read(EXPERIMENTS / 'heads.py'), count=lambda cfg: None).cells
    assert [cell.id for cell in cells] == ['eab670187b98', 'f69c921a96eb', '5090ea605a50']
    assert set(history.NOT_IN_ID) <= set(history.BEFORE)
    for changed in ({'train.inspect_every': 3}, {'data.targets': 'x'}):
        edited = config_lib.load(EXPERIMENTS.parent / 'configs' / 'quickstart.py')
        config_lib.override(edited, changed)
        assert config_lib.config_hash(config_lib.resolve(edited), ('seed', 'cohort')) != cells[0].id


def test_the_seed_is_not_in_the_id_and_runs_differ_in_nothing_else(tmp_path):
    grid = standin.make_plan(tmp_path, "product({'model.num_heads': (8, 1)})")
    runs = plan.runs(grid, tmp_path, seeds=3)
    assert [(run.cell.label, run.seed) for run in runs] == [
        (f'num_heads={heads}', seed) for seed in range(3) for heads in (8, 1)
    ]
    for run in runs:
        assert set(config_lib.diff(run.cell.config, run.config)) <= {'seed'}
        assert run.config.seed == run.seed
        assert run.path.parent.name == run.cell.id == config_lib.config_hash(run.config, without=('seed', 'cohort'))
    assert len({run.path for run in runs}) == 6


def test_derived_fields_are_no_further_difference(tmp_path):
    grid = standin.make_plan(
        tmp_path,
        "[{}, {'model.num_heads': 4}, {'model.num_heads': 4, 'model.d_v': 64, 'model.residual': 'pre'}]",
        "AXIS = 'model.num_heads'",
    )
    heads, mixed = grid.cells[1:]
    assert heads.derived == {'model.num_kv_heads': (8, 4), 'model.d_k': (64, 128), 'model.d_v': (64, 128)}
    assert heads.further == {}
    assert mixed.further == {'model.residual': ('post', 'pre')}
    assert 'model.d_v' not in mixed.derived
    assert grid.cells[0].label == 'base'


def test_the_baseline_s_own_settings_count_when_a_cell_lacks_them(tmp_path):
    grid = standin.make_plan(
        tmp_path, "[{'model.d_k': 24, 'optim.beta1': 0.8}, {'model.d_k': 16}]", "AXIS = ('model.d_k',)"
    )
    assert grid.cells[1].further == {'optim.beta1': (0.8, 0.9)}


def test_the_same_configuration_twice_is_one_cell_and_said(tmp_path):
    grid = standin.make_plan(tmp_path, "chain(product({'model.d_k': (64, 16)}), product({'model.num_layers': (6, 2)}))")
    assert [cell.label for cell in grid.cells] == ['d_k=64', 'd_k=16', 'num_layers=2']
    assert len(grid.warnings) == 1
    assert "'num_layers=6'" in grid.warnings[0]
    assert grid.warnings[0] in plan.as_text(grid, tmp_path / 'grid', 2)


def test_names_are_as_short_as_they_can_be():
    assert plan.short_names(['model.d_k', 'model.dropout.attention', 'x.dropout.attention', 'eval.every']) == {
        'model.d_k': 'd_k',
        'model.dropout.attention': 'model.dropout.attention',
        'x.dropout.attention': 'x.dropout.attention',
        'eval.every': 'every',
    }
    assert plan.short_names(['model.residual']) == {'model.residual': 'residual'}
    assert plan.short_names(['model.dropout.residual']) == {'model.dropout.residual': 'dropout.residual'}
    assert plan.short_names(['model.dropout.embedding']) == {'model.dropout.embedding': 'dropout.embedding'}
    assert plan.short_names(['model.recurrent.width']) == {'model.recurrent.width': 'recurrent.width'}  # conv has one


def test_a_column_of_figures_has_as_many_decimals_as_its_most_exact_one():
    assert plan.printed([4.92, 5.0, None, 26]) == ['4.92', '5.00', '', '26']
    assert plan.printed(['A', 65]) == ['A', '65']


@pytest.mark.parametrize(
    ('cells', 'extra', 'named'),
    [
        ('iter(())', '', 'no cell'),
        ("[{'seed': 3}]", '', '--seeds'),
        ('[3]', '', 'cell 0 is 3'),
        ('1 / 0', '', 'ZeroDivisionError'),
        ("[{}, {'model.num_head': 3}]", '', 'cell 1 .*num_heads'),
        ("[{}, {'model.num_heads': 7}]", '', 'cell 1 .*num_heads=7'),
        ("[{}, {'model.residual': 'pst'}]", '', "cell 1 .*'post'"),
        ('[{}]', "AXIS = 'model.heads'", "AXIS names 'model.heads'"),
        ('[{}]', "METRIC = 'dev/bleu'", 'dev/bleu'),
    ],
)
def test_a_broken_grid_is_named_with_its_remedy(tmp_path, cells, extra, named):
    with pytest.raises(UserError, match=named):
        standin.make_plan(tmp_path, cells, extra)


def test_a_grid_file_that_is_missing_or_no_python(tmp_path):
    with pytest.raises(UserError, match='no such file'):
        plan.read(tmp_path / 'nope.py')
    (tmp_path / 'torn.py').write_text('def grid(:')
    with pytest.raises(UserError, match='torn.py.*SyntaxError'):
        plan.read(tmp_path / 'torn.py')
    (tmp_path / 'half.py').write_text('def grid(): return []')
    with pytest.raises(UserError, match='get_config'):
        plan.read(tmp_path / 'half.py')


def test_changes_of_the_base_reach_every_cell_and_clash_with_none(tmp_path):
    path = standin.grid_file(tmp_path, "[{}, {'model.d_k': 16}]")
    grid = plan.resolve(plan.read(path, {'train.num_steps': '5', 'seed': '7'}), count=lambda cfg: None)
    assert [(cell.config.train.num_steps, cell.config.seed) for cell in grid.cells] == [(5, 7), (5, 7)]
    assert [run.seed for run in plan.runs(grid, tmp_path, 2)] == [7, 7, 8, 8]
    with pytest.raises(UserError, match='config.model.d_k: cell 1'):
        plan.read(path, {'model.d_k': '8'})
    with pytest.raises(UserError, match='num_heads'):
        plan.resolve(plan.read(path, {'model.num_head': '8'}), count=lambda cfg: None)


def test_no_seeds_are_refused(tmp_path):
    with pytest.raises(UserError, match='--seeds=0'):
        plan.runs(standin.make_plan(tmp_path, '[{}]'), tmp_path, 0)


def test_seeds_beyond_the_largest_are_refused(tmp_path):
    grid = plan.resolve(plan.read(standin.make_plan(tmp_path, '[{}]').grid.path, {'seed': 2**31 - 1}))
    assert len(plan.runs(grid, tmp_path, 1)) == 1
    with pytest.raises(UserError, match='--seeds=2: the last one would be 2147483648, .* lower config.seed'):
        plan.runs(grid, tmp_path, 2)


def test_the_plan_says_what_is_there_and_writes_nothing(tmp_path):
    workdir = tmp_path / 'grid'
    grid = standin.make_plan(tmp_path, "product({'model.d_k': (64, 16)})")
    assert plan.as_json(grid, workdir, 2)['runs'] == dict.fromkeys(ledger.STATES, 0) | {'missing': 4}
    assert not workdir.exists()
    launch.run(grid, workdir, 1, standin.Standin(), say=lambda line: None)
    grown = standin.make_plan(tmp_path, "product({'model.d_k': (64, 24)})")
    content = json.loads(json.dumps(plan.as_json(grown, workdir, 2)))
    assert [cell['runs'] for cell in content['cells']] == [
        {'0': 'done', '1': 'missing'},
        {'0': 'missing', '1': 'missing'},
    ]
    assert content['former'] == [grid.cells[1].id]
    assert content['cells'][0]['parameters'] == 8000
    text = plan.as_text(grown, workdir, 2)
    assert '3 to run, 1 done' in text
    assert grid.cells[1].id in text


def test_cells_whose_metric_is_of_other_things_are_warned_of(tmp_path):
    split = standin.make_plan(tmp_path, "product({'eval.split': ('dev', 'test')})")
    assert len(split.warnings) == 1 and "'split=test' has another eval.split than the base" in split.warnings[0]
    assert standin.make_plan(tmp_path, "product({'model.num_heads': (8, 4)})").warnings == ()


COSTS = """
AXIS = {axis!r}
"""


def costed(directory, cells, axis=('model.d_k',), flops=lambda cfg: 50 * cfg.model.d_k * cfg.train.num_steps):
    grid = plan.read(standin.grid_file(directory, cells, COSTS.format(axis=axis)))
    tokens = lambda cfg: 7 * cfg.train.num_steps * cfg.train.batch_size  # noqa: E731
    return plan.resolve(grid, lambda cfg: 1000 * cfg.model.num_heads, flops, tokens)


def test_cells_that_cost_something_else_are_noted(tmp_path):
    cells = "[{'model.d_k': 64}, {'model.d_k': 16}, {'model.d_k': 64, 'train.batch_size': 32, 'model.num_heads': 4}]"
    grid = costed(tmp_path, cells)
    assert [cell.unlike for cell in grid.cells] == [
        {},
        {'flops': -0.75},
        {'parameters': -0.5, 'tokens': 1.0, 'batch': 1.0},
    ]
    assert [cell.cost.tokens for cell in grid.cells] == [896, 896, 1792]
    text = plan.as_text(grid, tmp_path / 'grid', 1)
    assert "note: 'd_k=16' is not held equal to the baseline: FLOPs -75.0%" in text
    assert 'baseline: parameters -50.0%, tokens seen +100.0%, effective batch +100.0%' in text
    content = json.loads(json.dumps(plan.as_json(grid, tmp_path / 'grid', 1)))['cells'][2]
    assert (content['parameters'], content['flops'], content['batch']) == (4000, 25_600, 32)
    assert content['unlike'] == {'parameters': -0.5, 'tokens': 1.0, 'batch': 1.0}
    declared = costed(tmp_path, cells, ('model.d_k', 'flops', 'parameters', 'train.batch_size', 'tokens'))
    assert [cell.unlike for cell in declared.cells] == [{}, {}, {}]
    assert 'in more than model.d_k, train.batch_size: num_heads=4' in plan.as_text(declared, tmp_path / 'grid', 1)
    alone = costed(tmp_path, cells, ('flops',))  # of the fields, all that cells set
    assert alone.axis == ('model.d_k', 'train.batch_size', 'model.num_heads', 'flops')
    assert [cell.unlike for cell in alone.cells] == [{}, {}, {'parameters': -0.5, 'tokens': 1.0}]
    with pytest.raises(UserError, match="AXIS names 'cost', which is no field .*nor one of parameters, flops, tokens"):
        costed(tmp_path, cells, ('cost',))


def test_the_time_that_is_left_is_that_of_what_is_done_scaled_by_flops(tmp_path):
    grid, workdir = costed(tmp_path, "[{'model.d_k': 64}, {'model.d_k': 16}]"), tmp_path / 'grid'
    empty = plan.as_json(grid, workdir, 2)
    assert (empty['seconds_left'], [cell['seconds'] for cell in empty['cells']]) == (None, [None, None])
    assert 'left' not in plan.as_text(grid, workdir, 2) and ' time ' not in plan.as_text(grid, workdir, 2)
    only = plan.resolve(grid.grid.__class__(**{**vars(grid.grid), 'cells': grid.grid.cells[:1], 'reference': ({},)}))
    assert only.cells[0].id == grid.cells[0].id
    launch.run(only, workdir, 1, standin.Standin(), say=lambda line: None)  # 42 s, as it writes
    content = plan.as_json(grid, workdir, 2)
    assert [cell['seconds'] for cell in content['cells']] == [42.0, 42.0 / 4]
    assert content['seconds_left'] == 42.0 + 2 * 42.0 / 4  # one of the first cell, two of the second
    text = plan.as_text(grid, workdir, 2)
    assert '3 to run, 1 done; about 63 s left at the pace of those done' in text
    assert ' 25.6 k  42 s ' in text and ' 6.40 k  10 s ' in text
