"""The whole model: who sees what, what padding changes (nothing), and what a cache changes (nothing)."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import jit

from jaxformer import config, losses
from jaxformer.data.vocab import BOS, EOS, PAD
from jaxformer.errors import UserError
from jaxformer.model import flash, layers, ops, transformer
from jaxformer.model.context import Context
from jaxformer.model.masks import Sight
from jaxformer.model.stack import Stack

V = 13
SOURCE = jnp.array([[5, 6, 7, 8, 9, EOS, PAD], [4, 12, EOS, PAD, PAD, PAD, PAD]], jnp.int32)
TARGET = jnp.array([[9, 8, 7, EOS], [11, EOS, PAD, PAD]], jnp.int32)


def logits_of(model):
    return jit(lambda params, source, target: model.apply({'params': params}, source, target)[0])


# Who sees what (B06)


@pytest.mark.parametrize('T', [2, 9, 64])
def test_the_decoder_never_sees_what_comes_later(make_model, T):
    """Label k is the input of position k + 1: logits up to k stay bit for bit, that of k + 1 changes."""
    model, params = make_model()
    logits = logits_of(model)
    target = jnp.asarray(np.random.default_rng(0).integers(4, V, (1, T)), jnp.int32)
    before = np.asarray(logits(params, SOURCE[:1], target))
    for k in {0, T // 2, T - 1}:
        after = np.asarray(logits(params, SOURCE[:1], target.at[0, k].set(4 + (target[0, k] - 3) % (V - 4))))
        np.testing.assert_array_equal(after[:, : k + 1], before[:, : k + 1])
        if k < T - 1:
            assert np.all(np.any(after[:, k + 1 :] != before[:, k + 1 :], axis=-1))


def test_the_encoder_sees_the_whole_source(make_model):
    model, params = make_model()
    encode = jit(lambda source: model.apply({'params': params}, source, None, {}, method='_encode')[0])
    first, last = encode(SOURCE[:1, :6]), encode(SOURCE[:1, :6].at[0, 5].set(4))
    assert np.all(np.any(np.asarray(first != last), axis=-1))


def test_the_decoder_sees_the_whole_source_from_its_first_position(make_model):
    model, params = make_model()
    logits = logits_of(model)
    before, after = (logits(params, source, TARGET[:1]) for source in (SOURCE[:1], SOURCE[:1].at[0, 4].set(4)))
    assert np.all(np.any(np.asarray(before != after), axis=-1))


def test_without_positions_the_encoder_is_permutation_equivariant_and_with_them_it_is_not(make_model):
    order = jnp.array([3, 0, 4, 1, 2])
    for position, equal in (('none', True), ('sinusoidal', False), ('learned', False)):
        model, params = make_model(position=position)
        encode = jit(lambda p, source, m=model: m.apply({'params': p}, source, None, {}, method='_encode')[0])
        straight, permuted = encode(params, SOURCE[:1, :5]), encode(params, SOURCE[:1, order])
        assert np.allclose(straight[:, order], permuted, atol=1e-5) is equal


# Padding (B03, B27)


@pytest.mark.parametrize('position', config.CHOICES['model.position'])
def test_padding_of_source_target_and_batch_changes_nothing(make_model, position):
    model, params = make_model(position=position)
    logits = logits_of(model)
    together = logits(params, jnp.pad(SOURCE, ((0, 1), (0, 4))), jnp.pad(TARGET, ((0, 1), (0, 3))))
    second = logits(params, SOURCE[1:, :3], TARGET[1:, :2])
    np.testing.assert_allclose(together[1, :2], second[0], atol=1e-5)
    assert np.all(np.isfinite(together))  # the row of padding alone, too


def test_the_embedding_of_padding_reaches_no_real_position(make_model):
    model, params = make_model(embedding__softmax='untied')
    moved = {**params, 'embedding': params['embedding'].at[PAD].add(100)}
    real = np.asarray(TARGET != PAD)
    before, after = (np.asarray(logits_of(model)(p, SOURCE, TARGET)) for p in (params, moved))
    np.testing.assert_array_equal(before[real], after[real])


@pytest.mark.parametrize('compute', ['float32', 'bfloat16', 'float16'])
def test_left_padding_and_rows_of_padding_are_finite_in_every_precision(make_model, compute):
    """B03. A left-padded row, a row of padding alone and an ordinary one; logits and all gradients are finite.

    An encoder-decoder counts positions from the first column, padding included, so a left-padded row is not promised
    the logits of the unpadded one; what holds without positions stands in the next test.
    """
    model, params = make_model(precision__compute=compute)
    source = jnp.array([[PAD, PAD, 5, 6], [PAD] * 4, [5, 6, 7, 8]], jnp.int32)

    def loss(params):
        logits, _ = model.apply({'params': params}, source, source)
        return losses.cross_entropy(logits, source, (source != PAD).astype(jnp.float32), 0.1), logits

    (_, logits), gradients = jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert logits.dtype == jnp.float32 and np.all(np.isfinite(logits))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradients))


def test_left_padding_changes_nothing_where_there_are_no_positions(make_model):
    model, params = make_model(position='none')
    logits = logits_of(model)
    left_padded = jnp.array([[PAD, PAD, 5, 6, EOS]], jnp.int32)
    np.testing.assert_allclose(
        logits(params, left_padded, TARGET[:1]), logits(params, left_padded[:, 2:], TARGET[:1]), atol=1e-5
    )
    # In the target the label after the padding is predicted from padding; those after it are as in the unpadded row.
    padded, plain = (logits(params, SOURCE[:1], target) for target in (left_padded, left_padded[:, 2:]))
    np.testing.assert_allclose(padded[0, 3:], plain[0, 1:], atol=1e-5)


# The cache (B23, B25)

_ORDERS, _NORMS = config.CHOICES['model.residual'], itertools.cycle(config.CHOICES['model.norm'])
_KV_HEADS = itertools.cycle((3, 1))
CACHE_CASES = [  # each position with two orders; with everything else in test_space.py
    (position, order, 'layernorm' if order == 'deepnorm' else next(_NORMS), next(_KV_HEADS))
    for i, position in enumerate(config.CHOICES['model.position'])
    for order in (_ORDERS[i], _ORDERS[i - 3])
]


@pytest.mark.parametrize(('position', 'order', 'norm', 'kv_heads'), CACHE_CASES)
def test_cached_logits_are_the_uncached_ones_in_any_chunks(make_model, position, order, norm, kv_heads):
    model, params = make_model(position=position, residual=order, norm=norm, num_kv_heads=kv_heads, encoder_layers=1)
    target = jnp.asarray(np.random.default_rng(0).integers(4, V, (2, 5)), jnp.int32)
    inputs, _ = transformer.decoder_inputs(target, model.cfg)

    @jit
    def cached(params):
        cache, parts, at = model.apply({'params': params}, SOURCE, 6, method='start_cache'), [], 0
        for size in (3, 1, 1):
            logits, cache = model.apply({'params': params}, inputs[:, at : at + size], cache, method='extend')
            parts.append(logits)
            at += size
        return jnp.concatenate(parts, axis=1), cache

    logits, cache = cached(params)
    np.testing.assert_allclose(logits, logits_of(model)(params, SOURCE, target), atol=1e-5)
    assert cache['index'] == 5
    own, cross = cache['layers']['self'], cache['layers']['cross']
    K = model.cfg.d_k
    assert own['key'].shape == (2, 2, kv_heads, 6, K) and own['value'].shape == (2, 2, kv_heads, 6, 7)
    assert cross['key'].shape == (2, 2, kv_heads, 7, K) and cross['value'].shape == (2, 2, kv_heads, 7, 7)
    assert not np.any(own['key'][:, :, :, 5:]) and np.all(np.any(own['key'][:, :, :, :5] != 0, axis=-1))


def test_a_token_is_written_into_the_cache_in_place(make_model):
    """Beside the cache that it is given, a step holds that of one layer, not another of all."""
    model, params = make_model(num_layers=8, d_model=16)
    cache = jax.eval_shape(
        lambda params: model.apply({'params': params}, jnp.ones((3, 200), jnp.int32), 300, method='start_cache'), params
    )
    step = jax.jit(
        lambda params, token, cache: model.apply({'params': params}, token, cache, method='extend'), donate_argnums=2
    )
    compiled = step.lower(params, jax.ShapeDtypeStruct((3, 1), jnp.int32), cache).compile()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    assert compiled.memory_analysis().temp_size_in_bytes < size / 4


def test_the_whole_target_at_once_is_a_chunk_too(make_model):
    model, params = make_model()
    inputs, _ = transformer.decoder_inputs(TARGET, model.cfg)

    @jit
    def cached(params):
        cache = model.apply({'params': params}, SOURCE, TARGET.shape[1], method='start_cache')
        return model.apply({'params': params}, inputs, cache, method='extend')[0]

    real = np.asarray(TARGET != PAD)  # a cache knows no padding among its inputs
    np.testing.assert_allclose(cached(params)[real], logits_of(model)(params, SOURCE, TARGET)[real], atol=1e-5)


# Attention maps (B60)


def test_maps_are_named_by_layer_and_head_and_show_what_may_be_seen(make_model):
    model, params = make_model(dropout__attention=0.5)

    @jit
    def run(key_2):
        return model.apply({'params': params}, SOURCE, TARGET, key_2, collect=('attention',))

    logits, maps = run(None)
    assert {name: array.shape for name, array in maps.items()} == {
        'encoder': (2, 2, 3, 7, 7),
        'decoder': (2, 2, 3, 4, 4),
        'cross': (2, 2, 3, 4, 7),
    }
    for name in ('encoder', 'cross'):
        np.testing.assert_allclose(maps[name].sum(-1), 1, atol=1e-5)
        assert not np.any(maps[name][:, 0, ..., 6:]) and not np.any(maps[name][:, 1, ..., 3:])  # keys of padding
        assert np.all(maps[name][:, 0, ..., :6] > 0)
    decoder = np.asarray(maps['decoder'])
    np.testing.assert_array_equal(decoder, np.tril(decoder))
    assert np.all(decoder[:, 0][..., np.tril_indices(4)[0], np.tril_indices(4)[1]] > 0)
    np.testing.assert_array_equal(logits, logits_of(model)(params, SOURCE, TARGET))
    _, dropped = run(jnp.array([1, 2], jnp.uint32))  # what is collected is the weights before dropout
    np.testing.assert_allclose(dropped['cross'].sum(-1), 1, atol=1e-5)


def test_nothing_is_collected_unasked(make_model):
    model, params = make_model()
    assert model.apply({'params': params}, SOURCE, TARGET)[1] == {}
    plain, collecting = (
        str(jax.make_jaxpr(lambda p, c=collect: model.apply({'params': p}, SOURCE, TARGET, collect=c))(params))
        for collect in ((), ('attention',))
    )
    assert plain != collecting


# The stack


def test_norms_are_counted_right(make_config):
    """B13: one norm for each sublayer (two in a sandwich); where a branch is normed first there is a final one."""
    for order, final in (('post', 0), ('pre', 1), ('branch', 0), ('sandwich', 1), ('deepnorm', 0), ('none', 0)):
        params = transformer.abstract_params(make_config(residual=order, num_layers=3), V)
        for stack, sublayers in (('encoder', 2), ('decoder', 3)):
            norms = [leaf for name, leaf in params[stack]['layers'].items() if name.endswith('_norm')]
            assert len(norms) == sublayers * (2 if order == 'sandwich' else 1)
            assert all(norm['scale'].shape == (3, 16) for norm in norms)
            assert ('final_norm' in params[stack]) == bool(final)


@pytest.mark.parametrize('order', config.CHOICES['model.residual'])
def test_a_stack_is_its_blocks_in_turn(make_model, order):
    """In a post-norm stack the output is that of the last block; only `pre` and `sandwich` have a norm behind it."""
    model, params = make_model(residual=order, position='none', num_layers=3)
    cfg, params = model.cfg, params['encoder']
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 16)), jnp.float32)
    position = jnp.arange(4)[None]
    context = Context(jnp.ones((2, 4), bool), Sight(), position, position)

    @jit
    def stacked(params):
        return Stack(cfg, 3, 'attention', causal=False, cross=False).apply({'params': params}, x, context)[0]

    @jit
    def in_turn(params):
        y = x
        for layer in range(3):
            weights = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params['layers'])
            y, _, _ = layers.Block(cfg, 'attention', causal=False, cross=False).apply(
                {'params': weights}, y, layer, None, context, False
            )
        if order in ('pre', 'sandwich'):
            y = ops.layer_norm(y, params['final_norm']['scale'], params['final_norm']['bias'], cfg.norm_epsilon)
        return y

    np.testing.assert_allclose(stacked(params), in_turn(params), atol=1e-5)


def test_a_deep_pre_norm_stack_ends_normalised(make_config):
    cfg = make_config(residual='pre', num_layers=24)
    stack = Stack(cfg, 24, 'attention', causal=False, cross=False)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 16)), jnp.float32)
    position = jnp.arange(4)[None]
    context = Context(jnp.ones((2, 4), bool), Sight(), position, position)
    y = np.asarray(jit(lambda: stack.init_with_output(jax.random.key(0), x, context)[0][0])())
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.var(-1), 1, atol=1e-4)


@pytest.fixture(scope='module')
def graded(make_model):
    """Gives (parameters, the program's text, loss, gradients) of a model with dropout; of each config once."""

    @functools.cache
    def run(**change):
        model, params = make_model(dropout__residual=0.3, **change)
        key_2 = jnp.array([3, 4], jnp.uint32)
        loss = jax.value_and_grad(lambda p: jnp.sum(jnp.sin(model.apply({'params': p}, SOURCE, TARGET, key_2)[0])))
        return params, str(jax.make_jaxpr(loss)(params)), *jit(loss)(params)

    return run


@pytest.mark.parametrize('change', [{'remat': 'block'}, {'remat': 'dots'}, {'scan_unroll': 0}])
def test_remat_and_unrolling_change_the_program_but_no_number_and_no_parameter(graded, change):
    params, program, loss, gradients = graded()
    other_params, other_program, other_loss, other_gradients = graded(**change)
    jax.tree.map(np.testing.assert_array_equal, params, other_params)
    assert program != other_program
    if 'remat' in change:  # the backward pass computes again what the forward pass had
        assert other_program.count('dot_general') > program.count('dot_general')
    np.testing.assert_allclose(other_loss, loss, rtol=1e-5, atol=1e-5)  # a sum of sines, which nearly cancel
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradients, other_gradients)


