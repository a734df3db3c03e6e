"""B55: BLEU and chrF are those of the command `sacrebleu` on the same files, with its signature."""

import io
import json
import random
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from jaxformer.decode import text_scores
from jaxformer.decode.bootstrap import difference, interval
from jaxformer.main import main

WORDS = (
    'the',
    'cat',
    'sat',
    'on',
    'a',
    'mat,',
    'while',
    'dogs',
    'ran',
    '"home"',
    'slowly',
    '\u0151r',
    'caf\u00e9',
    '3.5 %',
)


def sentences(count, seed, noise=0.0):
    """Lines of text; with noise some of the words of the same lines are others."""
    draw, other = random.Random(seed), random.Random(seed + 1)
    lines = [[draw.choice(WORDS) for _ in range(draw.randrange(4, 15))] for _ in range(count)]
    return [' '.join(other.choice(WORDS) if other.random() < noise else word for word in line) + '.' for line in lines]


@pytest.fixture
def files(tmp_path):
    given = {'ref': sentences(60, 0), 'ref2': sentences(60, 0, 0.4), 'good': sentences(60, 0, 0.2)}
    given['bad'] = sentences(60, 0, 0.35)
    given['good'][3] = ''
    given['good'][5] = 'a\u2028b\u0085c'
    for name, lines in given.items():
        (tmp_path / name).write_text('\n'.join(lines) + '\n')
    return tmp_path, given


def command(*arguments):
    done = subprocess.run([sys.executable, '-m', 'sacrebleu', *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def evaluated(capsys, *arguments):
    assert main(['eval', '--json', *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize('references', [('ref',), ('ref', 'ref2')])
def test_scores_are_those_of_the_command(references, files, capsys):
    """Of one reference and of two, with an empty output and one that holds odd separators of lines."""
    directory, given = files
    paths = [str(directory / name) for name in references]
    found = evaluated(capsys, f'--hypotheses={directory}/good', f'--references={",".join(paths)}')
    bleu, chrf = command(*paths, '-i', str(directory / 'good'), '-m', 'bleu', 'chrf', '-w', '4', '-f', 'json')
    assert 20 < found['bleu'] < 90 and found['bleu'] == pytest.approx(bleu['score'], abs=5e-3)
    assert found['chrf'] == pytest.approx(chrf['score'], abs=5e-3)
    assert f'BLEU|{found["bleu_signature"]}' == f'BLEU|{bleu["signature"]}' and 'tok:13a' in found['bleu_signature']
    assert found['lines'] == 60 and found['empty'] == 1 and found['bleu_low'] < found['bleu'] < found['bleu_high']


def test_statistics_of_lines_add_up_to_the_score_of_all(files):
    """And to the intervals and the p of sacrebleu, which draws others: the ends agree to half a point or so."""
    _, given = files
    references = [[line] for line in given['ref']]
    good, bad = (text_scores.bleu_measure(given[name], references) for name in ('good', 'bad'))
    whole = BLEU().corpus_score(given['good'], [given['ref']], n_bootstrap=1000)
    assert good.whole() == pytest.approx(whole.score, abs=1e-9)
    low, high = interval(good)
    assert (high - low) / 2 == pytest.approx(whole._ci, rel=0.15)
    systems = [('bad', given['bad']), ('good', given['good'])]
    _, scores = PairedTest(systems, {'BLEU': BLEU(references=[given['ref']])}, None, 'bs', 1000)()
    apart = difference(good, bad)
    assert apart.value == pytest.approx(scores['BLEU'][1].score - scores['BLEU'][0].score, abs=1e-9)
    assert apart.p == pytest.approx(scores['BLEU'][1].p_value, abs=0.02)


def test_two_files_are_compared_line_by_line(files, capsys):
    directory, _ = files
    flags = [f'--references={directory}/ref', f'--against={directory}/bad']
    found = evaluated(capsys, f'--hypotheses={directory}/good', *flags)
    assert found['bleu_difference'] == pytest.approx(found['bleu'] - found['against_bleu'])
    assert found['bleu_difference_low'] < found['bleu_difference'] < found['bleu_difference_high']
    same = evaluated(capsys, f'--hypotheses={directory}/bad', *flags)
    assert same['bleu_difference'] == 0 and same['bleu_difference_p'] == 1


def test_identical_text_is_100_and_an_empty_output_counts(files, capsys):
    directory, given = files
    found = evaluated(capsys, f'--hypotheses={directory}/ref', f'--references={directory}/ref')
    assert found['bleu'] == pytest.approx(100) and found['chrf'] == pytest.approx(100) and found['empty'] == 0
    lines = ['', *given['ref'][1:]]
    (directory / 'one').write_text('\n'.join(lines))
    assert evaluated(capsys, f'--hypotheses={directory}/one', f'--references={directory}/ref')['bleu'] < 99.9
    assert np.isfinite(text_scores.corpus_scores(['', ''], [['a'], ['b']])['bleu'])


def test_text_that_looks_tokenised_is_warned_of(files, capsys, caplog):
    directory, given = files
    flags = [f'--references={directory}/ref']
    evaluated(capsys, f'--hypotheses={directory}/good', *flags)
    assert 'tokenised' not in caplog.text
    for number, change in enumerate(
        (lambda line: line.replace(',', ' ,').replace('.', ' .'), lambda line: 'a@@ ' + line)
    ):
        (directory / f'apart{number}').write_text('\n'.join(map(change, given['good'])))
        evaluated(capsys, f'--hypotheses={directory}/apart{number}', *flags)
        assert f'apart{number}: ' in caplog.text and 'lines look tokenised' in caplog.text


def test_files_of_other_lengths_are_refused_with_names_and_counts(files, capsys):
    directory, given = files
    (directory / 'short').write_text('\n'.join(given['good'][:-1]))
    (directory / 'none').write_text('')
    (directory / 'one').write_text('\n')
    (directory / 'blank').write_text(' \n' + '\n' * 59)
    for name, flags, said in (
        ('short', ['--references={}/ref'], ('short has 59 lines', 'ref has 60')),
        ('good', ['--references={}/ref,{}/short'], ('good has 60 lines', 'short has 59')),
        ('good', ['--references={}/ref', '--against={}/short'], ('good has 60 lines', 'short has 59')),
        ('none', ['--references={}/none'], ('none: no line',)),
        ('one', ['--references={}/ref'], ('one has 1 line and', 'ref has 60;')),
        ('good', ['--references={}/ref,{}/blank'], ('--references=', 'blank: every line is blank; give what')),
        ('nope', ['--references={}/ref'], ('nope: cannot be read',)),
        ('good', [], ('--references is missing',)),
    ):
        filled = [flag.replace('{}', str(directory)) for flag in flags]
        assert main(['eval', f'--hypotheses={directory}/{name}', *filled]) == 2
        message = capsys.readouterr().err
        assert all(part in message for part in said), message


def test_a_pipe_that_stands_for_two_files_is_read_once(files, capsys, monkeypatch):
    directory, given = files
    content = io.BytesIO((directory / 'ref').read_bytes())
    monkeypatch.setattr('sys.stdin', io.TextIOWrapper(content))
    assert evaluated(capsys, '--hypotheses=-', '--references=-')['lines'] == 60
