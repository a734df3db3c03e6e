import csv
import io
import json

import pytest
import standin

from jaxformer import files
from jaxformer.ablate import collect, drawing, examples, launch, plan, report
from jaxformer.errors import UserError

CELLS = "product({'model.num_heads': (8, 1, 16)})"  # d_k 64, 512 and 32


def rows(workdir):
    return list(csv.DictReader(io.StringIO((workdir / 'report.csv').read_text())))


def test_every_cell_is_in_every_format_and_failures_are_named(workdir):
    written = report.write(workdir)
    assert sorted(path.name for path in written.values()) == ['report.csv', 'report.html', 'report.md']
    for path in written.values():
        text = path.read_text()
        assert all(name in text for name in ('base', '(1)', '(2)', 'num_heads=16'))
    markdown = written['md'].read_text()
    assert '(2) num_heads=16, seeds 0, 1, 2: failed at step 5: loss \\<b>nan\\</b> & more' in markdown
    html = written['html'].read_text()
    assert 'loss &lt;b&gt;nan&lt;/b&gt; &amp; more' in html
    assert '<b>nan' not in html
    assert '0 of 3' in markdown


def test_blank_is_as_in_the_base_and_derived_fields_are_shown(workdir):
    report.write(workdir)
    lines = (workdir / 'report.md').read_text().splitlines()
    base, one, _ = (line.strip('| ').split(' | ') for line in lines if line.startswith(('| base', '| (')))
    head = next(line for line in lines if line.startswith('|  |')).strip('| ').split(' | ')
    assert dict(zip(head, base[1:], strict=True))['num_heads'] == '8'
    assert dict(zip(head, one[1:], strict=True))['d_k'] == '512'


def test_what_follows_from_the_fields_stands_behind_all_else(workdir):
    report.write(workdir)
    head = next(line for line in (workdir / 'report.md').read_text().splitlines() if line.startswith('|  |'))
    titles = head.strip('| ').split(' | ')
    assert titles[:4] == ['num_heads', 'dev PER % ↓', 'Δ dev PER', 'p (Holm)']
    assert titles[-3:] == ['num_kv_heads', 'd_k', 'd_v']
    follow = 'num_heads 8 → 1 (set); model.num_kv_heads 8 → 1 (follows); model.d_k 64 → 512 (follows)'
    assert f'- (1) num_heads=1: model.{follow}' in (workdir / 'report.md').read_text()


def test_what_was_neither_counted_nor_timed_is_no_blank(tmp_path):
    grid = plan.resolve(plan.read(standin.grid_file(tmp_path, CELLS)), count=lambda cfg: None)
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(preempt={64}), say=lambda line: None)
    report.write(tmp_path / 'grid')
    head, _, base, *_ = (
        line[2:-2].split(' | ') for line in (tmp_path / 'grid' / 'report.md').read_text().splitlines() if '|' in line
    )
    shown = dict(zip(head, base, strict=True))
    assert (shown['parameters'], shown['time']) == ('–', '–')
    assert rows(tmp_path / 'grid')[0]['parameters'] == ''


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ("<class 'int'> < 3 > 2 -> <=", "\\<class 'int'> < 3 > 2 -> <="),
        ('`a<b` <b>, ``<i>`` and a ` <b>', '`a<b` \\<b>, ``<i>`` and a ` \\<b>'),
        ('```\n<b>\n```\n<!-- gone --> <https://x.org>', '```\n<b>\n```\n\\<!-- gone --> \\<https://x.org>'),
    ],
)
def test_markup_in_a_text_is_text(text, shown):
    assert report.literal(text) == shown


def test_a_dollar_in_a_label_is_no_mathematics(tmp_path):
    label = r'from $\frac$ to $HOME'
    assert label in str(drawing.draw(lambda axes: str(axes.set_xlabel(label)), 'one', 'title'))


def test_a_field_that_one_cell_sets_and_another_derives_is_shown_in_both(tmp_path):
    grid = standin.make_plan(tmp_path, "[{}, {'model.num_heads': 4}, {'model.d_k': 24}, {'model.num_heads': 2}]")
    assert [cell.derived['model.d_k'] for cell in grid.cells if 'model.d_k' in cell.derived] == [(64, 128), (64, 256)]
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    report.write(tmp_path / 'grid')
    assert [row['model.d_k'] for row in rows(tmp_path / 'grid')] == ['64', '128', '24', '256']