@pytest.mark.parametrize(
    'design',
    [
        {'position': 't5_relative', 'relative__tables': 'per_layer', 'num_kv_heads': 1},
        {'position': 'alibi', 'attention__pattern': 'global_local', 'attention__window': 1},
        {'position': 'rotary', 'attention__pattern': 'window2d', 'attention__window': 2, 'attention__shift': 1},
        {'attention__score': 'additive', 'position': 't5_relative', 'encoder_mixer': 'attention', 'remat': 'block'},
    ],
)
def test_blockwise_attention_changes_no_number(graded, design):
    design |= {'dropout__attention': 0.2}
    _, _, loss, gradients = graded(**design)
    _, _, other_loss, other_gradients = graded(**design, attention__kernel='blockwise', attention__block=3)
    np.testing.assert_allclose(other_loss, loss, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradients, other_gradients)


@pytest.mark.parametrize(('kernel', 'design'), [
    ('library', {'d_v': 6, 'd_k': 6, 'num_kv_heads': 1}),
    ('pallas', {'remat': 'block', 'relative__tables': 'per_layer', 'dropout__attention': 0.2}),
])  # fmt: skip
def test_kernels_for_accelerators_change_no_number(graded, monkeypatch, kernel, design):
    monkeypatch.setattr(flash, 'PLATFORM', 'interpret')
    design |= {'position': 't5_relative', 'attention__block': 4}
    _, program, loss, gradients = graded(**design)
    _, other_program, other_loss, other_gradients = graded(**design, attention__kernel=kernel)
    assert program != other_program
    np.testing.assert_allclose(other_loss, loss, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradients, other_gradients)


