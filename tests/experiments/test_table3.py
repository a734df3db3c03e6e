"""AIAYN Table 3 against a formula of its own, and its rows as the paper prints them."""

import json
from pathlib import Path

import pytest

from experiments import table3, table3_toy
from jaxformer import config, main
from jaxformer.ablate import plan
from jaxformer.errors import UserError

EXPERIMENTS = Path(__file__).parents[2] / 'experiments'
BASE, BIG = 41_100, 36_000


def size(V, N=6, D=512, F=2048, H=8, K=64, E=64):
    """Encoder-decoder by hand: tied table, no biases in attention, feed-forward with biases, post-LN."""
    attention = 2 * D * H * K + 2 * D * H * E
    feed_forward = 2 * D * F + F + D
    norm = 2 * D
    return V * D + N * (attention + feed_forward + 2 * norm) + N * (2 * attention + feed_forward + 3 * norm)


COUNTS = [  # (row of the table from 0, printed in millions, by the formula)
    (0, 65, size(BASE)),
    (5, 58, size(BASE, K=16)),
    (6, 60, size(BASE, K=32)),
    (7, 36, size(BASE, N=2)),
    (8, 50, size(BASE, N=4)),
    (9, 80, size(BASE, N=8)),
    (10, 28, size(BASE, D=256, K=32, E=32)),
    (11, 168, size(BASE, D=1024, K=128, E=128)),
    (12, 53, size(BASE, F=1024)),
    (13, 90, size(BASE, F=4096)),
    (19, 213, size(BIG, D=1024, F=4096, H=16)),
]


@pytest.fixture(scope='module')
def planned():
    return plan.resolve(plan.read(EXPERIMENTS / 'table3.py'))


def test_all_eleven_printed_counts_by_the_command(tmp_path, capsys):
    command = ['plan', f'--grid={EXPERIMENTS / "table3.py"}', f'--workdir={tmp_path / "none"}', '--json']
    assert main.main(command) == 0
    cells = json.loads(capsys.readouterr().out)['cells']
    assert [cell['parameters'] for cell in cells][1:5] == [size(BASE)] * 4  # rows A
    for index, millions, exact in COUNTS:
        assert cells[index]['parameters'] == exact
        assert cells[index]['reference']['paper params'] == millions == round(exact / 1e6)
    assert sum('paper params' in cell['reference'] for cell in cells) == 11
    assert not (tmp_path / 'none').exists()


def test_the_params_command_counts_the_same(capsys):
    configs = EXPERIMENTS.parent / 'configs'
    for name, changes, exact in (
        ('base', {'vocab_size': BASE, 'd_k': 16}, size(BASE, K=16)),
        ('big', {'vocab_size': BIG}, size(BIG, D=1024, F=4096, H=16)),
    ):
        flags = [f'--config.model.{field}={value}' for field, value in changes.items()]
        assert main.main(['params', f'--config={configs / name}.py', *flags, '--json']) == 0
        assert json.loads(capsys.readouterr().out)['total'] == exact


def test_the_rows_are_the_paper_s(planned):
    models = [cell.config.model for cell in planned.cells]
    assert len(models) == 20
    assert not planned.warnings
    by_row = {row: [cell.config for cell in planned.cells if cell.reference['paper row'] == row] for row in 'ABCDE'}
    heads = [(cfg.model.num_heads, cfg.model.num_kv_heads, cfg.model.d_k, cfg.model.d_v) for cfg in by_row['A']]
    assert heads == [(1, 1, 512, 512), (4, 4, 128, 128), (16, 16, 32, 32), (32, 32, 16, 16)]
    assert [(cfg.model.d_k, cfg.model.d_v) for cfg in by_row['B']] == [(16, 64), (32, 64)]
    sizes = [(m.encoder_layers, m.decoder_layers, m.d_model, m.d_k, m.d_v, m.d_ff) for m in models]
    assert sizes[7:14] == [
        (2, 2, 512, 64, 64, 2048),
        (4, 4, 512, 64, 64, 2048),
        (8, 8, 512, 64, 64, 2048),
        (6, 6, 256, 32, 32, 2048),
        (6, 6, 1024, 128, 128, 2048),
        (6, 6, 512, 64, 64, 1024),
        (6, 6, 512, 64, 64, 4096),
    ]
    rates = [
        (cfg.model.dropout.residual, cfg.model.dropout.embedding, cfg.optim.label_smoothing) for cfg in by_row['D']
    ]
    assert rates == [(0.0, 0.0, 0.1), (0.2, 0.2, 0.1), (0.1, 0.1, 0.0), (0.1, 0.1, 0.2)]
    assert [cfg.model.position for cfg in by_row['E']] == ['learned']
    big = planned.cells[-1].config
    assert (big.model.num_heads, big.model.d_k, big.model.dropout.residual) == (16, 64, 0.3)
    assert (planned.cells[0].config.train.num_steps, big.train.num_steps) == (100_000, 300_000)


