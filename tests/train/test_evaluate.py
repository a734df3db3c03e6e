"""Numbers of a whole split: every example and every real symbol once, whatever the batch and the devices (B56)."""

import json
import pathlib

import jax
import numpy as np
import pytest
import small

from jaxformer import config, sharding
from jaxformer.data import corpus as corpora
from jaxformer.data.ragged import Ragged
from jaxformer.data.splits import LabelledSplit, PairSplit
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.schema import MeshConfig
from jaxformer.train.evaluate import Evaluator

LENGTHS = (3, 0, 7, 1, 8, 2, 5, 4, 6, 4)
SYMBOLS = 15


def split(count=10):
    """Examples of 0 to 8 symbols, each with its reverse."""
    sources = [[4 + (7 * i + 3 * j) % 11 for j in range(length)] for i, length in enumerate(LENGTHS[:count])]
    ragged = lambda rows: Ragged.of(rows, np.int32)  # noqa: E731
    source, target = (ragged([[*row[::order], 2] for row in sources]) for order in (1, -1))
    return PairSplit('dev', source=source, target=target, text=source, reference_text=source)


def made(batch_size, count=10, buckets=((5, 5), (9, 9))):
    """(metrics by the evaluator, compilations) over all devices there are."""
    cfg = small.make({'eval.batch_size': batch_size, 'data.buckets': buckets})
    mesh = sharding.make_mesh(MeshConfig(data=-1, fsdp=1, model=1, seq=1, strategy=''))
    model = transformer.build(cfg.model, SYMBOLS)
    params = transformer.init(model, 2)
    params = jax.device_put(params, sharding.of_state(params, mesh))
    evaluator = Evaluator(cfg, model, mesh)
    return evaluator.split_losses(params, split(count)), evaluator.sums.compilations


def per_example(batch_size, count=10):
    """(results of each example, numbers of the split) over all devices there are."""
    cfg = small.make({'eval.batch_size': batch_size, 'data.buckets': ((5, 5), (9, 9))})
    mesh = sharding.make_mesh(MeshConfig(data=-1, fsdp=1, model=1, seq=1, strategy=''))
    model = transformer.build(cfg.model, SYMBOLS)
    params = transformer.init(model, 2)
    params = jax.device_put(params, sharding.of_state(params, mesh))
    evaluator = Evaluator(cfg, model, mesh)
    examples = evaluator.examples(params, split(count))
    return {name: found.tolist() for name, found in examples.items()}, evaluator.totals(examples, split(count))


def by_hand(count=10):
    """The same numbers by NumPy from the logits of one example at a time, in a shape that no bucket has."""
    cfg = small.make()
    model = transformer.build(cfg.model, SYMBOLS)
    params, examples = transformer.init(model, 2), split(count)
    logits_of = jax.jit(lambda source, target: model.apply({'params': params}, source, target)[0][0])
    nll, correct = [], []
    for i in range(count):
        target = np.asarray(examples.target[i])
        logits = logits_of(examples.source.pad(np.array([i]), 13), examples.target.pad(np.array([i]), 11))
        logits = np.asarray(logits, np.float64)[: len(target)]
        peak = logits.max(axis=-1)
        nll += list(peak + np.log(np.exp(logits - peak[:, None]).sum(axis=-1)) - logits[np.arange(len(target)), target])
        correct += list(logits.argmax(axis=-1) == target)
    loss = float(np.mean(nll))
    numbers = {'loss': loss, 'perplexity': np.exp(loss), 'accuracy': np.mean(correct)}
    return {**numbers, 'tokens': len(nll), 'examples': count}


@pytest.fixture(scope='module')
def expected():
    return by_hand()


@pytest.mark.parametrize('batch_size', [1, 3, 4, 10])
def test_every_example_counts_once(batch_size, expected):
    metrics, compilations = made(batch_size)
    assert metrics == pytest.approx(expected, rel=1e-6) and metrics['examples'] == 10
    assert compilations == 2  # one per bucket, the last batch included


def test_each_example_has_its_own_sums():
    """An example in the company of others, in buckets of two lengths, is what it is alone in a split."""
    found, totals = per_example(4)
    assert found['example_id'] == list(range(10))
    assert found['tokens'] == [length + 1 for length in LENGTHS]
    assert totals == made(4)[0]  # bit for bit
    for name, total in (('nll', totals['loss'] * totals['tokens']), ('correct', totals['accuracy'] * totals['tokens'])):
        assert sum(found[name]) == pytest.approx(total) and len(set(found[name])) > 1
    first, few = per_example(3, 3)  # of other company
    assert first['nll'] == pytest.approx(found['nll'][:3], rel=1e-6) and few['examples'] == 3
    assert found['nll'][1] == pytest.approx(by_hand(2)['loss'] * by_hand(2)['tokens'] - by_hand(1)['loss'] * 4)


