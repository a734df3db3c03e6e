"""A file imports only from its left: the order that CONTRIBUTING.md gives, held by the abstract syntax trees."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / 'jaxformer'

LAYERS = (
    {'errors'}, {'claims', 'files', 'heartbeats', 'values', 'pyfile'},
    {'choices', 'history', 'schema'}, {'rules'}, {'config'},
    {'hyperparameters', 'processes'}, {'runtime'},
    {'data'}, {'model'}, {'sharding'},
    {'optim', 'losses', 'objectives'}, {'checkpoint'}, {'decode'}, {'train'}, {'inspection'}, {'ablate'},
    {'views'}, {'commands'}, {'main'},
)  # fmt: skip
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def imported(source):
    """Parts of the package that a source file imports, anywhere in it, as its layers are called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'relative imports hide where a name comes from'
            names = [node.module] if '.' in node.module else [f'{node.module}.{alias.name}' for alias in node.names]
        else:
            continue
        yield from (name.split('.')[1] for name in names if name.startswith('jaxformer.'))


def violations(layer, source):
    """Imports of a file in `layer` that lead to its right, or sideways out of it."""
    allowed = lambda other: other == layer or other not in RANK or RANK[other] < RANK[layer]  # noqa: E731
    return [other for other in imported(source) if not allowed(other)]


FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob('*.py') if path.name != '__init__.py')


@pytest.mark.parametrize('path', FILES, ids=str)
def test_a_file_imports_only_from_its_left(path):
    layer = path.parts[0].removesuffix('.py')
    assert layer in RANK, f'{path}: say in LAYERS where it stands'
    assert not violations(layer, (PACKAGE / path).read_text())


@pytest.mark.parametrize(
    'source',
    [
        'import jaxformer.train.loop',
        'from jaxformer import config, train',
        'from jaxformer.train import step',
        'from jaxformer.train.step import train_step as model',
        'def late():\n    from jaxformer import checkpoint',
        'if False:\n    import jaxformer.optim as data',
    ],
)
def test_a_made_up_violation_is_found(source):
    assert violations('model', source)


def test_what_leads_left_or_stays_is_allowed():
    fine = ('import jax', 'from jaxformer import __version__, errors', 'from jaxformer.model import ops')
    assert violations('model', '\n'.join((*fine, 'import jaxformer.data.vocab'))) == []
    assert violations('losses', 'from jaxformer import optim') == ['optim']  # the same rank is another file
