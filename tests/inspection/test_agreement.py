"""Correlations are those of ranks worked out by hand, output by output; the command shows them with figures."""

import dataclasses
import io
import json
import math
import pathlib

import numpy as np
import pytest
from scipy.stats import spearmanr

from jaxformer.data import corpus
from jaxformer.data.ragged import Ragged
from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.inspection import agreement, attribution_report
from jaxformer.main import main


def by_hand(a, b):
    """Spearman's ρ of values without ties: 1 − 6 Σd² / (n (n² − 1))."""
    ranks = [np.argsort(np.argsort(np.abs(values))) for values in (a, b)]
    n = len(a)
    return 1 - 6 * np.sum((ranks[0] - ranks[1]) ** 2) / (n * (n**2 - 1))


def measures(seed, R=4, C=7):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(R, C)) for name in ('one', 'two', 'three')}


def test_mean_of_the_outputs_by_hand():
    by = measures(0)
    matrix = agreement.of_text(by)
    expected = np.mean([by_hand(a, b) for a, b in zip(by['one'], by['three'], strict=True)])
    assert matrix[0, 2] == pytest.approx(expected) and abs(expected) > 0.01
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1)
    flipped = agreement.of_text({**by, 'one': -by['one']})
    np.testing.assert_allclose(flipped, matrix)  # magnitudes count


def test_unseen_and_unknown_inputs_do_not_count():
    by = measures(1)
    more = {name: np.concatenate([array, np.zeros((4, 3)), np.ones((4, 1))], axis=1) for name, array in by.items()}
    more['two'][:, -1] = np.nan
    np.testing.assert_allclose(agreement.of_text(more), agreement.of_text(by))
    assert np.all(np.isnan(agreement.of_text({name: array[:, :2] for name, array in by.items()})))
    flat = agreement.of_text({**by, 'two': np.ones((4, 7))})
    assert math.isnan(flat[0, 1]) and flat[0, 2] == pytest.approx(agreement.of_text(by)[0, 2])


def test_ties_as_scipy_ranks_them():
    by = {name: np.round(array) for name, array in measures(6).items()}
    pairs = zip(np.abs(by['one']), np.abs(by['two']), strict=True)
    assert len(np.unique(by['one'])) < by['one'].size / 2
    counted = [(a, b) for a, b in pairs if np.ptp(a) and np.ptp(b)]
    both = {name: np.stack(rows) for name, rows in zip(('one', 'two'), zip(*counted, strict=True), strict=True)}
    seen = [both['one'][row] + both['two'][row] > 0 for row in range(len(counted))]
    expected = [spearmanr(a[rows], b[rows]).statistic for (a, b), rows in zip(counted, seen, strict=True)]
    assert agreement.of_text(both)[0, 1] == pytest.approx(np.mean(expected))


def test_over_texts():
    texts = [measures(seed) for seed in (2, 3, 4)] + [measures(5, C=2)]
    found = agreement.of_texts(texts)
    each = [agreement.of_text(by)[0, 1] for by in texts[:3]]
    assert found.texts == 3 and found.names == ('one', 'two', 'three')
    assert found.mean_KK[0, 1] == pytest.approx(np.mean(each))
    assert found.error_KK[0, 1] == pytest.approx(np.std(each, ddof=1) / 3**0.5)
    assert np.all(np.isnan(agreement.of_texts(texts[:1]).error_KK))


def test_the_command(trained, tmp_path, capsys):
    source, output = tmp_path / 'texts', tmp_path / 'figures'
    source.write_text('3 1 4 1 5\n\n2 7 1\n')
    arguments = ['inspect', 'attribution', f'--workdir={trained}', f'--input={source}', f'--output={output}']
    assert main([*arguments, '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [text['text'] for text in shown['texts']] == ['3 1 4 1 5', '2 7 1'] and shown['step'] == 60
    first = shown['texts'][0]
    assert np.shape(first['by']['occlusion']) == (len(first['outputs']), len(first['inputs']))
    assert np.shape(shown['agreement']['mean_KK']) == (6, 6) and shown['agreement']['texts'] == 2
    assert shown['figures'] == [f'{output}/1-3-1-4-1-5-step60.png', f'{output}/2-2-7-1-step60.png']
    assert all(pathlib.Path(path).read_bytes()[:4] == b'\x89PNG' for path in shown['figures'])
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert 'rank correlation of magnitudes, mean of 2 texts' in text and '±' in text
    most = np.argmax(np.abs(first['by']['occlusion'][0]))
    line = next(line for line in text.splitlines() if line.startswith(f'1 {first["outputs"][0]} '))
    assert f'{first["inputs"][most]} ({most + 1})' in line
    source.write_text('\n\n')
    assert main(arguments) == 2


def test_a_directory_that_cannot_be_written_is_named(trained, tmp_path):
    report = attribution_report.of_lines(trained, ['3 1 4'])
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match=f'{tmp_path}/file'):
        attribution_report.draw(report, tmp_path / 'file')


def test_over_a_split_it_is_that_of_its_texts(trained, monkeypatch):
    """A terminal is shown how far it is, a pipe nothing."""
    run = open_run(trained)
    split = corpus.load(run.cfg.data).split('dev')
    terminal, pipe = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr('sys.stderr', terminal)
    found = attribution_report.of_split(run, split, 3)
    assert '1 texts (33 % read)' in terminal.getvalue() and '3 texts (100 % read)' in terminal.getvalue()
    monkeypatch.setattr('sys.stderr', pipe)
    texts = [split.source_text(number) for number in (0, (len(split) - 1) // 2, len(split) - 1)]
    expected = attribution_report.of_lines(trained, texts).agreement
    np.testing.assert_array_equal(found.agreement.mean_KK, expected.mean_KK)
    assert found.agreement.texts == expected.texts == 3 and found.texts == () and not pipe.getvalue()
    none = dataclasses.replace(split, source=Ragged.of([], np.int32))
    with pytest.raises(UserError, match='--split=dev: none of its 0 examples has a text'):
        attribution_report.of_split(run, none, 3)
    text = attribution_report.as_text(found)
    assert text.startswith('rank correlation of magnitudes, mean of 3 texts')
