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