@pytest.mark.parametrize('unroll', [2, 7])
def test_unrolling_need_not_divide_the_layers_nor_end_with_them(make_model, unroll):
    models = make_model(num_layers=3), make_model(num_layers=3, scan_unroll=unroll)
    np.testing.assert_allclose(*[logits_of(model)(params, SOURCE, TARGET) for model, params in models], atol=1e-5)


# Dropout


def test_no_two_places_of_the_model_share_a_mask(make_model, monkeypatch):
    """All keys that a forward pass draws from: sites × layers × (encoder, decoder), and the embeddings."""
    rates = {f'dropout__{site}': 0.1 for site in ('attention', 'residual', 'feed_forward', 'embedding')}
    model, params = make_model(**rates)
    drawn = []
    original = ops.dropout

    def recording(x, rate, key_2, *block):
        if not isinstance(key_2, jax.core.Tracer):  # a scan is traced once before it is run
            drawn.append(tuple(key_2.tolist()))
        return original(x, rate, key_2, *block)

    monkeypatch.setattr(ops, 'dropout', recording)
    with jax.disable_jit():
        model.apply({'params': params}, SOURCE, TARGET, jnp.array([3, 4], jnp.uint32))
    assert len(drawn) == (1 + 2 * 4) + (1 + 2 * 6)
    assert len(set(drawn)) == len(drawn)