def test_what_only_the_baseline_sets_is_shown_where_another_cell_differs(tmp_path):
    grid = standin.make_plan(tmp_path, "[{'model.d_k': 24}, {'model.num_heads': 4}, {'model.d_k': 24, 'model.d_v': 9}]")
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    report.write(tmp_path / 'grid')
    assert [row['model.d_k'] for row in rows(tmp_path / 'grid')] == ['24', '128', '']


def test_numbers_agree_with_the_runs(workdir):
    report.write(workdir)
    values = [collect.collect(workdir).cells[1].runs[seed].final['dev/per'][1] for seed in range(3)]
    mean = sum(values) / 3
    sd = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    row = rows(workdir)[1]
    assert float(row['dev/per mean']) == pytest.approx(mean)
    assert float(row['dev/per sd']) == pytest.approx(sd)
    assert float(row['dev/per half_width']) == pytest.approx(4.302653 * sd / 3**0.5)
    assert f'{100 * mean:.2f} ± {100 * 4.302653 * sd / 3**0.5:.2f}' in (workdir / 'report.md').read_text()
    assert (row['parameters'], row['seconds'], row['done']) == ('1000', '42.0', '3')
    assert (rows(workdir)[2]['failed'], rows(workdir)[2]['dev/per mean']) == ('3', '')


def test_one_seed_shows_no_interval(tmp_path):
    launch.run(standin.make_plan(tmp_path, CELLS), tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    report.write(tmp_path / 'grid')
    markdown = (tmp_path / 'grid' / 'report.md').read_text()
    assert '±' not in ''.join(line for line in markdown.splitlines() if line.startswith('|'))
    assert rows(tmp_path / 'grid')[0]['dev/per half_width'] == ''


def test_a_metric_that_is_not_finite_is_said_and_left_out_of_the_mean(tmp_path):
    grid = standin.make_plan(tmp_path, CELLS)
    launch.run(grid, tmp_path / 'grid', 3, standin.Standin(), say=lambda line: None)
    path = tmp_path / 'grid' / 'cells' / grid.cells[1].id / 'seed-2' / 'metrics.jsonl'
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]['dev/perplexity'] = 'inf'
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    report.write(tmp_path / 'grid')
    row = rows(tmp_path / 'grid')[1]
    assert (row['dev/perplexity n'], row['dev/loss n']) == ('2', '3')
    assert (
        'num_heads=1, seed 2: done at step 8: dev perplexity not finite'
        in (tmp_path / 'grid' / 'report.md').read_text()
    )


def test_a_grid_that_has_hardly_begun_can_be_reported(tmp_path):
    grid = standin.make_plan(tmp_path, CELLS)
    launch.run(grid, tmp_path / 'grid', 2, standin.Standin(preempt={64}), say=lambda line: None)
    report.write(tmp_path / 'grid')
    markdown = (tmp_path / 'grid' / 'report.md').read_text()
    assert 'base num_heads=8, seed 0: preempted at step 5: SIGTERM' in markdown
    assert '(1) num_heads=1, seeds 0, 1: not started' in markdown


FIGURES = """
REFERENCE = 'a paper'


def reference():
    return {'paper row': 'base', 'paper PPL': 4.92}, {}, {'paper row': 'A', 'paper PPL': 5.0}


def notes():
    return ('First <b>note</b>.', 'counts:\\n- one')
"""


