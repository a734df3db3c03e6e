"""What each named config amounts to, as text: its resolved fields and its parameter table, in tests/golden/.

And what the grid of AIAYN Table 3 does: its rows with their parameter counts, and what it says about them.

A change of a default or of a shape shows as a difference of text. Where it is meant, write the files anew with
`python tests/test_golden.py` and read the difference before it is committed.
"""

import difflib
import math
from pathlib import Path

import jax
import pytest

from jaxformer import config, sharding
from jaxformer.ablate import plan
from jaxformer.model import transformer

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / 'golden'
NAMED = sorted(path.stem for path in (ROOT / 'configs').glob('[!_]*.py'))
GRIDS = ('table3',)
DATA_SYMBOLS = 100  # stands in for the size of a vocabulary that comes from the data
DATA_CLASSES = 7  # stands in for the number of classes, where that does


def resolved(name, **model):
    edited = config.load(ROOT / 'configs' / f'{name}.py')
    config.override(edited, {f'model.{field}': value for field, value in model.items()})
    return config.resolve(edited)


def parameters(cfg):
    """[(path, leaf)] of the model of a config, by shape alone."""
    vocab_size = cfg.model.vocab_size or DATA_SYMBOLS
    num_classes = cfg.model.head.num_classes or DATA_CLASSES
    tree = transformer.abstract_params(cfg.model, vocab_size, num_classes)
    return [(sharding.path_name(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def count(cfg):
    return sum(math.prod(leaf.shape) for _, leaf in parameters(cfg))


def text(name):
    return grid_text(name) if name in GRIDS else config_text(name)


def grid_text(name):
    grid = plan.resolve(plan.read(ROOT / 'experiments' / f'{name}.py'))
    lines = []
    for cell in grid.cells:
        printed = ' '.join(f'{title}={value}' for title, value in cell.reference.items())
        lines.append(f'{cell.label:<60} {cell.parameters:>11,}  {printed}')
    return '\n'.join([*lines, *(f'\n{note}' for note in grid.grid.notes), ''])


def config_text(name):
    cfg = resolved(name)
    lines = [f'{path} = {value!r}' for path, value in config.flatten(cfg).items()]
    rows = 'rows of the vocabulary' if cfg.model.vocab_size else f'{DATA_SYMBOLS} symbols in the data'
    lines += ['', f'parameters, with {cfg.model.vocab_size or ""} {rows}:'.replace('  ', ' ')]
    for path, leaf in parameters(cfg):
        shape = 'x'.join(map(str, leaf.shape))
        lines.append(f'{path:<42} {sharding.letters(path):<5} {shape:<16} {leaf.dtype} {math.prod(leaf.shape):>12,}')
    return '\n'.join([*lines, f'total {count(cfg):,}', ''])


@pytest.mark.parametrize('name', [*NAMED, *GRIDS])
def test_a_named_config_or_grid_is_what_its_golden_file_says(name):
    path = GOLDEN / f'{name}.txt'
    expected, found = path.read_text() if path.exists() else '', text(name)
    difference = '\n'.join(
        difflib.unified_diff(expected.splitlines(), found.splitlines(), str(path), 'now', lineterm='')
    )
    assert not difference, f'{difference}\nif this is meant: python tests/test_golden.py'


def test_no_golden_file_is_left_behind():
    assert sorted(path.stem for path in GOLDEN.glob('*.txt')) == sorted([*NAMED, *GRIDS])


@pytest.mark.parametrize(
    ('changes', 'millions'),
    [
        ({}, 65),
        ({'d_k': 16}, 58),
        ({'d_k': 32}, 60),
        ({'num_layers': 2}, 36),
        ({'num_layers': 4}, 50),
        ({'num_layers': 8}, 80),
        ({'d_model': 256, 'd_k': 32, 'd_v': 32}, 28),
        ({'d_model': 1024, 'd_k': 128, 'd_v': 128}, 168),
        ({'d_ff': 1024}, 53),
        ({'d_ff': 4096}, 90),
    ],
)
def test_parameter_counts_of_table_3(changes, millions):
    assert round(count(resolved('base', vocab_size=41_100, **changes)) / 1e6) == millions


def test_parameter_counts_at_other_vocabularies():
    assert round(count(resolved('big', vocab_size=36_000)) / 1e6) == 213
    assert count(resolved('base', vocab_size=37_000)) == 63_045_632  # counted by hand: 63.05 M


@pytest.mark.parametrize(
    ('name', 'model', 'published'),
    [
        ('gpt', {}, 124_439_808),  # GPT-2 small, as the published weights hold
        ('llama', {}, 8_030_261_248),  # Llama 3 8B
        (
            'llama',
            {'vocab_size': 32_000, 'num_kv_heads': 32, 'd_ff': 11_008, 'rotary.base': 10_000.0},
            6_738_415_616,  # Llama 2 7B
        ),
        ('bert', {}, 109_514_298),  # BERT base with its head for masked symbols (uncased)
        ('classifier', {'head.num_classes': 3}, 109_482_240 + 3 * 769),  # BERT base with its pooler, and the classes
    ],
)
def test_parameter_counts_of_published_models(name, model, published):
    assert count(resolved(name, **model)) == published


@pytest.mark.parametrize('heads', [1, 4, 16, 32])
def test_rows_a_of_table_3_cost_what_the_base_costs(heads):
    assert count(resolved('base', num_heads=heads)) == count(resolved('base'))


if __name__ == '__main__':
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob('*.txt'):
        old.unlink()
    for each in (*NAMED, *GRIDS):
        (GOLDEN / f'{each}.txt').write_text(text(each))
