"""What a run takes: the mixture of an epoch's shapes where the data are asked, else the largest bucket."""

from pathlib import Path

import numpy as np
import pytest

from jaxformer import config
from jaxformer.ablate import count, flops
from jaxformer.data import corpus, pipeline

CONFIGS = Path(__file__).parents[2] / 'configs'


def made(name, directory, **changes):
    edited = config.load(CONFIGS / f'{name}.py')
    config.override(edited, {'data.dir': str(directory), **{k.replace('__', '.'): v for k, v in changes.items()}})
    return config.resolve(edited)


def test_a_step_costs_the_mean_over_the_batches_of_an_epoch(tmp_path):
    cfg = made('tiny', tmp_path, data__num_examples=90, data__buckets=((5, 5), (9, 9), (13, 13)), train__batch_size=8)
    data = corpus.load(cfg.data)
    batches = pipeline.TrainBatches(data.split('train'), cfg.data.buckets, 8, seed=3, shuffle=True)
    shapes, labels, size = [], 0, len(data.vocab)
    for index in range(batches.batches_per_epoch):
        batch = batches[index]
        shapes.append((batch['source'].shape[1], batch['target'].shape[1]))
        labels += int(np.sum(batch['target'] != cfg.model.ids.pad))
    assert len(set(shapes)) == 3
    by_hand = np.mean([8 * flops.training(cfg.model, size, 0, shape) for shape in shapes])
    assert count.step_flops(cfg) == pytest.approx(by_hand)
    assert count.train_flops(cfg) == pytest.approx(cfg.train.num_steps * by_hand)
    assert count.train_tokens(cfg) == round(cfg.train.num_steps * labels / batches.batches_per_epoch)
    found = count.cost(cfg)
    assert (found.parameters, found.batch) == (count.parameter_count(cfg), 8)
    assert count.step_flops(made('tiny', tmp_path, data__num_examples=90, train__batch_size=4)) < 0.75 * by_hand


def test_without_the_data_every_batch_is_one_of_the_largest_bucket(tmp_path):
    cfg = made('base', tmp_path / 'never', data__buckets=((8, 9), (20, 25)), train__num_steps=7, train__batch_size=3)
    one = flops.training(cfg.model, 37_000, 0, (20, 25))
    assert count.train_flops(cfg) == 7 * 3 * one
    assert count.train_tokens(cfg) == 7 * 3 * 25
    assert not (tmp_path / 'never').exists()


@pytest.mark.parametrize('name', ['gpt_tiny', 'bert_tiny', 'classifier_tiny'])
def test_texts_and_labels_are_counted(tmp_path, name):
    (tmp_path / 'train.txt').write_text('abc de\n' * 40)
    (tmp_path / 'labelled.txt').write_text(''.join(f'{"ab"[i % 2]}\tabc {i}\n' for i in range(90)))
    source = {'data__source': str(tmp_path / 'train.txt'), 'data__name': 'text', 'data__tokenizer': 'bytes'}
    if name == 'classifier_tiny':
        source |= {'data__source': str(tmp_path / 'labelled.txt'), 'data__name': 'labelled'}
    cfg = made(name, tmp_path / 'data', **source, data__buckets=((16,),), train__batch_size=4, train__num_steps=10)
    data = corpus.load(cfg.data)
    split = data.split('train')
    batches = pipeline.TrainBatches(split, cfg.data.buckets, 4, seed=0, shuffle=False)
    tokens = sum(np.sum(batches[i]['tokens'] != cfg.model.ids.pad) for i in range(batches.batches_per_epoch))
    assert count.train_tokens(cfg) == round(10 * tokens / batches.batches_per_epoch)
    assert count.train_flops(cfg) == 40 * flops.training(cfg.model, len(data.vocab), len(data.classes), (16,))
