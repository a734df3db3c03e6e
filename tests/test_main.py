"""The console command: what it prints, where, and with which exit status; a mistake is one line and touches nothing."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import pytest

import jaxformer
from jaxformer import commands
from jaxformer.main import COMMANDS, USAGE, main
from jaxformer.views import VIEWS

ROOT = pathlib.Path(__file__).parents[1]
TINY = f'--config={ROOT}/configs/tiny.py'
SHORT = (
    '--config.train.num_steps=6',
    '--config.optim.warmup_steps=2',
    '--config.train.checkpoint_every=3',
    '--config.eval.every=0',
)
INSPECTED = 'attention: a text; explorer: a text or a file of texts; attribution: a file, a text per line'
SMALL = (*SHORT, '--config.data.buckets=((9,9),)', '--config.data.num_examples=60')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """The directory of a finished run of six updates. Not to be changed: copy it first."""
    workdir = tmp_path_factory.mktemp('runs') / 'run'
    assert main(['train', TINY, f'--workdir={workdir}', *SMALL]) == 0
    return workdir


def one_line(capsys):
    """The message of a command that refused; before it there may be warnings (W1130 02:41:58 …), each a line, too."""
    captured = capsys.readouterr()
    assert captured.out == ''
    lines = captured.err.splitlines(keepends=True)
    assert all(re.match(r'W\d{4} |WARNING:', line) for line in lines[:-1]), captured.err
    assert lines[-1].startswith('jaxformer: ') and lines[-1].endswith('\n')
    return lines[-1]


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        ((TINY, '--config.model.num_head=4'), ('config.model.num_head', 'config.model.num_heads')),
        ((f'--config={ROOT}/configs/base.py', '--config.model.d_model=257'), ('257', 'multiple of model.num_heads=8')),
        ((TINY, '--config.data.name=nope'), ("config.data.name='nope'", 'cmudict', 'reverse')),
        ((TINY, '--config.train.num_steps=3.5'), ('config.train.num_steps', '3.5', 'integer')),
        ((TINY, '--config.train.num_steps'), ('--config.train.num_steps', 'no value')),
        ((TINY, '--foo=3'), ('foo', 'train --help')),
        ((TINY, 'stray'), ('stray',)),
        ((f'--config={ROOT}/configs/nope.py',), ('configs/nope.py', 'no such file')),
        ((), ('--config',)),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_status_2(arguments, said, tmp_path, capsys):
    workdir = tmp_path / 'run'
    assert main(['train', f'--workdir={workdir}', *arguments]) == 2
    line = one_line(capsys)
    assert all(part in line for part in said)
    assert not workdir.exists()


def test_a_workdir_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / 'file').write_text('kept')
    assert main(['train', TINY, f'--workdir={tmp_path}/file/run']) == 2
    assert f'{tmp_path}/file/run' in one_line(capsys)
    assert (tmp_path / 'file').read_text() == 'kept'


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_explains_itself_and_its_flags(name, capsys):
    assert main([name, '--help']) == 0
    shown = capsys.readouterr().out
    assert COMMANDS[name][0].__doc__ in shown
    assert all(f'--{flag}' in shown for flag in COMMANDS[name][1])


@pytest.mark.parametrize(('name', 'number'), [('params', 1), ('eval', 2), ('decode', 2), ('inspect', 2), ('export', 3)])
def test_help_shows_every_line_of_the_usage_under_one_another(name, number, capsys):
    assert main([name, '--help']) == 0
    lines = capsys.readouterr().out.split('\n\n')[0].splitlines()
    assert lines[0].startswith(f'usage: jaxformer {name} ')
    start = lines[0].index(name)
    assert all(line[:start].strip() in ('usage: jaxformer', 'jaxformer', '') for line in lines)
    wanted = USAGE.splitlines()
    first = next(i for i, line in enumerate(wanted) if line.startswith(f'  {name} '))
    assert [line[start:] for line in lines] == [line[2:] for line in wanted[first : first + number]]


@pytest.mark.parametrize('name', VIEWS)
def test_every_view_explains_itself_and_the_flags_that_it_reads(name, capsys):
    assert main(['inspect', name, '--help']) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f'usage: jaxformer inspect {name} --workdir=RUN ') and VIEWS[name].show.__doc__ in shown
    described = {line.split()[0] for line in shown.split('\n\n')[-1].splitlines()}
    assert described == {f'--{flag}' for flag in VIEWS[name].reads}


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (
            ('inspect', '--workdir=any', '--keep=3'),
            '--keep=3: inspect params does not read it; it reads --workdir, --step, --stats, --since, --json',
        ),
        (('inspect', '--workdir=any', 'checkpoints', '--rows=1'), '--rows=1: inspect checkpoints does not read it'),
        (('inspect', '--workdir=any', 'heads', '--stats'), '--stats: inspect heads does not read it'),
        (('inspect', '--workdir=any', 'heads', '--format=svg'), '--format=svg: inspect heads without --output does'),
        (('inspect', '--workdir=any', 'prune', '--keep=0'), '--keep=0: inspect prune does not read it'),
        (
            ('inspect', '--workdir=any', 'attention', '--split=dev', '--input=a'),
            '--input=a: inspect attention --split does not read it; it reads --workdir, --step, --split, --which',
        ),
        (
            ('inspect', '--workdir=any', 'attribution', '--split=dev', '--output=a'),
            '--output=a: inspect attribution --split does not read it',
        ),
        (
            ('eval', '--hypotheses=a', '--references=b', '--step=3'),
            '--step=3: eval --hypotheses does not read it; it reads --hypotheses, --references, --against, --json',
        ),
        (('eval', '--hypotheses=a', '--references=b', '--workdir=any'), '--workdir=any: eval --hypotheses does not'),
        (
            ('eval', '--hypotheses=a', '--references=b', '--config.eval.search=beam'),
            '--config.eval.search: eval --hypotheses reads no config',
        ),
        (
            ('export', '--workdir=any', '--output=out', '--split=dev'),
            '--split=dev: export without --quantize or --stab',
        ),
        (
            ('export', '--workdir=any', '--output=out', '--json'),
            '--json: export without --quantize or --stablehlo does not read it; it reads --workdir, --step, --output',
        ),
    ],
)
def test_a_flag_that_nothing_reads_is_refused_with_those_that_are(arguments, said, capsys):
    assert main(arguments) == 2
    assert one_line(capsys).startswith(f'jaxformer: {said}')


def test_no_command_and_an_unknown_one_are_mistakes(capsys):
    assert main([]) == 2
    assert 'usage' in capsys.readouterr().out
    assert main(['trane']) == 2
    line = one_line(capsys)
    assert 'trane' in line and 'did you mean train?' in line
    assert main(['zzz']) == 2
    line = one_line(capsys)
    assert 'zzz' in line and 'did you mean' not in line


def test_the_version_is_that_of_the_package(capsys):
    assert main(['--version']) == 0
    assert capsys.readouterr().out == f'jaxformer {jaxformer.__version__}\n'


@pytest.mark.parametrize(
    ('arguments', 'said', 'unsaid'),
    [
        (('import', '--workdir=any'), 'a directory', ('text', 'standard input')),
        (('inspect', 'attention', '--workdir=any'), INSPECTED, ('directory', 'standard input')),
        (('decode', '--workdir=any'), 'a text file, or - for standard input', ('directory', 'attention')),
        (('export', '--workdir=any'), 'a directory', ('file', 'attention')),
    ],
)
def test_a_missing_flag_is_explained_for_the_command_at_hand(arguments, said, unsaid, capsys):
    name = arguments[0]
    assert main(arguments) == 2
    line = one_line(capsys)
    flag = 'output' if name == 'export' else 'input'
    assert line == f'jaxformer: --{flag} is missing: {said}\n'
    assert not any(word in line for word in unsaid)
    assert main([name, '--help']) == 0
    described = next(row for row in capsys.readouterr().out.splitlines() if row.startswith(f'  --{flag} '))
    assert described.endswith(f' {said}')


@pytest.mark.parametrize(
    ('value', 'shown'),
    [(1126140.0, '1,126,140'), (6, '6'), (0.123456789, '0.123457'), (1.5e6, '1,500,000'), (1234567.25, '1,234,567')]
    + [(1e30, '1e+30'), (float('nan'), 'nan'), (float('inf'), 'inf'), (0.0, '0'), (1e-9, '1e-09')],
)
def test_metrics_are_printed_as_people_write_numbers(value, shown, capsys):
    commands._print_metrics({'test/tokens': value}, as_json=False)
    assert capsys.readouterr().out.split() == ['test/tokens', shown]


def test_params_counts_the_published_sizes(capsys):
    base = f'--config={ROOT}/configs/base.py'
    assert main(['params', base, '--config.model.vocab_size=41100', '--json']) == 0
    counted = json.loads(capsys.readouterr().out)
    assert round(counted['total'] / 1e6) == 65
    assert sum(counted['groups'].values()) == counted['total']
    assert main(['params', f'--config={ROOT}/configs/big.py', '--config.model.vocab_size', '36000', '--json']) == 0
    assert round(json.loads(capsys.readouterr().out)['total'] / 1e6) == 213


def test_eval_prints_whole_splits(run, capsys):
    assert main(['eval', f'--workdir={run}', '--split=test', '--json']) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores['step'] == 6 and scores['test/examples'] == 6
    assert main(['eval', f'--workdir={run}', '--step=4']) == 2
    assert 'the steps there are: 3, 6' in one_line(capsys)
    assert main(['eval', f'--workdir={run}', '--split=nope']) == 2
    assert 'nope' in one_line(capsys)


def test_decode_gives_a_line_for_every_line_in_order(run, tmp_path, capsys):
    source, output = tmp_path / 'in.txt', tmp_path / 'out.txt'
    source.write_bytes(b'1 2 3 4 5 6\n\n   \n7\r\n1 \xe2\x80\xa8 2\n\n')
    assert main(['decode', f'--workdir={run}', f'--input={source}', f'--output={output}']) == 0
    lines = output.read_bytes().split(b'\n')
    assert len(lines) == 7 and lines[-1] == b''
    assert lines[1] == lines[2] == lines[5] == b''
    assert main(['decode', f'--workdir={run}', f'--input={source}']) == 0
    assert capsys.readouterr().out.encode() == output.read_bytes()
    assert main(['decode', f'--workdir={run}', f'--input={tmp_path}/nope.txt']) == 2
    assert 'nope.txt' in one_line(capsys)


def test_inspect_lists_what_params_counts(run, capsys):
    assert main(['inspect', f'--workdir={run}', '--json']) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert main(['params', TINY, *SMALL, '--json']) == 0
    assert json.loads(capsys.readouterr().out) == inspected
    assert main(['inspect', f'--workdir={run}', 'nope']) == 2
    assert 'nope' in one_line(capsys)


def test_attention_is_drawn_put_on_a_page_and_counted_over_a_split(run, tmp_path, capsys):
    look = ['inspect', f'--workdir={run}', f'--output={tmp_path}', '--input=1 2 3', '--which=cross', '--layers=2']
    assert main([*look, 'attention', '--heads=3,1', '--format=svg', '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(row['layer'], row['head']) for row in shown['heads']] == [(2, 3), (2, 1)]
    (figure,) = shown['figures']
    assert figure.endswith('cross-layer2.svg') and '<svg' in pathlib.Path(figure).read_text()
    assert main([*look, 'attention', '--which=encoder', '--rows=2', '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown['heads'] == [] and len(shown['figures']) == 1
    assert main([*look, 'attention', '--rows=9']) == 2
    assert 'row 9: the cross attention of this text has rows 1 to ' in one_line(capsys)
    assert main(['inspect', f'--workdir={run}', 'attention', '--split=test', '--rows=1']) == 2
    assert '--rows=1: of one text; not with --split' in one_line(capsys)
    assert main([*look, 'explorer']) == 0
    assert capsys.readouterr().out == f'{tmp_path}/explorer.html\n' and (tmp_path / 'explorer.html').exists()
    assert main(['inspect', f'--workdir={run}', 'attention', '--split=test', '--which=encoder', '--heads=2']) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ['encoder', '1', '2'],
        ['encoder', '2', '2'],
    ]
    assert main([*look, 'attention', '--heads=0']) == 2
    assert '--heads=0' in one_line(capsys)


def test_a_run_is_pruned_and_goes_on(run, tmp_path, capsys):
    prune = ['inspect', f'--workdir={run}', 'prune', f'--output={tmp_path / "pruned"}']
    assert main(prune) == 2
    assert '--heads is missing' in one_line(capsys)
    assert main([*prune, '--heads=encoder.1.1,encoder.2.3']) == 0
    assert capsys.readouterr().out.startswith('2 heads pruned; parameters')
    assert main(['eval', f'--workdir={tmp_path / "pruned"}', '--split=test', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['step'] == 0


def test_compare_wants_two_runs(run, capsys):
    assert main(['compare', str(run)]) == 2
    assert '1 run directory given; name two or more' in one_line(capsys)
    assert main(['compare']) == 2
    assert '0 run directories given' in one_line(capsys)
    assert main(['compare', str(run), str(run)]) == 0


def test_a_grid_is_planned_run_and_reported(tmp_path, capsys):
    grid = tmp_path / 'grid.py'
    grid.write_text(
        '"""Which feed-forward?"""\n'
        'from configs import tiny\n'
        'from jaxformer.ablate.grid import product\n'
        'get_config = tiny.get_config\n'
        "def grid():\n    return product({'model.feed_forward': ('relu', 'gelu')})\n"
    )
    flags = [f'--grid={grid}', f'--workdir={tmp_path}/runs', *SMALL]
    assert main(['plan', *flags, '--json']) == 0
    assert len(json.loads(capsys.readouterr().out)['cells']) == 2
    assert main(['ablate', *flags]) == 0
    assert '[2/2]' in capsys.readouterr().out
    assert main(['ablate', *flags]) == 0
    assert capsys.readouterr().out.count('done before') == 2
    assert main(['report', f'--workdir={tmp_path}/runs']) == 0
    assert 'gelu' in capsys.readouterr().out
    assert (tmp_path / 'runs' / 'report.html').exists()


def test_a_reader_that_leaves_ends_the_command_without_a_word():
    shown = subprocess.run(
        f'{sys.executable} -m jaxformer.main params --config=configs/big.py | head -n 0',
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ''


def test_importing_starts_no_device_and_adds_less_than_a_second():
    code = """
