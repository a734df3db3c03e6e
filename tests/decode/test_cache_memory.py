"""What decoding keeps is as large as it is said to be, before any array is there."""

import dataclasses

import jax
import pytest
from test_cache import CASES, SOURCE, made
from test_predict import ROOT

from jaxformer import config
from jaxformer.decode import cache as caches
from jaxformer.model import transformer

over_cases = pytest.mark.parametrize('changes', CASES.values(), ids=CASES)


def real(model, params, rows, length):
    """Bytes of the arrays of a cache."""
    given = SOURCE[:rows] if model.cfg.family == 'seq2seq' else rows
    cache = model.apply({'params': params}, given, length, method='start_cache')
    return sum(leaf.nbytes for leaf in jax.tree.leaves(cache))


@over_cases
def test_bytes_are_those_of_the_arrays(changes):
    model, params = made(changes)
    for rows, length in ((3, 6), (2, 11)):
        assert caches.num_bytes(model.cfg, rows, length, SOURCE.shape[1]) == real(model, params, rows, length)


def growth(changes, **fields):
    """Bytes that 1,000 more positions take, of 7 rows."""
    cfg = dataclasses.replace(made(changes)[0].cfg, **fields)
    return caches.num_bytes(cfg, 7, 1010, 5) - caches.num_bytes(cfg, 7, 10, 5) - 1000  # a byte each for `room`


def test_keys_and_values_grow_with_their_heads_and_a_state_with_nothing():
    """2 layers, 7 rows, K = 6 and E = 5, float32; a window looks at less, and keeps all the same."""
    for name, heads in (('attention', 4), ('grouped', 2), ('window', 1)):
        assert growth(CASES[name]) == 2 * 7 * heads * 1000 * (6 + 5) * 4, name
    for name in ('rnn', 'lstm', 'gru', 'conv', 'dilated'):
        assert growth(CASES[name]) == 0, name


def test_a_batch_of_beams_has_a_row_for_each():
    edited = config.load(ROOT / 'configs' / 'tiny.py')
    config.override(edited, {'eval.batch_size': 5, 'eval.max_decode_length': 7, 'data.buckets': ((4, 4), (9, 6))})
    greedy = config.resolve(edited)
    config.override(edited, {'eval.search': 'beam', 'eval.beam_size': 3})
    beam = config.resolve(edited)
    assert caches.of_search(greedy) == caches.num_bytes(greedy.model, 5, 7, 9)
    assert caches.of_search(beam) == caches.num_bytes(beam.model, 15, 7, 9)
    config.override(edited, {'eval.unroll': 'on'})
    layers = transformer.abstract_params(beam.model, 1)['decoder']['layers']
    more = caches.of_search(config.resolve(edited)) - caches.of_search(beam)
    assert more == 4 * sum(leaf.size for leaf in jax.tree.leaves(layers))  # each layer's by itself, too
