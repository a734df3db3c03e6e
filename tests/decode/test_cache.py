"""Beams keep their rows in every cache that there is: what is found is what a search without any cache finds."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick import draw_params, jit

from jaxformer import choices, config
from jaxformer.data.ids import Ids
from jaxformer.decode.beam import beam
from jaxformer.decode.cache import reorder, repeat
from jaxformer.decode.steps import begin
from jaxformer.model import transformer

V, T, K, EOS = 9, 6, 3, 2
IDS = Ids()
LM = {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((9,),)}
DECODERS = {mixer: {'model.mixer': mixer} for mixer in choices.MIXERS if mixer != 'linformer'} | {
    'grouped': {'model.num_kv_heads': 2, 'model.position': 'rotary'},
    'window': {'model.num_kv_heads': 1, 'model.attention.pattern': 'local', 'model.attention.window': 2},
    'relative': {'model.position': 't5_relative'},
    'dilated': {'model.mixer': 'conv', 'model.conv.dilations': (1, 2)},
}
OF_LM = ('attention', 'grouped', 'lstm', 'conv')  # of one: nothing but the memory is otherwise


def made(changes):
    """(model, parameters) in which every leaf is drawn."""
    edited = config.load(Path(__file__).parents[2] / 'configs' / 'base.py')
    small = {'d_model': 16, 'num_heads': 4, 'd_k': 6, 'd_v': 5, 'd_ff': 11, 'num_layers': 2, 'max_length': 64}
    small |= {'vocab_size': 0, 'residual': 'pre', 'embedding.softmax': 'untied'}
    config.override(edited, {f'model.{name}': value for name, value in small.items()})
    config.override(edited, changes)
    cfg = config.resolve(edited).model
    params = draw_params(transformer.abstract_params(cfg, V), 0.8)
    params['decoder']['final_norm']['bias'] *= 0  # else it says one symbol for ever
    return transformer.build(cfg, V), params


SOURCE = np.array([[5, 6, EOS, 0, 0], [4, 7, 8, 5, EOS], [8, EOS, 0, 0, 0]])
CASES = DECODERS | {f'lm {kind}': LM | DECODERS[kind] for kind in OF_LM}
over_cases = pytest.mark.parametrize('changes', CASES.values(), ids=CASES)


def start(model, params, source_BS, length, unroll='off'):
    """(extend, cache, the last symbol read), of an lm with all but it of a prompt in the cache."""
    if model.cfg.family == 'seq2seq':
        return *begin(model, params, unroll, source_BS, length), jnp.full((len(source_BS),), 1, jnp.int32)
    read = jnp.concatenate([jnp.full((len(source_BS), 1), 1, jnp.int32), jnp.abs(source_BS[:, :2])], axis=1)
    extend, cache = begin(model, params, unroll, len(source_BS), 2 + length)
    return extend, extend(read[:, :-1], cache)[1], read[:, -1]


@over_cases
def test_beams_find_what_a_search_without_a_cache_finds(changes):
    model, params = made(changes)

    @jit
    def search(params, source_BS):
        extend, cache, first_B = start(model, params, source_BS, T)
        options = {'beam_size': K, 'length_penalty': 1.0, 'length_divisor': 'length', 'num_best': K}
        return beam(extend, cache, first_B, T, V, IDS, **options)

    @jit
    def forward(params, source_KS, target_KT):
        if model.cfg.family == 'seq2seq':
            return jax.nn.log_softmax(model.apply({'params': params}, source_KS, target_KT)[0])
        whole = jnp.concatenate([source_KS[:, :2], target_KT], axis=1)
        return jax.nn.log_softmax(model.apply({'params': params}, whole)[0][:, 2:])

    found = search(params, SOURCE)
    parents = set()
    for row, source in enumerate(SOURCE):
        going, ended = [(0.0, ())], []
        for length in range(1, T + 1):
            target = np.full((K, T), 3)  # what comes later is of no matter
            for place, (_, symbols) in enumerate(going):
                target[place, : length - 1] = symbols
            gains = np.asarray(forward(params, np.tile(source, (K, 1)), target))[:, length - 1]
            more = [(a + float(gains[i, v]), (*s, v), i) for i, (a, s) in enumerate(going) for v in range(EOS, V)]
            more = sorted(more, reverse=True)[: 2 * K]
            ended += [(a / length, s) for a, s, _ in more[:K] if s[-1] == EOS or length == T]
            going = [(a, s) for a, s, _ in more if s[-1] != EOS][:K]
            parents |= {i for _, _, i in more}
        for rank, (score, symbols) in enumerate(sorted(ended, reverse=True)[:K]):
            assert found.tokens[row, rank].tolist() == [*symbols, *[0] * (T - len(symbols))]
            np.testing.assert_allclose(found.score[row, rank], score, rtol=1e-5)
    assert parents == set(range(K))  # beams are left and doubled
    assert len(np.unique(found.tokens.reshape(-1, T), axis=0)) > 3


@over_cases
def test_every_leaf_of_a_cache_has_its_rows_where_they_are_looked_for(changes):
    model, params = made(changes)
    shapes = lambda B, K: jax.eval_shape(lambda p, s: repeat(start(model, p, s, T)[1], K), params, SOURCE[:B])  # noqa: E731
    assert shapes(2, 1) != shapes(3, 1) and shapes(1, 3) == shapes(3, 1)


@over_cases
def test_layers_apart_give_the_same_and_are_read_where_they_lie(changes):
    """A loop over symbols takes no layer's part of an array of all layers but of what it writes itself."""
    model, params = made(changes)

    def search(params, source_BS, unroll):
        extend, cache, first_B = start(model, params, source_BS, T, unroll)
        options = {'beam_size': K, 'length_penalty': 1.0, 'length_divisor': 'length', 'num_best': K}
        return beam(extend, cache, first_B, T, V, IDS, **options)

    apart, together = (jit(search, static_argnums=2)(params, SOURCE, unroll) for unroll in ('on', 'off'))
    np.testing.assert_array_equal(apart.tokens, together.tokens)
    np.testing.assert_allclose(apart.score, together.score, rtol=1e-5)
    wide = {leaf.shape for leaf in jax.tree.leaves(params['decoder']['layers'])}
    read = {
        unroll: carried(jax.make_jaxpr(search, static_argnums=2)(params, SOURCE, unroll)) for unroll in ('on', 'off')
    }
    assert wide <= read['off'] and not wide & read['on']