import time, jax, flax.linen
from jax._src import xla_bridge
start = time.perf_counter()
import jaxformer, jaxformer.main, jaxformer.config, jaxformer.model.transformer
spent = time.perf_counter() - start
assert not xla_bridge.backends_are_initialized()
print(spent)
"""
    # The least of three: a busy machine only ever adds to the time.
    spent = [
        float(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(spent) < 1


def test_symbols_that_are_not_those_of_the_data_are_refused(run, tmp_path, capsys):
    other = tmp_path / 'run'
    shutil.copytree(run, other)
    symbols = json.loads((other / 'vocab.json').read_text())['symbols']
    (other / 'vocab.json').write_text(json.dumps({'symbols': symbols[:4] + symbols[:3:-1]}))
    assert main(['eval', f'--workdir={other}']) == 2
    assert 'vocab.json' in one_line(capsys)
    longer = '--config.train.num_steps=8'
    assert main(['train', TINY, f'--workdir={other}', *SMALL, longer]) == 2
    assert 'vocab.json' in one_line(capsys)


def test_memory_that_is_out_is_a_line_with_a_remedy_whatever_the_command(monkeypatch, capsys):
    def fails(*_):
        raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 51382448224 bytes.')

    monkeypatch.setitem(COMMANDS, 'params', (fails, ()))
    assert main(['params']) == 1
    assert re.search('allocating 51382448224 bytes.*eval.batch_size or beam_size', one_line(capsys))