def test_the_same_key_gives_the_same_pass_and_no_key_a_pass_without_dropout(make_model):
    model, params = make_model(dropout__residual=0.4)
    logits = jit(lambda key_2: model.apply({'params': params}, SOURCE, TARGET, key_2)[0])
    one, two = jnp.array([3, 4], jnp.uint32), jnp.array([3, 5], jnp.uint32)
    np.testing.assert_array_equal(logits(one), logits(one))
    assert np.any(logits(one) != logits(two))
    np.testing.assert_array_equal(logits(None), logits_of(make_model()[0])(params, SOURCE, TARGET))


# Embeddings


def test_tables_are_read_by_whom_they_are_for(make_model):
    model, params = make_model(embedding__tables='separate', embedding__softmax='untied')
    real = np.asarray(TARGET != PAD)
    loss = lambda p: jnp.sum(jnp.sin(model.apply({'params': p}, SOURCE, TARGET)[0][real]))  # noqa: E731
    gradients = jit(jax.grad(loss))(params)
    rows = lambda name: set(np.flatnonzero(np.any(np.asarray(gradients[name]) != 0, axis=-1)).tolist())  # noqa: E731
    assert rows('source_embedding') == set(np.unique(SOURCE).tolist()) - {PAD}
    assert rows('embedding') == {BOS, 9, 8, 7, 11}  # inputs: the labels but the last, behind BOS
    assert rows('softmax') == set(range(V))


