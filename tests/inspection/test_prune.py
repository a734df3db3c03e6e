"""A pruned model is the masked one without what it does not need: its numbers, fewer parameters, its own slopes."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from quick import draw_params

from jaxformer.data.vocab import EOS, Vocabulary
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import OpenRun, open_run
from jaxformer.errors import UserError
from jaxformer.inspection import attention, prune
from jaxformer.inspection.prune import Head
from jaxformer.model import transformer

VOCAB = Vocabulary.of([str(i) for i in range(11)])
SOURCE = np.array([[5, 7, 9, 4, 4, 8, EOS], [6, 5, EOS, 0, 0, 0, 0]], np.int32)
TARGET = np.array([[6, 8, 5, EOS, 0], [9, 9, 4, 7, EOS]], np.int32)
SIZES = {'model__num_heads': 4, 'model__d_k': 6, 'model__d_v': 3, 'model__num_layers': 2}
HEADS = [  # non-consecutive ones stay, others in each layer
    *(Head('encoder', 0, head) for head in (0, 2)),
    *(Head('encoder', 1, head) for head in (1, 2)),
    *(Head('decoder', layer, 1 + layer) for layer in (0, 1)),
    *(Head('cross', layer, head) for layer in (0, 1) for head in (0, 1, 3 - layer)),
]
DESIGNS = {
    'plain': {},
    'alibi': {'model__position': 'alibi'},
    't5 shared': {'model__position': 't5_relative'},
    't5 per layer': {'model__position': 't5_relative', 'model__relative__tables': 'per_layer'},
    'biases': {'model__attention__bias': 'all', 'model__attention__score': 'additive'},
    'static': {'model__encoder_mixer': 'static', 'model__decoder_mixer': 'static', 'model__max_length': 12},
    'linformer': {'model__encoder_mixer': 'linformer', 'model__position': 'rotary', 'model__max_length': 12},
    'blockwise alibi': {
        'model__position': 'alibi',
        'model__attention__kernel': 'blockwise',
        'model__attention__block': 3,
    },
    'pallas alibi': {'model__position': 'alibi', 'model__attention__kernel': 'pallas', 'model__attention__block': 3},
}


def drawn(cfg):
    return draw_params(transformer.abstract_params(cfg.model, 11), 0.3)


def logits(cfg, params):
    model = transformer.build(cfg.model, 11)
    return np.asarray(jax.jit(lambda p: model.apply({'params': p}, SOURCE, TARGET)[0])(params))


def step_by_step(cfg, params):
    """As `logits`, a decoder input at a time, with a cache."""
    model = transformer.build(cfg.model, 11)
    apply = lambda method, *inputs: model.apply({'params': params}, *inputs, method=method)  # noqa: E731
    cache, found = apply('start_cache', SOURCE, 5), []
    extend = jax.jit(lambda tokens, cache: apply('extend', tokens, cache))
    for t in range(5):
        token_B1 = TARGET[:, t - 1 : t] if t else np.full((2, 1), cfg.model.ids.start, np.int32)
        out, cache = extend(token_B1, cache)
        found.append(np.asarray(out)[:, 0])
    return np.stack(found, axis=1)


def size(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize('design', DESIGNS)
def test_pruned_is_masked(make_cfg, design):
    cfg = make_cfg(**SIZES, **DESIGNS[design])
    params = drawn(cfg)
    new, pruned = prune.pruned(cfg, params, HEADS)
    expected = transformer.abstract_params(new.model, 11)
    assert jax.tree.map(np.shape, pruned) == jax.tree.map(np.shape, expected)
    masked = logits(cfg, prune.masked(params, cfg.model, HEADS))
    real = TARGET != 0
    np.testing.assert_allclose(logits(new, pruned)[real], masked[real], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(step_by_step(new, pruned)[real], masked[real], atol=2e-5, rtol=1e-5)
    assert np.abs(masked - logits(cfg, params))[real].max() > 0.01  # the heads did something
    assert new.model.kept_heads.encoder == ((1, 3), (0, 3)) and new.model.kept_heads.decoder == ((0, 2, 3), (0, 1, 3))
    assert size(pruned) < size(params)


def test_heads_of_a_key_head_go_with_it_and_layers_keep_one_shape(make_cfg):
    cfg = make_cfg(**SIZES, model__num_kv_heads=2, model__position='alibi')
    params = drawn(cfg)
    heads = [Head('encoder', 0, 2), Head('encoder', 0, 3), Head('encoder', 1, 0), Head('encoder', 1, 1)]
    heads += [Head('cross', 0, 1), Head('cross', 1, 0), Head('cross', 1, 2), Head('decoder', 0, 3)]
    new, pruned = prune.pruned(cfg, params, heads)
    assert new.model.kept_heads.encoder == ((0, 1), (2, 3))  # a key head each
    assert new.model.kept_heads.cross == ((0, 1, 2, 3), (0, 1, 2, 3))  # a key head has two in the first layer
    attention_ = pruned['encoder']['layers']['self_attention']
    assert attention_['key'].shape[2] == 1 and attention_['query'].shape[2] == 2
    masked = logits(cfg, prune.masked(params, cfg.model, heads))
    np.testing.assert_allclose(logits(new, pruned)[TARGET != 0], masked[TARGET != 0], atol=1e-5, rtol=1e-5)


def test_pruned_twice_is_pruned_at_once(make_cfg):
    cfg = make_cfg(**SIZES, model__position='t5_relative')
    first = [Head('encoder', 0, 0), Head('encoder', 1, 2)]
    second = [Head('encoder', 0, 2), Head('encoder', 1, 1)]
    params = drawn(cfg)
    at_once = prune.pruned(cfg, params, first + second)
    once, half = prune.pruned(cfg, params, first)
    twice, whole = prune.pruned(once, half, second)
    assert twice.model.kept_heads == at_once[0].model.kept_heads
    jax.tree.map(np.testing.assert_array_equal, whole, at_once[1])


@pytest.fixture(scope='module', params=['alibi', 't5_relative'])
def written(request, make_cfg, tmp_path_factory):
    cfg = make_cfg(model__num_heads=3, model__d_k=6, model__d_v=4, model__position=request.param)
    run = OpenRun(tmp_path_factory.mktemp('whole'), cfg, VOCAB, transformer.build(cfg.model, len(VOCAB)), None, 7)
    params = draw_params(transformer.abstract_params(cfg.model, len(VOCAB)), 0.3)
    run = dataclasses.replace(run, params=params)
    heads = prune.parse('encoder.1.2,encoder.2.3,decoder.1.1,decoder.2.1,cross.1.1,cross.1.3,cross.2.2', run.cfg.model)
    workdir = tmp_path_factory.mktemp('pruned') / 'run'
    return run, heads, workdir, prune.write(run, heads, workdir)


def test_saved_reloaded_and_decoded_with_a_cache(written):
    run, heads, workdir, found = written
    pruned = open_run(workdir)
    masked = dataclasses.replace(run, params=prune.masked(run.params, run.cfg.model, heads))
    lines = ['3 1 4 1 5', '2 7', '0 9 8 1']
    for line in lines:
        maps = [attention.of_run(one, line) for one in (masked, pruned)]
        assert maps[0].inputs == maps[1].inputs and maps[0].predicted == maps[1].predicted
        np.testing.assert_allclose(maps[1].encoder[1], maps[0].encoder[1][:2], atol=1e-5)  # heads 1 and 2 stay
    assert list(decode_lines(workdir, None, lines)) == [
        ' '.join(symbol for symbol in attention.of_run(masked, line).predicted if symbol != '</s>') for line in lines
    ]
    assert pruned.cfg.model.kept_heads.cross == ((0, 1), (0, 2))  # of the first layer one stays that is masked
    assert found.heads == 7 and found.zeros == 1


def test_the_count_falls_as_reported(written):
    run, _, workdir, found = written
    assert (found.before, found.after) == (size(run.params), size(open_run(workdir).params))
    model, D = run.cfg.model, run.cfg.model.d_model
    assert found.before - found.after == 6 * (2 * D * model.d_k + 2 * D * model.d_v)  # of each head that is gone
    assert f'parameters {found.before:,} → {found.after:,}' in str(found) and '1 of them masked' in str(found)
    assert math.isclose(1 - found.after / found.before, float(str(found).split('−')[1].strip('%)')) / 100, abs_tol=1e-3)


def test_mistakes_name_the_value(written, make_cfg):
    run, heads, workdir, _ = written
    for text, said in (
        ('encoder.1.9', "'encoder.1.9': no such head; the model has encoder.1.1"),
        ('1,2', 'write kind'),
    ):
        with pytest.raises(UserError, match=said):
            prune.parse(text, run.cfg.model)
    with pytest.raises(UserError, match='holds a run'):
        prune.write(run, heads, workdir)
    assert {
        head.kind for head in prune.of_model(make_cfg(model__decoder_mixer='conv', model__position='none').model)
    } == {
        'encoder',
        'cross',
    }
