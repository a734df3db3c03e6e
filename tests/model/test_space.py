"""Properties that hold in the whole space of designs, on models drawn at random from all of it.

Compiling is what takes the time, so that the properties of a design share a few programs: the gradient of a batch with
much padding, in float32 and in bfloat16; the logits of the same examples in a batch with little; and steps of decoding.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import space
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from quick import draw_params, jit

from jaxformer import config, losses, optim, schema, sharding
from jaxformer.errors import UserError
from jaxformer.model import transformer

SHARDS, EXAMPLES = 6, 50
V, Y, EOS = 13, 3, 2
LENGTHS = {6: (6, 3, 4), 5: (5, 2, 4)}  # of the three examples in a batch that wide
KEY_2 = np.array([3, 4], np.uint32)


def drawn(shard, check):
    """Runs check(number) on the designs of a shard: the same ones whenever it is run."""
    quiet = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # there is no simpler design than its number
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    seed(shard)(quiet(given(st.integers(shard << 20, (shard + 1 << 20) - 1))(check)))()


class Case:
    """One design: its model in float32, parameters, and a batch of three examples of different lengths."""

    def __init__(self, number):
        self.number = number
        self.cfg = space.resolved(space.valid_changes(number))
        self.drawn = self.cfg.model
        self.model_cfg = dataclasses.replace(
            self.drawn, precision=schema.PrecisionConfig(parameters='float32', compute='float32', softmax='float32')
        )
        self.model = transformer.build(self.model_cfg, V, Y)
        # What nothing normalises grows, and rounding with it; without a residual, too, it fades.
        grows = self.drawn.norm == 'none' and self.drawn.residual != 'none'
        spread = 0.1 if grows else 0.3
        self.params = draw_params(transformer.abstract_params(self.model_cfg, V, Y), spread)
        self.family, self.pad = self.drawn.family, self.drawn.ids.pad
        self.kept = np.array([v for v in range(V) if v != self.pad])
        rng = np.random.default_rng(0)
        widths = (5, 6) if self.family == 'seq2seq' else (6,)
        self.inputs = tuple(self._padded([self._document(rng, n) for n in LENGTHS[width]], width) for width in widths)
        self.wide = tuple(np.pad(rows, ((0, 1), (0, 8)), constant_values=self.pad) for rows in self.inputs)
        # Where documents may share a row the program is told of them, one in each row here.
        self.documents = {'segment_BT': 1 * (self.wide[0] != self.pad)} if self.cfg.data.packing == 'documents' else {}
        self.graded = jit(jax.value_and_grad(functools.partial(self.loss, self.model), has_aux=True))

    def _document(self, rng, length):
        return [*rng.integers(5, V, length - 1), EOS]

    def _padded(self, rows, width):
        return np.array([[*row, *[self.pad] * (width - len(row))] for row in rows], np.int32)

    def real(self, rows):
        """Which logits stand for something: of every token, or of every text."""
        real = rows != self.pad
        if self.family == 'classifier' and self.drawn.head.pooling != 'tokens':
            return real.any(1, keepdims=True)
        return real

    def loss(self, model, params, *inputs, **more):
        """(mean of the cross-entropy of what is real, logits). The symbol of padding is left out of the softmax."""
        logits, _ = model.apply({'params': params}, *inputs, **more)
        real, labels = self.real(inputs[-1]), inputs[-1]
        if self.family == 'classifier':
            labels = labels[:, : logits.shape[1]] % Y
        else:
            labels, logits = labels - (labels > self.pad), logits[..., self.kept]
        total = losses.cross_entropy(logits, jnp.maximum(labels, 0), jnp.asarray(real, jnp.float32), 0.1)
        return total / jnp.sum(real), logits

    def seen(self, *inputs, **more):
        """(loss, logits of what is real in their order, gradients)."""
        (loss, logits), gradients = self.graded(self.params, *inputs, **more)
        return loss, self.only_real(logits, inputs[-1]), gradients

    def only_real(self, logits, rows):
        return np.asarray(logits)[np.asarray(self.real(rows))]


def close(found, expected, tolerance=1e-5):
    """Equal but for rounding: relative to the largest of an array, if that is above 1."""

    def compare(path, a, b):
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(compare, found, expected)


def finite(tree):
    return all(np.all(np.isfinite(np.asarray(leaf, np.float32))) for leaf in jax.tree.leaves(tree))


def check_padding(case, base):
    """Shorter rows, no row of padding, and another embedding of padding change nothing that is real."""
    names = {'embedding', 'source_embedding'} & set(case.params)
    moved = case.params | {name: case.params[name].at[case.pad].add(3.0) for name in names}
    if case.number % 4 == 0:
        (loss, logits), gradients = case.graded(moved, *case.inputs)
        close((loss, case.only_real(logits, case.inputs[-1]), gradients), base)
    else:
        loss, logits = jit(functools.partial(case.loss, case.model))(moved, *case.inputs)
        close((loss, case.only_real(logits, case.inputs[-1])), base[:2])


def check_half_precision(case):
    """In bfloat16 and with dropout all is finite, and comes in the dtype that it should."""
    precision = dataclasses.replace(case.drawn.precision, compute='bfloat16')
    model = transformer.build(dataclasses.replace(case.drawn, precision=precision), V, Y)
    params = jax.tree.map(lambda leaf: leaf.astype(precision.parameters), case.params)
    graded = jit(jax.value_and_grad(functools.partial(case.loss, model), has_aux=True))
    (loss, logits), gradients = graded(params, *case.wide, key_2=KEY_2)
    assert finite((loss, logits, gradients)) and logits.dtype == np.float32
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(gradients)} == {precision.parameters}


def check_direction(case):
    """Another target token changes no logit up to its own, bit for bit, and the next one."""
    target, at = case.wide[-1], 2
    other = target.copy()
    other[0, at] = 5 if target[0, at] != 5 else 6
    before, after = (
        case.graded(case.params, *case.wide[:-1], rows, **case.documents)[0][1] for rows in (target, other)
    )
    np.testing.assert_array_equal(after[0, : at + 1], before[0, : at + 1])
    assert np.any(after[0, at + 1] != before[0, at + 1])


def check_permutation(case, base):
    """Without positions the encoder of attention knows no order."""
    model = case.drawn
    if (model.position, model.encoder_mixer, model.attention.pattern) != ('none', 'attention', 'full'):
        return
    rows = case.wide[0].copy()
    order = np.array([0, 3, 1, 4, 2, *range(5, rows.shape[1])])  # what is pooled may be the first
    rows[0] = rows[0, order]
    logits = np.array(case.graded(case.params, rows, *case.wide[1:], **case.documents)[0][1])
    if case.family == 'mlm' or (case.family == 'classifier' and model.head.pooling == 'tokens'):
        logits[0, order] = logits[0].copy()
    close(case.only_real(logits, case.wide[-1]), base[1])


def check_documents(case, base):
    """B07: packed into one row, the three examples are what they are apart."""
    real = case.inputs[0] != case.pad
    around = ((0, 3), (0, 1))  # the shape of the wide batch, whose program this is
    packed = np.pad(case.inputs[0][real][None], around, constant_values=case.pad)
    segment = np.pad(np.repeat((1, 2, 3), real.sum(1))[None], around)
    close(case.seen(packed, segment_BT=segment), base)


def check_cache(case, base):
    """Decoded in chunks of any size the logits are what they are at once; a token too many is refused (B23 to B25)."""
    target = jnp.asarray(case.inputs[-1])
    tokens, _ = transformer.decoder_inputs(target, case.model_cfg)
    B, T = target.shape
    call = lambda method: lambda *args: case.model.apply({'params': case.params}, *args, method=method)  # noqa: E731
    if case.family == 'seq2seq':
        empty = jit(lambda source: call('start_cache')(source, T))(case.inputs[0])
    else:
        empty = call('start_cache')(B, T)
    extend = jit(call('extend'))
    for sizes in ((3, 1, 1, 1), (1, 1, 1, 3), (T,)):
        cache, parts = empty, []
        for at, size in zip(np.cumsum((0, *sizes)), sizes, strict=False):
            logits, cache = extend(tokens[:, at : at + size], cache)
            parts.append(logits[..., case.kept])
        close(case.only_real(np.concatenate(parts, axis=1), target), base[1])
    with pytest.raises(UserError, match='a cache of 6 positions: 6 are written and 1 more'):
        call('extend')(tokens[:, :1], cache)
    check_cache_shapes(case, cache, B, T)


def check_cache_shapes(case, cache, B, T):
    """B25: keys have the width of keys, values that of values; what looks back a little keeps a little."""
    m = case.drawn
    N, G, R = m.decoder_layers, m.num_kv_heads, m.recurrent.width
    key, value = (N, B, G, T, m.d_k), (N, B, G, T, m.d_v)
    reach = (m.conv.width - 1) * max(m.conv.dilations)
    expected = {
        'attention': [key, value],
        'static': [value],
        'conv': [(N, B, reach, m.d_model)],
        'rnn': [(N, B, R)],
        'gru': [(N, B, R)],
        'lstm': [(N, B, R), (N, B, R)],
    }[m.decoder_mixer]
    assert [leaf.shape for leaf in jax.tree.leaves(cache['layers']['self'])] == expected
    if case.family == 'seq2seq':
        cross, S = cache['layers']['cross'], case.inputs[0].shape[1]
        assert (cross['key'].shape, cross['value'].shape) == ((N, B, G, S, m.d_k), (N, B, G, S, m.d_v))


def check_parameters(case):
    """Each has its letters; weight decay is on all but norms and biases (B22)."""
    m = case.drawn
    sizes = {'D': m.d_model, 'H': m.num_heads, 'G': m.num_kv_heads, 'K': m.d_k, 'E': m.d_v, 'F': m.d_ff, 'V': V, 'Y': Y}
    sizes |= {'M': space.MAX_LENGTH, 'P': space.RANK, 'W': m.conv.width}
    decayed = jax.tree.leaves(optim.decay_mask(case.params))
    for (path, leaf), decays in zip(jax.tree_util.tree_leaves_with_path(case.params), decayed, strict=True):
        name, last = sharding.path_name(path), path[-1].key
        layers = m.encoder_layers if name.startswith('encoder') else m.decoder_layers
        for letter, size in zip(sharding.letters(name), leaf.shape, strict=True):
            assert letter in 'R_' or size == (sizes | {'N': layers})[letter], name
        assert decays == (last != 'scale' and not last.endswith('bias')), name


def check(number):
    case = Case(number)
    base = case.seen(*case.wide, **case.documents)
    assert finite(base)
    check_parameters(case)
    check_padding(case, base)
    check_half_precision(case)
    if case.family in ('lm', 'seq2seq'):
        check_direction(case)
        check_cache(case, base)
    if case.family != 'lm':
        check_permutation(case, base)
    if case.documents:
        check_documents(case, base)


@pytest.mark.parametrize('shard', range(SHARDS))
def test_what_holds_for_every_design(shard):
    drawn(shard, check)


DECODERS = {
    (family, position, pattern, mixer)
    for family in ('seq2seq', 'lm')
    for mixer in config.CHOICES['model.decoder_mixer']
    for position in config.CHOICES['model.position']
    for pattern in config.CHOICES['model.attention.pattern']
    if mixer == 'attention'
    or (
        position in ('sinusoidal', 'learned', 'none')
        and mixer != 'linformer'
        and (mixer == 'static' or pattern == 'full')
    )
}
"""Every family, position, pattern and mixer by which symbols can be decoded one after the other."""


def decodes(number):
    """Which of DECODERS a design is; None for a family without a decoder."""
    design = space.valid_changes(number)
    mixer = design.get('model.decoder_mixer')
    return mixer and tuple(design[f'model.{name}'] for name in ('family', 'position', 'attention.pattern')) + (mixer,)


@pytest.mark.parametrize('part', range(4))
def test_what_no_design_drawn_above_decodes_by_is_decoded_as_it_is_read(part):
    seen = {None}
    for shard in range(SHARDS):
        drawn(shard, lambda number: seen.add(decodes(number)))
    others, left = {}, DECODERS - seen
    number = SHARDS << 20
    while left:
        if (kind := decodes(number)) in left:
            others[number] = kind
            left = left - {kind}
        number += 1
    assert seen | set(others.values()) == DECODERS | {None} and len(others) > 4
    for number in sorted(others)[part::4]:
        case = Case(number)
        check_cache(case, case.seen(*case.wide, **case.documents))


def test_the_designs_reach_every_choice_of_the_model():
    found = {}

    def note(number):
        for path, value in space.valid_changes(number).items():
            found.setdefault(path, []).append(value)

    for shard in range(SHARDS):
        drawn(shard, note)
    assert len(found['model.family']) == SHARDS * EXAMPLES
    for path, choices in config.CHOICES.items():
        if path.startswith('model.') and path not in ('model.mixer', 'model.precision.compute'):  # both are set above
            assert set(found[path]) == set(choices) - ({'linformer'} if path == 'model.decoder_mixer' else set()), path
    assert found['data.packing'].count('documents') > 20
