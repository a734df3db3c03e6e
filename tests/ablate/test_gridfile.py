import pytest
import standin

from jaxformer.ablate import gridfile, launch, ledger, plan
from jaxformer.errors import UserError

CELLS = "[{}, {'model.num_heads': 4}]"
FIGURES = """
REFERENCE = 'a paper'


def reference():
    yield {'row': 'base', 'paper PPL': 4.92}
    yield {'row': 'A'}


def notes():
    yield f'computed: {2 + 3}'
"""


def test_figures_of_others_and_notes_reach_plan_and_ledger(tmp_path):
    grid = standin.make_plan(tmp_path, CELLS, FIGURES)
    text = plan.as_text(grid, tmp_path / 'grid', 1).splitlines()
    assert text[0].split() == ['cell', 'id', 'parameters', 'row', 'paper', 'PPL', 'follows', 'runs']
    assert text[1].split()[3:6] == ['8,000', 'base', '4.92']
    assert [cell['reference'] for cell in plan.as_json(grid, tmp_path / 'grid', 1)['cells']] == [
        {'row': 'base', 'paper PPL': 4.92},
        {'row': 'A'},
    ]
    launch.run(grid, tmp_path / 'grid', 1, standin.Standin(), say=lambda line: None)
    book = ledger.read(tmp_path / 'grid')
    assert [cell.reference for cell in book.cells] == [{'row': 'base', 'paper PPL': 4.92}, {'row': 'A'}]
    assert (book.reference_source, book.notes) == ('a paper', ('computed: 5',))


def test_cells_that_are_one_share_their_figures(tmp_path):
    figures = "def reference():\n    return {'a': 1}, {'a': 2, 'b': 3}"
    grid = standin.make_plan(tmp_path, "[{}, {'model.num_heads': 8}]", figures)
    assert [cell.reference for cell in grid.cells] == [{'a': 1, 'b': 3}]


@pytest.mark.parametrize(
    ('extra', 'named'),
    [
        ('def reference():\n    yield {}', r'reference\(\) gives 1 for 2 cells'),
        ('def reference():\n    return {}, 5', r'reference\(\) gives 5 for cell 1'),
        ("def reference():\n    return {}, {'PPL': None}", r'None.* for cell 1'),
        ('def reference():\n    return 1 / 0', r'reference\(\) fails with ZeroDivisionError'),
        ('def notes():\n    yield 1 / 0', r'notes\(\) fails with ZeroDivisionError'),
    ],
)
def test_what_is_no_figure_is_refused(tmp_path, extra, named):
    with pytest.raises(UserError, match=named):
        gridfile.read(standin.grid_file(tmp_path, CELLS, extra))


@pytest.mark.parametrize(
    ('extra', 'family', 'metric'),
    [
        ('', {}, 'dev/per'),
        ('', {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes'}, 'dev/loss'),
        ('', {'model.family': 'mlm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes'}, 'dev/loss'),
        (
            '',
            {'model.family': 'classifier', 'data.name': 'stdlib_labels', 'data.tokenizer': 'bytes'},
            'test/accuracy',
        ),
        ("METRIC = 'perplexity'", {}, 'dev/perplexity'),
        ("METRIC = 'train/loss'", {}, 'train/loss'),
    ],
)
def test_the_metric_follows_the_family_unless_the_file_names_one(tmp_path, extra, family, metric):
    changes = {**family, 'eval.split': 'test' if 'test' in metric else 'dev'}
    if family:
        changes['data.buckets'] = '((9,),)'
    path = standin.grid_file(tmp_path, '[{}]', extra)
    assert plan.resolve(gridfile.read(path, changes), count=lambda cfg: None).metric == metric


DERIVED = """
def grid(base):
    base.model.d_ff = 1  # a copy: what becomes of it concerns nobody else
    return {}, {'train.num_steps': 3 * base.train.num_steps}, {'optim.label_smoothing': 0.2}


def reference(base):
    return [{'steps': base.train.num_steps}] * 3


def notes(base):
    yield f'{base.train.num_steps} steps'
"""


def derived_grid(directory, text=DERIVED):
    path = standin.grid_file(directory, '[]', name='derived')
    path.write_text(path.read_text() + text)  # the later grid() counts
    return path


def test_a_grid_that_takes_the_base_gets_it_as_the_command_line_leaves_it(tmp_path):
    changes = {'train.num_steps': '5', 'optim.label_smoothing': '0.3'}
    grid = gridfile.read(derived_grid(tmp_path), changes)
    assert grid.reference == ({'steps': 5},) * 3
    assert grid.notes == ('5 steps',)
    cells = plan.resolve(grid, count=lambda cfg: None).cells
    assert [cell.config.train.num_steps for cell in cells] == [5, 15, 5]
    assert [cell.config.optim.label_smoothing for cell in cells] == [0.3, 0.3, 0.2]
    assert {cell.config.model.d_ff for cell in cells} == {2048}


def test_a_change_that_does_not_reach_the_baseline_is_refused(tmp_path):
    cells = "def grid(base):\n    return {'model.d_k': %s}, {'model.d_k': 3}"
    with pytest.raises(UserError, match=r'config\.model\.d_k: cell 0 of .*derived\.py sets it'):
        gridfile.read(derived_grid(tmp_path, cells % '24'), {'model.d_k': '9'})
    grid = gridfile.read(derived_grid(tmp_path, cells % 'base.model.d_k'), {'model.d_k': '9'})
    assert grid.cells == ({'model.d_k': 9}, {'model.d_k': 3})


def test_the_refusal_of_a_clash_says_how_a_cell_is_derived_from_the_base(tmp_path):
    with pytest.raises(UserError, match=r'config\.model\.num_heads: cell 1 of .*grid\(base\)'):
        gridfile.read(standin.grid_file(tmp_path, CELLS), {'model.num_heads': '2'})


def test_a_mistake_that_the_file_itself_names_is_passed_on(tmp_path):
    text = "from jaxformer.errors import UserError\ndef grid(base):\n    raise UserError('config.model.d_k=7: odd')\n"
    with pytest.raises(UserError, match=r'derived\.py: config\.model\.d_k=7: odd$'):
        gridfile.read(derived_grid(tmp_path, text))


@pytest.mark.parametrize(
    ('text', 'named'),
    [
        ('def get_config():\n    return 1 / 0', r'derived\.py: fails with ZeroDivisionError'),
        ('def get_config():\n    return {}', r'derived\.py: get_config\(\) gives dict'),
        ('def grid(base, more):\n    return [{}]', r'grid\(\) fails with TypeError'),
    ],
)
def test_what_a_base_or_grid_must_be(tmp_path, text, named):
    with pytest.raises(UserError, match=named):
        plan.resolve(gridfile.read(derived_grid(tmp_path, DERIVED + text)), count=lambda cfg: None)


def test_a_note_alone_is_one_paragraph(tmp_path):
    extra = "def notes():\n    return 'one paragraph'"
    assert gridfile.read(standin.grid_file(tmp_path, CELLS, extra)).notes == ('one paragraph',)