@pytest.mark.parametrize(('tables', 'softmax'), list(itertools.product(('shared', 'separate'), ('tied', 'untied'))))
def test_tables_that_are_not_asked_for_do_not_exist(make_config, tables, softmax):
    params = transformer.abstract_params(make_config(embedding__tables=tables, embedding__softmax=softmax), V)
    assert ('source_embedding' in params) == (tables == 'separate')
    assert ('softmax' in params) == (softmax == 'untied')


def test_embeddings_are_scaled_by_the_root_of_the_width(make_model):
    for scale, factor in (('sqrt_d_model', 4.0), ('none', 1.0)):
        model, params = make_model(embedding__scale=scale)
        table = jnp.arange(V * 16.0).reshape(V, 16)
        found = model.apply({'params': params}, TARGET, table, method='_embed')
        np.testing.assert_allclose(found, factor * table[TARGET])


# Building


def test_initial_values_are_a_function_of_the_seed_and_have_their_spread(make_config):
    model = transformer.build(make_config(d_model=64, d_ff=96, num_layers=3), 50)
    init = jit(lambda seed: transformer.init(model, seed))
    params, again, other = init(0), init(0), init(1)
    equal = lambda a, b: jax.tree.map(lambda x, y: bool(jnp.all(x == y)), a, b)  # noqa: E731
    assert jax.tree.all(equal(params, again))
    assert not equal(params, other)['encoder']['layers']['self_attention']['query']
    np.testing.assert_allclose(jnp.std(params['embedding']), 64**-0.5, rtol=0.05)
    layer = params['encoder']['layers']
    bounds = {  # Glorot and Bengio 2010, eq. 16: √(6 / (fan in + fan out)), for each layer by itself
        ('self_attention', 'query'): (6 / (64 + 3 * 5)) ** 0.5,
        ('self_attention', 'value'): (6 / (64 + 3 * 7)) ** 0.5,
        ('self_attention', 'out'): (6 / (3 * 7 + 64)) ** 0.5,
        ('feed_forward', 'inner'): (6 / (64 + 96)) ** 0.5,
    }
    for (module, name), bound in bounds.items():
        leaf = np.abs(np.asarray(layer[module][name]))
        assert 0.98 * bound < leaf.max() <= bound * 1.0001, name
        assert np.any(leaf[0] != leaf[1])  # layers start apart
    assert not np.any(layer['feed_forward']['inner_bias']) and np.all(layer['self_attention_norm']['scale'] == 1)


