"""The conditions that a report states, and the warnings in them."""

import standin

from jaxformer import files
from jaxformer.ablate import collect, count, launch, lint, plan, report, shown
from jaxformer.data import corpus

CELLS = "product({'model.num_heads': (8, 1, 16)})"  # d_k 64, 512 and 32


def test_the_largest_deviation_in_parameters_is_stated(tmp_path):
    counts = {8: 1000, 1: 1009, 16: 985}
    grid = plan.resolve(plan.read(standin.grid_file(tmp_path, CELLS)), count=lambda cfg: counts[cfg.model.num_heads])
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    assert dict(lint.conditions(collect.collect(tmp_path / 'grid')))['parameters'] == (
        'base 1,000; largest deviation -1.50%, (2); beyond 1%: (2)'
    )
    counts[16] = 992
    grid = plan.resolve(plan.read(standin.grid_file(tmp_path, CELLS)), count=lambda cfg: counts[cfg.model.num_heads])
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    assert dict(lint.conditions(collect.collect(tmp_path / 'grid')))['parameters'] == (
        'base 1,000; largest deviation +0.90%, (1); none beyond 1%'
    )


def test_the_conditions_are_those_of_the_runs(workdir):
    said = dict(lint.conditions(collect.collect(workdir)))
    assert said['seeds'] == '0, 1, 2; finished runs per cell: 0 to 3'
    assert said['effective batch'] == '16 sequences per update'
    assert said['tokens seen'] == '5,120 labels per run'  # 8 steps of 16 targets of 40
    assert said['steps'] == '8, each of 16 sequences: 128 sequences seen'
    assert said['training FLOPs'].startswith(
        '1.96 T in every cell; matrix products of sequences as long as the largest'
    )
    assert said['evaluation'].startswith('cmudict, split dev, 321 examples')


def test_the_conditions_name_cells_that_are_not_held_equal(tmp_path):
    cells = "[{}, {'train.batch_size': 32, 'model.d_k': 16}, {'train.num_steps': 9}]"
    grid = standin.make_plan(tmp_path, cells, "AXIS = ('model.d_k', 'train.num_steps')")
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    found = lint.conditions(collect.collect(tmp_path / 'grid'))
    warnings = [value for name, value in found if name == 'warning']
    flops = [count.train_flops(cell.config) for cell in grid.cells]
    assert warnings == [
        'no cell has two finished runs: no interval, and nothing separates',
        '(1) differs from the base in more than model.d_k, train.num_steps: train.batch_size 16 → 32',
        f'(1) is not held equal to the base: FLOPs {flops[1] / flops[0] - 1:+.1%}, tokens seen +100.0%, '
        'effective batch +100.0%',
    ]
    said = dict(found)
    assert said['effective batch'] == 'base, (2): 16 sequences per update; (1): 32 sequences per update'
    assert said['tokens seen'] == ('base: 5,120 labels per run; (1): 10,240 labels per run; (2): 5,760 labels per run')


def test_coverage_is_of_the_examples_of_the_split_where_they_are_at_hand(tmp_path):
    """Of the 20 of dev the stand-in says to have looked at 321."""
    extra = '\n\n_heads = get_config\n\n\ndef get_config():\n    config = _heads()\n'
    extra += f"    config.data.name, config.data.dir = 'reverse', {str(tmp_path / 'data')!r}\n    return config\n"
    grid = standin.make_plan(tmp_path, '[{}]', extra)
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    said = dict(lint.conditions(collect.collect(tmp_path / 'grid')))
    assert said['evaluation'] == 'reverse, split dev, 321 examples'
    size = len(corpus.load(grid.cells[0].config.data).split('dev'))
    said = dict(lint.conditions(collect.collect(tmp_path / 'grid')))
    assert said['evaluation'].startswith(f'reverse, split dev, 321 examples of {size:,} (')


def test_a_grid_of_another_version_is_reported_without_costs(tmp_path):
    grid = standin.make_plan(tmp_path, CELLS)
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    content = files.read_json(tmp_path / 'grid' / 'grid.json')
    del content['baseline']['model']['scan_unroll']
    files.write_json(tmp_path / 'grid' / 'grid.json', content)
    results = collect.collect(tmp_path / 'grid')
    assert [cell.cost.flops for cell in results.cells] == [None] * 3
    assert [cell.cost.parameters for cell in results.cells] == [8000, 1000, 16_000]
    said = dict(lint.conditions(results))
    assert said['training FLOPs'] == said['effective batch'] == said['tokens seen'] == 'not counted'
    assert 'not counted' not in said['parameters']
    report.write(tmp_path / 'grid')


def test_data_that_are_not_at_hand_are_not_prepared_for_a_report(tmp_path):
    extra = '\n\n_heads = get_config\n\n\ndef get_config():\n    config = _heads()\n'
    extra += f"    config.data.name, config.data.dir, config.model.vocab_size = 'copy', {str(tmp_path / 'data')!r}, 0\n"
    extra += '    config.data.buckets = ((13, 13),)\n    return config\n'
    grid = standin.make_plan(tmp_path, '[{}]', extra)
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    assert dict(lint.conditions(collect.collect(tmp_path / 'grid')))['training FLOPs'] == 'not counted'
    assert not (tmp_path / 'data').exists()
    flops = count.train_flops(grid.cells[0].config)  # prepares them
    said = dict(lint.conditions(collect.collect(tmp_path / 'grid')))['training FLOPs']
    assert said.startswith(f'{shown.operations(flops)}; matrix products of the mixture of shapes of an epoch')