def test_the_paper_s_figures_belong_to_their_rows(planned):
    figures = [(cell.reference['paper PPL'], cell.reference['paper BLEU']) for cell in planned.cells]
    assert figures == [
        (4.92, 25.8), (5.29, 24.9), (5.00, 25.5), (4.91, 25.8), (5.01, 25.4), (5.16, 25.1), (5.01, 25.4), (6.11, 23.7),
        (5.19, 25.3), (4.88, 25.5), (5.75, 24.5), (4.66, 26.0), (5.12, 25.4), (4.75, 26.2), (5.77, 24.6), (4.95, 25.5),
        (4.67, 25.3), (5.47, 25.7), (4.92, 25.7), (4.33, 26.4),
    ]  # fmt: skip


def test_the_notes_say_which_vocabularies_the_counts_allow():
    """By trying vocabularies one by one against the formula."""
    small = COUNTS[:-1]

    def fits(V):
        forms = [{}, {'K': 16}, {'K': 32}, {'N': 2}, {'N': 4}, {'N': 8}, {'D': 256, 'K': 32, 'E': 32}]
        forms += [{'D': 1024, 'K': 128, 'E': 128}, {'F': 1024}, {'F': 4096}]
        return all(round(size(V, **form) / 1e6) == row[1] for form, row in zip(forms, small, strict=True))

    fitting = [V for V in range(30_000, 50_000) if fits(V)]
    of_big = [V for V in range(30_000, 50_000) if round(size(V, D=1024, F=4096, H=16) / 1e6) == 213]
    said, table = table3.notes()
    assert f'{fitting[0]:,} to {fitting[-1]:,} symbols and for no other' in said
    assert f'needs {of_big[0]:,} to {of_big[-1]:,} symbols: no vocabulary gives all 11' in said
    assert fitting == list(range(fitting[0], fitting[-1] + 1))
    assert 'the 37,000 of section 5.1 give 0 of the 10' in said
    assert '- base: 65; 65.1, 62.5, 63.0 (' in table
    assert '- big: 213; 218.4, 213.1, 214.2 (' in table


def test_the_toy_has_the_same_rows_scaled(planned):
    toy = plan.resolve(plan.read(EXPERIMENTS / 'table3_toy.py'), count=lambda cfg: None)
    assert [cell.reference for cell in toy.cells] == [cell.reference for cell in planned.cells]
    same = [set(config.diff(toy.cells[0].config, cell.config)) for cell in toy.cells]
    full = [set(config.diff(planned.cells[0].config, cell.config)) for cell in planned.cells]
    assert same[:-1] == full[:-1]
    assert same[-1] == full[-1] - {'model.vocab_size'}
    assert toy.metric == planned.metric == 'dev/perplexity'
    assert {cell.config.data.name for cell in toy.cells} == {'cmudict'}


def changed(name, **changes):
    changes = {field.replace('__', '.'): value for field, value in changes.items()}
    return plan.resolve(plan.read(EXPERIMENTS / f'{name}.py', changes), count=lambda cfg: None).cells


@pytest.mark.parametrize('name', ['table3', 'table3_toy'])
def test_rows_follow_what_the_command_line_makes_of_the_base(name):
    cells = changed(name, train__num_steps='50', model__num_layers='6', model__num_heads='16', model__d_model='64')
    models = [cell.config.model for cell in cells]
    assert [cell.config.train.num_steps for cell in cells] == [50] * 19 + [150]
    assert [model.num_heads for model in models[:5]] == [16, 2, 8, 32, 64]
    assert [model.d_k for model in models[5:7]] == [1, 2]  # 64 / 16 = 4 in the base
    assert [model.encoder_layers for model in models[7:10]] == [2, 4, 8]
    assert [model.d_model for model in models[10:12]] == [32, 128]


def test_the_vocabulary_of_the_big_row_is_the_paper_s_only_with_the_paper_s_base():
    def sizes(**changes):
        return {cell.config.model.vocab_size for cell in changed('table3', **changes)}

    assert sizes() == {BASE, BIG}
    assert sizes(model__vocab_size='0') == {0}
    assert sizes(model__vocab_size='5000') == {5000}


@pytest.mark.parametrize(('field', 'value'), [('num_heads', 4), ('num_layers', 2), ('d_k', 6)])
def test_a_base_that_the_rows_do_not_divide_is_refused(field, value):
    with pytest.raises(UserError, match=rf'table3_toy\.py: config\.model\.{field}={value}: .* multiple of'):
        changed('table3_toy', **{f'model__{field}': str(value)})


@pytest.mark.parametrize('name', ['table3', 'table3_toy'])
def test_either_runs_on_two_files_of_one_s_own(name):
    changes = {'data.name': 'parallel', 'data.source': 'a.{split}.en', 'data.target': 'a.{split}.de'}
    changes |= {'data.tokenizer': 'bpe', 'data.buckets': '((16,16),(64,64))', 'eval.max_decode_length': '64'}
    resolved = plan.resolve(plan.read(EXPERIMENTS / f'{name}.py', changes), count=lambda cfg: None)
    assert {cell.config.data.source for cell in resolved.cells} == {'a.{split}.en'}
    assert len(resolved.cells) == 20
    assert table3_toy.notes is table3.notes