def test_parameters_come_in_the_dtype_asked_for_and_logits_in_float32(make_model):
    model, params = make_model(precision__parameters='bfloat16', precision__compute='bfloat16')
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('bfloat16')}
    logits = logits_of(model)(params, SOURCE, TARGET)
    assert logits.dtype == jnp.float32
    exact = logits_of(make_model()[0])(jax.tree.map(lambda x: x.astype(jnp.float32), params), SOURCE, TARGET)
    real = np.asarray(TARGET != PAD)
    error = np.abs(np.asarray(logits - exact))[real].max()
    assert 0 < error < 0.1 * float(jnp.std(exact))


def test_counting_parameters_allocates_nothing(make_config):
    params = transformer.abstract_params(make_config(d_model=8192), 10**9)  # the table alone would take 33 TB
    assert params['embedding'].shape == (10**9, 8192)


def test_vocabulary_follows_the_data_or_has_room_for_it(make_config):
    assert transformer.build(make_config(vocab_size=0), V).vocab_size == V
    assert transformer.build(make_config(vocab_size=20), V).vocab_size == 20
    with pytest.raises(UserError, match='config.model.vocab_size=12: the data has 13 symbols'):
        transformer.build(make_config(vocab_size=12), V)


def test_an_input_longer_than_the_learned_table_is_refused(make_model):
    model, params = make_model(position='learned')
    long = jnp.full((1, 65), 5, jnp.int32)
    with pytest.raises(UserError, match='config.model.max_length=64.*65'):
        model.apply({'params': params}, long, TARGET[:1])


def test_labels_are_shifted_behind_the_start_symbol(make_config):
    inputs, context = transformer.decoder_inputs(TARGET, make_config())
    np.testing.assert_array_equal(inputs, [[BOS, 9, 8, 7], [BOS, 11, EOS, PAD]])
    np.testing.assert_array_equal(context.valid_BT, [[1, 1, 1, 1], [1, 1, 1, 0]])