def carried(jaxpr):
    """Shapes of what the loop over symbols reads and writes."""
    loops = [equation for equation in jaxpr.eqns if equation.primitive.name == 'while']
    return {variable.aval.shape for variable in loops[-1].invars}


def test_rows_go_where_their_parents_were_and_what_is_kept_of_the_source_stays():
    model, params = made(DECODERS['lstm'])
    cache = repeat(jax.jit(lambda p, s: start(model, p, s, T)[1])(params, SOURCE), K)
    numbered = jax.tree.map(lambda leaf: leaf + jnp.arange(9).reshape(9, *[1] * (leaf.ndim - 2)), cache['layers'])
    parent = jnp.array([[0, 0, 1], [2, 1, 0], [2, 2, 2]])
    moved = reorder(cache | {'layers': numbered}, parent)
    wanted = np.array([0, 0, 1, 5, 4, 3, 8, 8, 8])
    for before, after in zip(*(jax.tree.leaves(layers['self']) for layers in (numbered, moved['layers'])), strict=True):
        np.testing.assert_array_equal(after, before[:, wanted])
    jax.tree.map(np.testing.assert_array_equal, moved['layers']['cross'], numbered['cross'])
    np.testing.assert_array_equal(moved['source_mask'], np.repeat(SOURCE != 0, K, axis=0))
