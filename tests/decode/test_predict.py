"""Decoding splits and lines of text: the same whatever the batch and the devices (B56), each line in its place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxformer import config, sharding
from jaxformer.data.ragged import Ragged
from jaxformer.data.splits import PairSplit
from jaxformer.data.vocab import EOS, UNK, Vocabulary
from jaxformer.decode.error_rates import error_rates
from jaxformer.decode.found import Found
from jaxformer.decode.predict import Decoder
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.schema import MeshConfig

ROOT = Path(__file__).parents[2]
VOCAB = Vocabulary.of([str(i) for i in range(11)])
LENGTHS = (3, 1, 7, 2, 8, 2, 5, 4, 6, 4)
SOURCES = [[4 + (7 * i + 3 * j) % 11 for j in range(length)] for i, length in enumerate(LENGTHS)]
TEXTS = [' '.join(VOCAB.decode(source)) for source in SOURCES]


def decoder(batch_size, more=None, vocab=VOCAB):
    """(decoder, parameters) over all devices there are; the parameters are drawn wide, so that outputs are varied."""
    edited = config.load(ROOT / 'configs' / 'tiny.py')
    changes = {'model.d_model': 12, 'model.d_ff': 10, 'model.num_layers': 1, 'eval.max_decode_length': 7}
    config.override(edited, {**changes, 'eval.batch_size': batch_size, **(more or {})})
    cfg = config.resolve(edited)
    model = transformer.build(cfg.model, len(vocab))
    params = jax.tree.map(lambda leaf: leaf * 1.7, transformer.init(model, 5))
    mesh = sharding.make_mesh(MeshConfig(data=-1, fsdp=1, model=1, seq=1, strategy=''))
    return Decoder(cfg, model, vocab, mesh), jax.device_put(params, sharding.of_state(params, mesh))


def split(count=10):
    """The first `count` examples; the second reference of each is what they are read backwards."""
    rows = Ragged.of([[*source, EOS] for source in SOURCES[:count]], np.int32)
    texts = [text + '\n' + ' '.join(text.split()[::-1]) for text in TEXTS[:count]]
    references = Ragged.of([text.encode() for text in texts], np.uint8)
    return PairSplit('dev', source=rows, target=rows, text=rows, reference_text=references)


def always(ids):
    """A `Decoder.batch` that finds these symbols for every row."""

    def batch(params, source_BS, example_B):
        B = len(source_BS)
        return Found(np.tile([*ids, EOS], (B, 1, 1)), np.zeros((B, 1)), np.zeros((B, 1)), np.zeros((B, 1), bool))

    return batch


def results(batch_size, count=10, more=None):
    made, params = decoder(batch_size, more)
    return {'rates': made.split_error_rates(params, split(count)), 'lines': list(made.lines(params, TEXTS[:count]))}


BEAM = {'eval.search': 'beam', 'eval.beam_size': 3, 'data.buckets': ((9, 9),)}


@pytest.fixture(scope='module')
def expected():
    return results(10)


def test_outputs_are_varied_and_the_rates_are_theirs(expected):
    lines = [line for line, _ in expected['lines']]
    assert len(lines) == 10 and len(set(lines)) > 3 and len({len(line) for line in lines}) > 2
    references = [[text.split(), text.split()[::-1]] for text in TEXTS]
    assert expected['rates'] == error_rates([line.split() for line in lines], references)


def test_each_example_has_its_own_errors(expected):
    """The rates of a split with one example are what that example adds to those of ten."""
    made, params = decoder(3)
    found = made.examples(params, split())
    assert found['example_id'].tolist() == list(range(10)) and len(set(found['errors'].tolist())) > 2
    for i, (line, _) in enumerate(expected['lines']):
        alone = error_rates([line.split()], [[TEXTS[i].split(), TEXTS[i].split()[::-1]]])
        assert found['symbols'][i] == LENGTHS[i] and found['errors'][i] == pytest.approx(alone['per'] * LENGTHS[i])
        assert found['wrong'][i] == alone['wer']
    assert made.totals(found) == expected['rates']
    few = decoder(3, {'data.buckets': ((5, 5),)})[0]
    assert few.examples(params, split())['example_id'].tolist() == [i for i in range(10) if LENGTHS[i] < 5]


@pytest.mark.parametrize('batch_size', [1, 3, 4])
def test_the_batch_changes_nothing(batch_size, expected):
    assert results(batch_size) == expected


def test_eight_devices_change_nothing(expected):
    code = (
        'import json, jax, test_predict as t; assert jax.device_count() == 8\n'
        'found = [*(t.results(size) for size in (1, 3, 4, 10)), t.results(4, count=3), t.results(4, more=t.BEAM)]\n'
        'print(json.dumps(found))'
    )
    env = {
        **os.environ,
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': '--xla_force_host_platform_device_count=8',
        'PYTHONPATH': os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
    }
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    as_json = json.loads(json.dumps([expected] * 4 + [results(3, count=3), results(3, more=BEAM)]))
    assert json.loads(done.stdout) == as_json


def test_each_line_keeps_its_place_and_blank_ones_stay_blank(expected):
    """B53: lines are sorted by length for the batches, and nobody notices."""
    made, params = decoder(3)
    alone = dict(zip(TEXTS, expected['lines'], strict=True))
    order = [7, 2, 0, 9, 4, 1]
    given = ['', TEXTS[order[0]], '   ', *(TEXTS[i] for i in order[1:]), '']
    assert list(made.lines(params, given)) == [alone.get(line, ('', 0)) for line in given]
    assert list(made.lines(params, [])) == [] and list(made.lines(params, ['', ' '])) == [('', 0), ('', 0)]


def test_unknown_symbols_are_counted_and_special_names_are_unknown():
    made, params = decoder(3)
    counts = [count for _, count in made.lines(params, ['3 4', '3 x 4', '<pad> 3 </s> y', '\u0151'])]
    assert counts == [0, 1, 3, 1] and VOCAB.encode(['x'])[0] == UNK


def test_a_line_longer_than_every_bucket_is_decoded_all_the_same():
    made, params = decoder(3)
    longer = ' '.join('3142' * 5)  # 20 symbols; the longest bucket holds 8
    (output, unknown), short = made.lines(params, [longer, TEXTS[0]])
    assert unknown == 0 and short == next(iter(made.lines(params, [TEXTS[0]])))
    by_padding, params = decoder(1, {'data.buckets': ((27, 27),)})  # an odd size: what is padded does not matter
    assert output == next(iter(by_padding.lines(params, [longer])))[0]


def test_long_lines_take_the_memory_of_the_longest_bucket():
    """As many rows less as the square of the length is more, and at least one."""
    made, params = decoder(9, {'data.buckets': ((5, 9),)})
    shapes, batch = [], made.batch
    made.batch = lambda params, source, example: (shapes.append(source.shape), batch(params, source, example))[1]
    lines = [' '.join('3142' * 5)[: 2 * count] for count in (3, 7, 7, 7, 7, 15, 15)]
    assert len(list(made.lines(params, lines))) == 7
    assert shapes == [(9, 5), (3, 8), (3, 8), (1, 16), (1, 16)]


def test_learned_positions_have_an_end_that_is_named():
    made, params = decoder(3, {'model.position': 'learned', 'model.max_length': 9})
    with pytest.raises(UserError, match='line 2: 20 symbols; .*config.model.max_length=9'):
        list(made.lines(params, ['1 2', ' '.join('3142' * 5)]))


def test_compiled_once_per_source_length():
    """B57: buckets that share a source length share a program, and a last batch that is not full needs none."""
    made, params = decoder(3, {'data.buckets': ((5, 4), (5, 5), (9, 9))})
    made.split_error_rates(params, split())
    made.split_error_rates(params, split())
    list(made.lines(params, TEXTS))
    assert made.search.compilations == 2


@pytest.mark.parametrize('tokenizer', ['characters', 'bytes', 'bpe'])
def test_outputs_are_texts_and_a_line_stays_a_line(tokenizer):
    """B53 with symbols that are parts of words, and that may be newlines."""
    vocab = Vocabulary.learn(tokenizer, ['three one four\n', '\n\n{} \u0151'], 300)
    files = {'data.name': 'parallel', 'data.source': 'unused', 'data.target': 'unused', 'data.tokenizer': tokenizer}
    made, params = decoder(3, files, vocab)
    given = ['three one four', '', '{} \u0151', '   ', 'one one four three', '']
    outputs = list(made.lines(params, given))
    for line, (output, unknown) in zip(given, outputs, strict=True):
        assert unknown == 0 and bool(output) == bool(line.strip())
        if line.strip():
            source = np.array([[*next(vocab.encode_texts([line])), EOS]])
            tokens = made.batch(params, source.repeat(3, axis=0), np.arange(3)).tokens[0, 0]
            assert output == vocab.join(vocab.decode(tokens)).replace('\n', ' ')
    assert list(made.lines(params, ['\u0416']))[0][1] == (1 if tokenizer == 'characters' else 0)
    made.batch = always(vocab.encode(vocab.split('three\none')))
    assert [output for output, _ in made.lines(params, given[:2])] == ['three one', '']


def test_error_rates_do_not_depend_on_the_pieces_of_a_word():
    """What is put together from other symbols, and reads the same, is right."""
    vocab = Vocabulary.of(('a', 'b', 'c', 'ab', 'bc'), 'bpe', ('a b', 'b c'))
    made, params = decoder(3, None, vocab)
    made.batch = always(vocab.encode(['a', 'b', 'c']))
    rows = Ragged.of([[5, EOS]], np.int32)
    reference = Ragged.of([b'abc'], np.uint8)
    given = PairSplit('dev', rows, rows, reference, reference, vocab.split)
    assert given.references(0) == [['ab', 'c']]
    assert made.split_error_rates(params, given) == {'per': 0.0, 'wer': 0.0}
