"""`export --stablehlo`: what is written runs without the package, and gives what the package gives."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import types

import flax.traverse_util
import jax
import numpy as np
import pytest
from jax import export
from safetensors.numpy import load_file

from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.inspection import export_stablehlo
from jaxformer.main import main

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'decode'))
import test_cache  # noqa: E402
from test_lines import LINES, RUNS, run  # noqa: E402

OF_THEIRS = ('jaxlib', 'ml_dtypes', 'opt_einsum', 'scipy', 'scipy.libs', 'numpy.libs')
"""What the packages that are required bring along."""


@pytest.fixture(scope='module', params=RUNS)
def exported(request, tmp_path_factory):
    """(the directory of a run, what it was exported to)."""
    directory = tmp_path_factory.mktemp(request.param)
    workdir = run(request.param, directory / 'run')
    assert main(['export', '--stablehlo', f'--workdir={workdir}', f'--output={directory}/out']) == 0
    return workdir, directory / 'out'


def test_without_the_package_the_same_symbols_come_out(exported, tmp_path):
    workdir, output = exported
    opened, said = open_run(workdir), json.loads((output / 'signature.json').read_text())
    lines = list(LINES)
    if opened.cfg.model.family == 'lm':  # a prompt that leaves room for just as many symbols as are written
        lines.append('x' * (opened.cfg.model.max_length - opened.cfg.eval.max_decode_length))
    ids = [opened.vocab.encode(opened.vocab.split(line)) for line in lines]
    for name in (*said['requires'], *OF_THEIRS):
        if (installed := pathlib.Path(np.__file__).parents[1] / name).exists():
            (tmp_path / name).symlink_to(installed)
    options = {'env': os.environ | {'PYTHONPATH': str(tmp_path)}, 'cwd': tmp_path, 'text': True, 'capture_output': True}
    nothing_else = [sys.executable, '-S']  # no site-packages
    assert 'No module' in subprocess.run([*nothing_else, '-c', 'import jaxformer'], **options).stderr
    text = ''.join(' '.join(map(str, row)) + '\n' for row in ids)
    made = subprocess.run([*nothing_else, output / 'decode.py'], input=text, **options)
    assert made.returncode == 0, made.stderr
    found = [[int(id_) for id_ in line.split()] for line in made.stdout.splitlines()]
    joined = [opened.vocab.join(opened.vocab.decode(row)).replace('\n', '\\n') for row in found]
    assert joined == decode_lines(workdir, None, lines) and len(set(joined)) > 1


def test_the_signature_says_what_goes_in_and_out(exported):
    workdir, output = exported
    said, opened = json.loads((output / 'signature.json').read_text()), open_run(workdir)
    params = load_file(output / said['parameters'])
    jax.tree.map(np.testing.assert_array_equal, flax.traverse_util.unflatten_dict(params, sep='/'), dict(opened.params))
    assert said['ids'] == dataclasses.asdict(opened.vocab.ids) | {'start': 1, 'pad': 0}
    assert said['num_symbols'] == len(opened.vocab) and set(said['never']) == {0, 1}
    assert set(said['functions']) == {'encode' if said['family'] == 'seq2seq' else 'prefill', 'step'}
    for one in said['functions'].values():
        function = export.deserialize(bytearray((output / one['file']).read_bytes()))
        assert set(function.platforms) == {'cpu', 'cuda', 'tpu'} == set(said['platforms'])
        for side, avals in (('arguments', function.in_avals), ('results', function.out_avals)):
            described = [(row['dtype'], [str(size) for size in row['shape']]) for row in one[side]]
            assert described == [(aval.dtype.name, [str(size) for size in aval.shape]) for aval in avals]
        assert [row['name'] for row in one['arguments'] if row['name'].startswith('parameters/')] == [
            f'parameters/{name}' for name in sorted(params)
        ]
        assert any('rows' in row['shape'] for row in one['results'])


CASES = {name: test_cache.CASES[name] for name in ('static', 'lstm', 'window', 'lm grouped', 'lm conv')}


@pytest.mark.parametrize('changes', CASES.values(), ids=CASES)
def test_any_rows_lengths_and_chunks_give_what_the_model_gives(changes):
    model, params = test_cache.made(changes)
    vocab = Vocabulary.of(['a', 'b', 'c', 'd', 'e'])
    opened = types.SimpleNamespace(cfg=types.SimpleNamespace(model=model.cfg), vocab=vocab, workdir='run')
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    functions = export_stablehlo._exported(opened, flat)
    call = {name: jax.jit(function.call) for name, (function, _) in functions.items()}
    rng = np.random.default_rng(0)
    for rows, chunks in ((3, (2, 1)), (1, (4,))):
        tokens, source = rng.integers(4, 9, (rows, 5)), rng.integers(4, 9, (rows, 3 + rows))
        tokens, source = tokens.astype(np.int32), source.astype(np.int32)
        apply = lambda method, *args: model.apply({'params': params}, *args, method=method)  # noqa: E731
        if 'encode' in call:
            cache, expected = call['encode'](flat, source, np.zeros(6, bool)), apply('start_cache', source, 6)
            at = 0
        else:
            logits, cache = call['prefill'](flat, tokens[:, :2], np.zeros(6, bool))
            wanted, expected = apply('extend', tokens[:, :2], apply('start_cache', rows, 6))
            np.testing.assert_allclose(logits, wanted, atol=1e-5)
            at = 2
        for size in chunks:
            logits, cache = call['step'](flat, tokens[:, at : at + size], cache)
            wanted, expected = apply('extend', tokens[:, at : at + size], expected)
            np.testing.assert_allclose(logits, wanted, atol=1e-5)
            at += min(size, 5 - at)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), cache, expected)


def test_what_cannot_be_exported_is_said_in_one_line(exported, tmp_path, capsys):
    workdir, output = exported
    with pytest.raises(UserError, match='--output=.*: holds signature.json already; choose another directory'):
        export_stablehlo.run(workdir, None, output)
    flags = ['export', f'--workdir={workdir}', f'--output={tmp_path}/x', '--stablehlo']
    assert main([*flags, '--quantize=int8']) == 2
    assert '--quantize=int8: not with --stablehlo' in capsys.readouterr().err
    config = json.loads((workdir / 'config.json').read_text())
    (tmp_path / 'mlm').mkdir()
    config['model'] |= {'family': 'mlm'}
    config['data'] |= {'name': 'stdlib', 'tokenizer': 'bytes', 'buckets': [[9]]}
    (tmp_path / 'mlm' / 'config.json').write_text(json.dumps(config))
    with pytest.raises(UserError, match='a run of model.family=mlm has no step; --stablehlo takes seq2seq, lm'):
        export_stablehlo.run(tmp_path / 'mlm', None, tmp_path / 'y')
