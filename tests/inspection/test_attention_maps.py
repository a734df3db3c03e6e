"""A map is what the parameters say it is, its axes are the right way round, and looking changes nothing."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import config, files
from jaxformer.data import corpus
from jaxformer.data.vocab import BOS, EOS, PAD, Vocabulary
from jaxformer.decode.open import OpenRun, open_run
from jaxformer.errors import UserError
from jaxformer.inspection import attention, example
from jaxformer.inspection.choice import Choice
from jaxformer.model import transformer
from jaxformer.model.keep import Keep

VOCAB = Vocabulary.of([str(i) for i in range(11)])
TEXT, TARGET = '7 3 9 9 0 4', '4 10 2'  # 7 source symbols and 4 target symbols with the end of sequence
DROPOUT = {
    f'model__dropout__{site}': 0.5 for site in ('attention', 'residual', 'feed_forward', 'embedding')
}  # an inspection has to be without it


def untrained(cfg, seed=0):
    """An open run whose parameters (norms and biases, too) are all random and matter."""
    model = transformer.build(cfg.model, len(VOCAB))
    leaves, tree = jax.tree.flatten(transformer.init(model, seed))
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [leaf + 0.15 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    return OpenRun(pathlib.Path('nowhere'), cfg, VOCAB, model, jax.tree.unflatten(tree, noisy), 0)


@pytest.fixture(scope='module')
def run(make_cfg):
    return untrained(make_cfg(model__num_heads=4, model__num_kv_heads=2, model__d_k=5, model__d_v=3, **DROPOUT))


class ByHand:
    """The forward pass of one example in NumPy and float64, written from the paper and not from the model's code."""

    def __init__(self, run):
        self.model = run.cfg.model
        self.params = jax.tree.map(lambda x: np.asarray(x, np.float64), run.params)

    def maps(self, source, inputs):
        encoder, self.memory = self.stack('encoder', source, None)
        decoder, _ = self.stack('decoder', inputs, self.memory)
        return {'encoder': encoder['self'], 'decoder': decoder['self'], 'cross': decoder['cross']}

    def stack(self, side, tokens, memory):
        D = self.model.d_model
        x = self.params['embedding'][tokens] * np.sqrt(D)
        for t in range(len(x)):
            for i in range(0, D, 2):
                x[t, i] += np.sin(t / 10000 ** (i / D))
                x[t, i + 1] += np.cos(t / 10000 ** (i / D))
        maps = {'self': [], 'cross': []}
        for n in range(self.model.num_layers):
            layer = jax.tree.map(lambda leaf, n=n: leaf[n], self.params[side]['layers'])

            def sublayer(x, name, function, layer=layer):
                norm = layer[f'{name}_norm']
                if self.model.residual == 'post':
                    return self.norm(x + function(x), norm)
                return x + function(self.norm(x, norm))

            def attend(h, keys, name, causal, kind, layer=layer, n=n):
                y, weights = self.attention(layer[name], h, keys, causal, n)
                maps[kind].append(weights)
                return y

            x = sublayer(x, 'self_attention', lambda h: attend(h, h, 'self_attention', side == 'decoder', 'self'))
            if memory is not None:
                x = sublayer(x, 'cross_attention', lambda h: attend(h, memory, 'cross_attention', False, 'cross'))
            p = layer['feed_forward']
            x = sublayer(
                x,
                'feed_forward',
                lambda h, p=p: np.maximum(h @ p['inner'] + p['inner_bias'], 0) @ p['outer'] + p['outer_bias'],
            )
        if self.model.residual == 'pre':
            x = self.norm(x, self.params[side]['final_norm'])
        return {kind: np.array(weights) for kind, weights in maps.items()}, x

    def attention(self, p, queries, keys, causal, layer):
        H, G = self.model.num_heads, self.model.num_kv_heads
        output, weights = 0, []
        for h in range(H):
            g = h // (H // G)
            q, k = queries @ p['query'][:, h], keys @ p['key'][:, g]
            scores = {
                'scaled_dot': lambda q=q, k=k: q @ k.T / np.sqrt(self.model.d_k),
                'dot': lambda q=q, k=k: q @ k.T,
                'additive': lambda q=q, k=k, h=h: np.tanh(q[:, None] + k[None]) @ p['score'][h],
            }[self.model.attention.score]()
            if causal:
                scores[np.triu_indices(len(scores), 1)] = -np.inf
            if queries is keys:  # a stack that looks at itself
                scores[~self.seen(len(keys), layer)] = -np.inf
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights.append(e / e.sum(axis=1, keepdims=True))
            output = output + weights[h] @ (keys @ p['value'][:, g]) @ p['out'][h]
        return output, np.array(weights)

    def seen(self, T, layer):
        """[T, T]: which keys the pattern shows to each query."""
        a, seen = self.model.attention, np.ones((T, T), bool)
        for t, s in np.ndindex(T, T):
            near = abs(t - s) <= a.window
            if a.pattern == 'local':
                seen[t, s] = near
            elif a.pattern == 'global_local':
                seen[t, s] = near or t in a.global_positions or s in a.global_positions
            elif a.pattern == 'window2d':
                moved = a.shift if layer % 2 else 0
                squares = [
                    [(x - moved + a.window) // a.window for x in divmod(place, a.grid_width)] for place in (t, s)
                ]
                seen[t, s] = squares[0] == squares[1]
        return seen

    def norm(self, x, p):
        deviation = np.sqrt(x.var(axis=-1, keepdims=True) + self.model.norm_epsilon)
        return (x - x.mean(axis=-1, keepdims=True)) / deviation * p['scale'] + p['bias']


@pytest.mark.parametrize('residual', ['post', 'pre'])
def test_maps_equal_the_weights_by_hand(make_cfg, residual):
    cfg = make_cfg(
        model__num_heads=4, model__num_kv_heads=2, model__d_k=5, model__d_v=3, model__residual=residual, **DROPOUT
    )
    run = untrained(cfg)
    maps = attention.of_run(run, TEXT, TARGET)
    source, target = (VOCAB.encode(text.split()) for text in (TEXT, TARGET))
    expected = ByHand(run).maps([*source, EOS], [BOS, *target])
    shapes = {'encoder': (2, 4, 7, 7), 'decoder': (2, 4, 4, 4), 'cross': (2, 4, 4, 7)}
    for kind, shape in shapes.items():
        weights = getattr(maps, kind)
        assert weights.shape == expected[kind].shape == shape
        np.testing.assert_allclose(weights, expected[kind], atol=1e-5)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
        assert expected[kind].std() > 0.05  # weights that are all alike would prove little
    # The same arrays the wrong way round do not pass: the encoder's are as square as the right ones.
    assert np.abs(maps.encoder.swapaxes(-1, -2) - expected['encoder']).max() > 0.05
    assert np.all(np.triu(maps.decoder, 1) == 0) and not np.all(np.triu(maps.decoder.swapaxes(-1, -2), 1) == 0)


CASES = [  # and how many cells of an encoder's map are out of sight
    ({'score': 'scaled_dot', 'pattern': 'full'}, 0),
    ({'score': 'dot'}, 0),
    ({'score': 'additive'}, 0),
    ({'pattern': 'local', 'window': 2}, 20),
    ({'pattern': 'global_local', 'window': 1, 'global_positions': (3,), 'score': 'additive'}, 20),
    ({'pattern': 'window2d', 'window': 2, 'grid_width': 3, 'shift': 1, 'score': 'dot'}, 20),
]


def test_a_static_map_is_the_softmax_of_its_matrix_and_the_same_for_every_text(make_cfg):
    mixers = {'model__encoder_mixer': 'static', 'model__decoder_mixer': 'static'}
    run = untrained(make_cfg(model__attention__pattern='local', model__attention__window=2, **mixers))
    maps, other = (attention.of_run(run, text, TARGET) for text in (TEXT, '1 1 2 3 5 8'))
    for kind, T in (('encoder', 7), ('decoder', 4)):
        away = np.subtract.outer(range(T), range(T))
        seen = (np.abs(away) <= 2) & ((away >= 0) if kind == 'decoder' else True)
        mixing = np.asarray(run.params[kind]['layers']['self_static']['mixing'], np.float64)[..., :T, :T]
        expected = np.exp(mixing) * seen
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(getattr(maps, kind), expected, atol=1e-5)
        np.testing.assert_array_equal(getattr(maps, kind), getattr(other, kind))
        assert np.all(getattr(maps, kind)[..., ~seen] == 0)
        assert np.abs(getattr(maps, kind).swapaxes(-1, -2) - expected).max() > 0.05


def test_no_score_and_no_pattern_is_left_out():
    for field in ('score', 'pattern'):
        tried = {changes.get(field) for changes, _ in CASES} - {None}
        assert tried == set(config.CHOICES[f'model.attention.{field}'])


@pytest.mark.parametrize(
    ('changes', 'hidden'),
    CASES,
    ids=str,
)
def test_maps_of_each_score_and_pattern_equal_the_weights_by_hand(make_cfg, changes, hidden):
    changes = {f'model__attention__{name}': value for name, value in changes.items()}
    run = untrained(make_cfg(model__num_heads=2, model__num_kv_heads=1, model__d_k=5, model__d_v=3, **changes))
    maps = attention.of_run(run, TEXT, TARGET)
    source, target = (VOCAB.encode(text.split()) for text in (TEXT, TARGET))
    expected = ByHand(run).maps([*source, EOS], [BOS, *target])
    for kind in attention.KINDS:
        np.testing.assert_allclose(getattr(maps, kind), expected[kind], atol=1e-5)
        np.testing.assert_allclose(getattr(maps, kind).sum(axis=-1), 1, atol=1e-6)
    assert np.abs(maps.encoder.swapaxes(-1, -2) - expected['encoder']).max() > 0.05
    zeros = np.sum(maps.encoder[:, 0] == 0, axis=(1, 2))  # exactly: what is not seen has no weight
    assert np.all(zeros >= hidden) if hidden else not zeros.any()
    keep = tuple(Choice().keep(run.cfg.model).items())  # as `of_run` has it, which cuts the padding off
    arrays = example.arrays(run, [[*source, EOS]], [[*target, EOS]])
    _, padded = attention.forward(run.params, arrays, run.model, keep)
    for kind, (T, S) in {'encoder': (7, 7), 'decoder': (4, 4), 'cross': (4, 7)}.items():
        assert padded[kind].shape[-1] == 9 and not np.any(np.asarray(padded[kind])[..., :T, S:])
        np.testing.assert_array_equal(np.asarray(padded[kind])[:, 0, :, :T, :S], getattr(maps, kind))


def test_chosen_layers_heads_and_rows_are_those_of_all(run):
    whole = attention.of_run(run, TEXT, TARGET)
    picked = attention.of_run(run, TEXT, TARGET, Choice(('cross', 'decoder'), layers=(1,), heads=(3, 0), rows=(2, 1)))
    assert picked.encoder.size == 0 and picked.cross.shape == (1, 2, 2, 7) and picked.decoder.shape == (1, 2, 2, 4)
    np.testing.assert_allclose(picked.cross, whole.cross[[1]][:, [3, 0]][:, :, [2, 1]], atol=1e-6)
    assert picked.axes('cross') == (('10', '4'), whole.source)
    panels = attention.figure(picked, 'cross', 0).axes[:2]
    assert [panel.get_title() for panel in panels] == ['head 4', 'head 1']
    for choice, said in (
        (Choice(layers=(2,)), 'layer 3: the encoder attention has layers 1 to 2'),
        (Choice(('decoder',), heads=(4,)), 'head 5: the decoder attention has heads 1 to 4'),
        (Choice(('decoder',), rows=(4,)), 'row 5: the decoder attention of this text has rows 1 to 4'),
    ):
        with pytest.raises(UserError, match=said):
            attention.of_run(run, TEXT, TARGET, choice)


def test_axes_name_every_row_and_column(run):
    maps = attention.of_run(run, TEXT, TARGET)
    assert maps.source == ('7', '3', '9', '9', '0', '4', '</s>')
    assert maps.inputs == ('<s>', '4', '10', '2')
    for kind in attention.KINDS:
        rows, columns = maps.axes(kind)
        assert getattr(maps, kind).shape[-2:] == (len(rows), len(columns))
    assert maps.axes('cross') == (maps.inputs, maps.source)


def test_predicted_is_the_most_probable_symbol_of_each_row(run):
    maps = attention.of_run(run, TEXT, TARGET)
    source = np.array([[*VOCAB.encode(TEXT.split()), EOS]])
    target = np.array([[*VOCAB.encode(TARGET.split()), EOS]])
    logits, _ = run.model.apply({'params': run.params}, source, target)
    logits = np.array(logits)[0]
    logits[:, [PAD, BOS]] = -np.inf
    assert maps.predicted == tuple(VOCAB.symbols[i] for i in logits.argmax(-1))


def test_padding_gets_no_weight_and_changes_none(run):
    short, long = VOCAB.encode(TEXT.split()), VOCAB.encode(map(str, range(10)))
    target, longer = VOCAB.encode(TARGET.split()), VOCAB.encode(map(str, range(6)))
    source_BS = np.zeros((2, 11), np.int32)
    target_BT = np.zeros((2, 7), np.int32)
    source_BS[0, :7], source_BS[1] = [*short, EOS], [*long, EOS]
    target_BT[0, :4], target_BT[1] = [*target, EOS], [*longer, EOS]
    _, collected = attention.forward(run.params, (source_BS, target_BT), run.model, ('attention',))
    encoder, decoder, cross = (np.asarray(collected[kind][:, 0]) for kind in attention.KINDS)
    alone = attention.of_run(run, TEXT, TARGET)
    assert np.all(encoder[..., 7:] == 0) and np.all(cross[..., 7:] == 0) and np.all(decoder[..., :4, 4:] == 0)
    np.testing.assert_allclose(encoder[:, :, :7, :7], alone.encoder, atol=1e-6)
    np.testing.assert_allclose(decoder[:, :, :4, :4], alone.decoder, atol=1e-6)
    np.testing.assert_allclose(cross[:, :, :4, :7], alone.cross, atol=1e-6)


def test_generation_step_by_step_has_the_weights_of_one_forced_pass(run):
    maps = attention.of_run(run, TEXT)
    ids = {symbol: number for number, symbol in enumerate(VOCAB.symbols)}

    def step(model, token_B1, cache):
        """As `extend`, with maps."""
        context = model._extend_context(token_B1, cache, cache['room'].shape[0])
        context = context.replace(memory_BS=cache['source_mask'])
        x_B1D = model._embed(token_B1, model.embedding)
        _, layers, found = model.decoder(x_B1D, context, cache['layers'], keep={'self': Keep(), 'cross': Keep()})
        return {**cache, 'layers': layers, 'index': cache['index'] + 1}, found

    T = len(maps.inputs)
    assert T > 2
    source_BS = np.array([[ids[symbol] for symbol in maps.source]])
    extend = jax.jit(lambda token, cache: run.model.apply({'params': run.params}, token, cache, method=step))
    cache = run.model.apply({'params': run.params}, source_BS, T + 2, method='start_cache')
    for t, symbol in enumerate(maps.inputs):
        cache, found = extend(jnp.array([[ids[symbol]]]), cache)
        np.testing.assert_allclose(found['self'][:, 0, :, 0, : t + 1], maps.decoder[:, :, t, : t + 1], atol=1e-5)
        assert np.all(found['self'][:, 0, :, 0, t + 1 :] == 0)
        np.testing.assert_allclose(found['cross'][:, 0, :, 0], maps.cross[:, :, t], atol=1e-5)


def test_collecting_leaves_the_logits_bit_for_bit(run):
    source_BS = np.array([[5, 7, 9, 4, 4, EOS, PAD, PAD, PAD]], np.int32)
    target_BT = np.array([[6, 8, EOS, PAD, PAD, PAD, PAD, PAD, PAD]], np.int32)
    plain, nothing = attention.forward(run.params, (source_BS, target_BT), run.model)
    logits, collected = attention.forward(run.params, (source_BS, target_BT), run.model, ('attention',))
    assert nothing == {} and set(collected) == set(attention.KINDS)
    assert np.asarray(plain).tobytes() == np.asarray(logits).tobytes()


def test_of_a_trained_run_without_its_data_set(trained, monkeypatch):
    monkeypatch.setattr(corpus, 'load', lambda data: pytest.fail('the data set was opened'))
    maps = attention.maps(trained, '3 1 4', step=30)
    assert maps.step == 30 and maps.inputs[0] == '<s>' and maps.inputs[1:] == maps.predicted[:-1]
    assert maps.predicted[-1] == '</s>' or len(maps.predicted) == 12  # ended, or cut at eval.max_decode_length
    newest = attention.maps(trained, '3 1 4', target='4 1 3')
    assert newest.step == 60 and newest.inputs == ('<s>', '4', '1', '3')
    repeated = attention.of_run(open_run(trained), ' 3  1 4 ', '4 1 3')
    assert repeated.cross.tobytes() == newest.cross.tobytes()


def test_mistakes_name_the_value(run, make_cfg, caplog):
    with pytest.raises(UserError, match="text '  ': holds no symbol"):
        attention.of_run(run, '  ')
    with pytest.raises(UserError, match="target '3 x': 'x' is not in the vocabulary"):
        attention.of_run(run, TEXT, '3 x')
    attention.of_run(run, '3 x', '3')
    assert "'3 x': read as unknown, not in the vocabulary: x" in caplog.text
    learned = untrained(make_cfg(model__position='learned', model__max_length=12))
    with pytest.raises(UserError, match='config.model.max_length=12: an input of 13 positions'):
        attention.of_run(learned, ' '.join('123412341234'))


def test_draw_writes_a_figure_per_kind_and_layer(run, tmp_path):
    maps = attention.of_run(run, TEXT, TARGET)
    paths = attention.draw(maps, tmp_path / 'new' / 'directory')
    names = [f'7-3-9-9-0-4-step{maps.step}-{kind}-layer{n}.png' for kind in attention.KINDS for n in (1, 2)]
    assert [path.name for path in paths] == names
    assert all(path.read_bytes().startswith(b'\x89PNG') for path in paths)
    with pytest.raises(UserError, match="format 'bmp': choose one of png, svg, pdf"):
        attention.draw(maps, tmp_path, 'bmp')
    files.write_atomic(tmp_path / 'file', 'in the way')
    with pytest.raises(UserError, match='choose a directory'):
        attention.draw(maps, tmp_path / 'file')


def test_figure_shows_each_weight_at_its_row_and_column(run):
    maps = attention.of_run(run, TEXT, TARGET)
    panels = attention.figure(maps, 'cross', 1).axes[:4]
    for head, panel in enumerate(panels):
        (image,) = panel.images
        np.testing.assert_array_equal(image.get_array(), maps.cross[1, head])
        assert image.get_clim() == (0, 1)
        assert panel.yaxis_inverted()  # the first row is the top one
        assert panel.get_title() == f'head {head + 1}'
        assert [label.get_text() for label in panel.get_xticklabels()] == list(maps.source)
    rows = [label.get_text() for label in panels[0].get_yticklabels()]
    assert rows == [f'{read} → {written}' for read, written in zip(maps.inputs, maps.predicted, strict=True)]
