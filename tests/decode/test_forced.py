"""A forced prefix is read in one call, and what follows is what follows it read symbol by symbol."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cache import DECODERS, LM, SOURCE, V, made, start
from test_predict import ROOT, SOURCES, decoder

from jaxformer import config
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.greedy import greedy
from jaxformer.decode.search import SEARCHES, Search
from jaxformer.schema import EvalConfig

VOCAB = Vocabulary.of([str(number) for number in range(V - 4)])
PREFIX, T = ' '.join(VOCAB.decode([6, 8, 5])), 6
CASES = {name: DECODERS[name] for name in ('grouped', 'window', 'relative', 'lstm', 'conv')} | {'lm': LM}


def eval_cfg(**changes) -> EvalConfig:
    edited = config.load(ROOT / 'configs' / 'tiny.py')
    settings = {'eval.max_decode_length': T, 'eval.forced_prefix': PREFIX}
    config.override(edited, settings | {f'eval.{name}': value for name, value in changes.items()})
    return config.resolve(edited).eval


@pytest.mark.parametrize('changes', CASES.values(), ids=CASES)
def test_one_call_gives_what_symbol_by_symbol_gives(changes):
    model, params = made(changes)
    prefix, example_B, cfg = VOCAB.encode(VOCAB.split(PREFIX)), np.arange(len(SOURCE)), eval_cfg()

    def at_once():
        sizes.clear()
        extend, cache, last_B = start(model, params, SOURCE, T)

        def seen(tokens, cache):
            sizes.append(tokens.shape[1])
            return extend(tokens, cache)

        return Search(cfg, VOCAB)(seen, cache, last_B[:, None], example_B)

    def one_by_one():
        extend, cache, last_B = start(model, params, SOURCE, T)
        for symbol in prefix:
            _, cache = extend(last_B[:, None], cache)
            last_B = jnp.full_like(last_B, symbol)
        return greedy(extend, cache, last_B, T - len(prefix), V, VOCAB.ids)

    sizes: list[int] = []
    found, expected = jax.device_get(jax.jit(at_once)()), jax.device_get(jax.jit(one_by_one)())
    assert sizes[0] == len(prefix) and set(sizes[1:]) == {1}  # one call for the prefix, and the body of the loop
    np.testing.assert_array_equal(found.tokens[:, 0, : len(prefix)], np.tile(prefix, (len(SOURCE), 1)))
    np.testing.assert_array_equal(found.tokens[:, 0, len(prefix) :], expected.tokens)
    np.testing.assert_allclose(found.logprob[:, 0], expected.logprob, rtol=1e-5)
    np.testing.assert_array_equal(found.truncated[:, 0], expected.truncated)


@pytest.mark.parametrize('search', SEARCHES)
def test_probability_and_length_are_those_of_what_follows(search):
    """B30: as one pass without a cache gives them, for the hypotheses of every search."""
    best = 3 if search == 'beam' else 1
    wanted = {'eval.search': search, 'eval.forced_prefix': '7 3', 'eval.num_best': best, 'eval.beam_size': 3}
    made, params = decoder(10, wanted | {'eval.length_penalty': 1.0})
    source = np.array([[*row, 2] + [0] * (8 - len(row)) for row in SOURCES])
    found = made.batch(params, source, np.arange(10, dtype=np.int32))
    forward = jax.jit(lambda target: jax.nn.log_softmax(made._model.apply({'params': params}, source, target)[0]))
    for rank in range(best):
        tokens = found.tokens[:, rank]
        assert (tokens[:, :2] == tokens[0, :2]).all() and (tokens[:, :2] != 0).all()
        gains = np.take_along_axis(np.asarray(forward(tokens)), tokens[:, :, None], axis=2)[:, :, 0]
        logprob = np.where(tokens == 0, 0, gains)[:, 2:].sum(axis=1)
        np.testing.assert_allclose(found.logprob[:, rank], logprob, rtol=1e-5)
        L = (tokens[:, 2:] != 0).sum(axis=1)
        score = logprob / ((5 + L) / 6) if search == 'beam' else logprob
        np.testing.assert_allclose(found.score[:, rank], score, rtol=1e-5)