def test_on_eight_devices_and_with_fewer_examples_than_devices(expected):
    code = (
        'import json, jax, test_evaluate as t; assert jax.device_count() == 8\n'
        'print(json.dumps([[t.made(size)[0] for size in (1, 3, 4, 10)], t.made(4, count=3)[0], t.per_example(4)[0]]))'
    )
    done = small.run_process('-c', code, devices=8)
    assert done.returncode == 0, done.stderr[-3000:]
    whole, few, examples = json.loads(done.stdout)
    alone = per_example(4)[0]
    assert examples.keys() == alone.keys()
    assert all(examples[name] == pytest.approx(values, rel=1e-6) for name, values in alone.items())
    for metrics in whole:
        assert metrics == pytest.approx(expected, rel=1e-6)
    assert few == pytest.approx(by_hand(3), rel=1e-6) and few['examples'] == 3


def test_what_does_not_fit_is_not_counted_and_nothing_at_all_is_refused():
    metrics, _ = made(4, buckets=((3, 3), (6, 6)))
    assert metrics['examples'] == sum(length <= 5 for length in LENGTHS)
    assert metrics['tokens'] == sum(length + 1 for length in LENGTHS if length <= 5)
    with pytest.raises(UserError, match=r'config.data.buckets=\(\(1, 1\),\): no example of dev fits'):
        made(2, 1, buckets=((1, 1),))  # three symbols


def test_bits_per_byte_are_the_bits_of_all_tokens_over_the_bytes_of_the_text(tmp_path):
    texts = ['aé' * 20, 'zebda\n', '', 'caffè e dè']
    (tmp_path / 'train.txt').write_text('abcdefz éè\n' * 3)
    (tmp_path / 'test.txt').write_text('x')
    edited = config.load(pathlib.Path(__file__).parents[2] / 'configs' / 'gpt_tiny.py')
    small_lm = {'d_model': 12, 'num_heads': 3, 'd_ff': 7, 'num_layers': 1}
    config.override(
        edited,
        {f'model.{name}': value for name, value in small_lm.items()}
        | {'data.name': 'text', 'data.source': str(tmp_path / '{split}.txt'), 'data.dir': str(tmp_path / 'data')}
        | {'data.buckets': ((11,),), 'eval.batch_size': 4, 'eval.max_decode_length': 5},
    )
    found = {}
    for tokenizer in ('bytes', 'characters'):
        (tmp_path / 'dev.txt').write_text(''.join(texts))
        config.override(edited, {'data.tokenizer': tokenizer})
        cfg = config.resolve(edited)
        corpus = corpora.load(cfg.data)
        model = transformer.build(cfg.model, len(corpus.vocab))
        evaluator = Evaluator(cfg, model, sharding.make_mesh(cfg.mesh))
        metrics = evaluator.split_losses(transformer.init(model, 0), corpus.split('dev'))
        found[tokenizer] = metrics['bits_per_byte']
        bits = metrics['loss'] * metrics['tokens'] / np.log(2)
        assert metrics['bits_per_byte'] == pytest.approx(bits / len(''.join(texts).encode()), rel=1e-6)
    assert found['bytes'] != pytest.approx(found['characters'], rel=1e-2)


def test_a_classifier_counts_labels_and_calls_them_so():
    edited = config.load(pathlib.Path(__file__).parents[2] / 'configs' / 'classifier_tiny.py')
    small_classifier = {'d_model': 12, 'num_heads': 3, 'd_ff': 7, 'num_layers': 1, 'vocab_size': 300}
    config.override(
        edited,
        {f'model.{name}': value for name, value in small_classifier.items()}
        | {'eval.batch_size': 2, 'data.buckets': ((11,),)},
    )
    cfg = config.resolve(edited)
    tokens = Ragged.of([[1, 9 + i, 8, 2] for i in range(5)], np.int32)
    examples = LabelledSplit('dev', tokens, Ragged.of([[i % 3] for i in range(5)], np.int32), per_token=False)
    model = transformer.build(cfg.model, 300, 3)
    metrics = Evaluator(cfg, model, sharding.make_mesh(cfg.mesh)).split_losses(transformer.init(model, 0), examples)
    assert (metrics['labels'], metrics['examples']) == (5, 5)
    assert 'tokens' not in metrics


def test_a_text_that_its_tokenizer_does_not_keep_has_no_bits_per_byte(tmp_path):
    (tmp_path / 'train.txt').write_text('abcdefz\n' * 30)
    (tmp_path / 'dev.txt').write_text('abé\n' * 30)  # the last letter is unknown
    (tmp_path / 'test.txt').write_text('abc\n' * 30)
    edited = config.load(pathlib.Path(__file__).parents[2] / 'configs' / 'gpt_tiny.py')
    files = {'data.name': 'text', 'data.source': str(tmp_path / '{split}.txt'), 'data.dir': str(tmp_path / 'data')}
    config.override(edited, files | {'data.tokenizer': 'characters', 'data.buckets': ((11,),)})
    corpus = corpora.load(config.resolve(edited).data)
    assert [corpus.split(name).num_bytes for name in ('train', 'dev', 'test')] == [240, 0, 120]