def test_figures_of_others_stand_beside_ours_and_notes_below(tmp_path):
    grid = standin.make_plan(tmp_path, CELLS, FIGURES)
    launch.run(grid, tmp_path / 'grid', 2, standin.Standin(), say=lambda line: None)
    written = report.write(tmp_path / 'grid')
    markdown = written['md'].read_text()
    head, _, base, one, two = (line[2:-2].split(' | ') for line in markdown.splitlines() if line.startswith('|'))
    column = head.index('paper PPL')
    assert head[column - 2 : column] == ['time', 'paper row']
    assert [row[column - 1 : column + 1] for row in (base, one, two)] == [['base', '4.92'], ['–', '–'], ['A', '5.00']]
    assert 'Blank: as in the base; –: no such number.' in markdown
    assert 'paper row, paper PPL: as printed in a paper.' in markdown
    assert [row['paper PPL'] for row in rows(tmp_path / 'grid')] == ['4.92', '', '5.0']
    assert '## Notes\n\nFirst \\<b>note\\</b>.\n\ncounts:\n- one\n' in markdown
    html = written['html'].read_text()
    assert 'First &lt;b&gt;note&lt;/b&gt;.' in html
    assert '<td class="reference" data-order="4.92">4.92</td>' in html


def test_differences_and_their_p_stand_in_the_table(workdir):
    report.write(workdir)
    row = rows(workdir)[1]
    lines = (workdir / 'report.md').read_text().splitlines()
    head, _, base, one, two = (line[2:-2].split(' | ') for line in lines if line.startswith('| '))
    shown = {line[0]: dict(zip(head, line, strict=True)) for line in (base, one, two)}
    mean, width = float(row['difference']), float(row['difference half_width'])
    assert shown['(1)']['Δ dev PER'] == f'{100 * mean:+.2f} ± {100 * width:.2f}'
    assert shown['(1)']['p (Holm)'] == f'{float(row["p corrected"]):.3f}' if row['p corrected'] else '–'
    assert (shown['base']['Δ dev PER'], shown['(2)']['Δ dev PER']) == ('', '–')


def test_what_the_examples_leave_open_is_in_every_format(whole):
    report.write(whole)
    markdown, html = ((whole / f'report.{name}').read_text() for name in ('md', 'html'))
    measured = examples.measure(collect.collect(whole))
    table = examples.rows(collect.collect(whole), measured)
    assert len(table) == 3
    for line in table:
        assert f'| {" | ".join(line)} |' in markdown and all(text in html for text in line)
    assert 'measured on these 40 examples' in markdown and 'measured on these 40 examples' in html
    assert float(rows(whole)[1]['difference examples low']) == measured.cells[1].difference.low
    assert rows(whole)[0]['difference examples low'] == rows(whole)[2]['examples low'] == ''
    assert '(2) num_heads=16: no finished run has it' in markdown


def test_no_grid_no_report(tmp_path):
    with pytest.raises(UserError, match='grid.json'):
        report.write(tmp_path)


def test_pauses_do_not_count_as_time(workdir):
    path = next(workdir.glob('cells/*/seed-0'))
    start = {'time': 1_700_000_000.0 - 30, 'versions': {'jaxformer': '0.1.0'}}
    later = {'time': 1_700_086_400.0, 'versions': {'jaxformer': '0.2.0'}}
    files.write_json(path / 'environment.json', [start, later])
    status = files.read_json(path / 'status.json')
    files.write_json(path / 'status.json', status | {'updated': later['time'] + 5})
    result = next(
        result for cell in collect.collect(workdir).cells for result in cell.runs if str(result.run.path) == str(path)
    )
    first = 30 + len((path / 'metrics.jsonl').read_text().splitlines()) - 1
    assert result.seconds == first + 5
    files.write_json(path / 'environment.json', [start, later | {'runs_together': 4}])
    assert collect.work(result.run) == collect.Work(
        ((start['time'], start['time'] + first), (later['time'], later['time'] + 5)), first + 5 / 4
    )
    assert result.versions == ('0.1.0', '0.2.0')


def test_a_grid_of_one_cell_has_no_section_about_others(tmp_path):
    launch.run(standin.make_plan(tmp_path, '[{}]'), tmp_path / 'grid', 2, standin.Standin(), say=lambda line: None)
    written = report.write(tmp_path / 'grid')
    assert [line for line in written['md'].read_text().splitlines() if line.startswith('## ')] == ['## Conditions']
    html = written['html'].read_text()
    assert 'id="cells-title"' not in html and 'id="costs-title"' not in html and '1 cell × 2 seeds, 2 runs' in html
