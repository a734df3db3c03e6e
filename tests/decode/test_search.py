"""What config.eval asks for is what lines and splits are decoded with: beams of real models, cached and reordered."""

import jax
import numpy as np
import pytest
from test_predict import SOURCES, TEXTS, decoder, split

from jaxformer.data.vocab import EOS
from jaxformer.decode.found import Found
from jaxformer.errors import UserError

BEAM = {'eval.search': 'beam', 'eval.beam_size': 3}
SAMPLE = {'eval.search': 'sample', 'eval.temperature': 1.5}


def outputs(batch_size, changes, texts=TEXTS):
    made, params = decoder(batch_size, changes | {'data.buckets': ((9, 9),)})
    return [line for line, _ in made.lines(params, texts)]


def test_each_search_writes_something_else():
    found = {search: outputs(5, {'eval.search': search}) for search in ('greedy', 'sample', 'beam')}
    assert len({tuple(lines) for lines in found.values()}) == 3
    assert outputs(5, {'eval.search': 'sample', 'eval.sample_seed': 1}) != found['sample']


@pytest.mark.parametrize('changes', [BEAM | {'eval.num_best': 3}, SAMPLE], ids=['beam', 'sample'])
def test_the_batch_changes_nothing(changes):
    """B27: lines of one, of three and of all at once, n best and draws alike, but for the last digit of a score."""
    made, params = decoder(10, changes)
    source = np.array([[*row, EOS] + [0] * (8 - len(row)) for row in SOURCES])
    whole = made.batch(params, source, np.arange(10))
    assert len(np.unique(whole.tokens[:, 0], axis=0)) > 5
    for size in (1, 2):
        made, params = decoder(size, changes)
        for first in range(0, 10, size):
            rows = slice(first, first + size)
            part = made.batch(params, source[rows], np.arange(10)[rows])
            np.testing.assert_array_equal(part.tokens, whole.tokens[rows])
            np.testing.assert_allclose(part.score, whole.score[rows], rtol=1e-5)


def test_compiled_once_per_source_length():
    for changes in (BEAM, SAMPLE):
        made, params = decoder(3, changes | {'data.buckets': ((5, 4), (5, 5), (9, 9))})
        made.split_error_rates(params, split())
        list(made.lines(params, TEXTS))
        assert made.search.compilations == 2


def test_the_n_best_of_a_line_are_written_with_its_number_and_their_scores():
    """The first is what is written alone; scores fall; a blank line has one that is empty."""
    alone = outputs(4, BEAM, [TEXTS[0], '', TEXTS[1]])
    blocks = outputs(4, BEAM | {'eval.num_best': 3}, [TEXTS[0], '', TEXTS[1]])
    assert blocks[1] == '1 |||  ||| 0.000000'
    for number in (0, 2):
        rows = [line.split(' ||| ') for line in blocks[number].split('\n')]
        assert [row[0] for row in rows] == [str(number)] * 3 and rows[0][1] == alone[number]
        scores = [float(row[2]) for row in rows]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0 and len({row[1] for row in rows}) == 3


def test_a_line_counts_as_cut_by_any_of_its_n_best_that_is_written(monkeypatch):
    made, params = decoder(4, BEAM | {'eval.num_best': 2})
    tokens = np.full((4, 2, 3), 5)
    score, truncated = (
        np.array([[-1, -2], [-1, -np.inf], [-1, -2], [-1, -2]]),
        np.array([[0, 1], [0, 1], [1, 1], [1, 1]]),
    )
    found = Found(tokens, score, score, truncated.astype(bool))
    monkeypatch.setattr(made, 'batch', lambda *args: found)
    assert [line.count('|||') for line, _ in made.lines(params, ['7', '3', '4'])] == [4, 2, 4]
    assert made.cut == 2  # of the first and of the third; the fourth row is none


def test_scores_are_those_of_the_tokens():
    """Each log-probability is the sum that one pass without a cache gives; ends and cuts are what the tokens say."""
    made, params = decoder(10, BEAM | {'eval.num_best': 3, 'eval.length_penalty': 1.0})
    source = np.array([[*row, EOS] + [0] * (8 - len(row)) for row in SOURCES])
    found = made.batch(params, source, np.arange(10, dtype=np.int32))
    forward = jax.jit(lambda target: jax.nn.log_softmax(made._model.apply({'params': params}, source, target)[0]))
    for rank in range(3):
        tokens = found.tokens[:, rank]
        logprob = np.take_along_axis(np.asarray(forward(tokens)), tokens[:, :, None], axis=2)[:, :, 0]
        logprob = np.where(tokens == 0, 0, logprob).sum(axis=1)
        np.testing.assert_allclose(found.logprob[:, rank], logprob, rtol=1e-5)
        np.testing.assert_allclose(found.score[:, rank], logprob / ((5 + (tokens != 0).sum(axis=1)) / 6), rtol=1e-5)
        np.testing.assert_array_equal(found.truncated[:, rank], ~(tokens == EOS).any(axis=1))


def test_every_output_begins_with_the_forced_prefix():
    for changes in (BEAM, SAMPLE):
        forced = outputs(4, changes | {'eval.forced_prefix': '7 3'})
        assert all(line.startswith('7 3') for line in forced) and len(set(forced)) > 1
    for prefix in ('7 x', '1 2 3 4 5 6 7'):  # an unknown symbol, and no room for another
        with pytest.raises(UserError, match='config.eval.forced_prefix=.* in the symbols of the run, and fewer than'):
            decoder(4, {'eval.forced_prefix': prefix})


def test_what_is_cut_is_counted():
    made, params = decoder(3)
    found = decoder(3)[0].batch(params, np.full((3, 8), 5), np.arange(3))
    made.batch = lambda *_: found._replace(truncated=np.array([[True], [False], [True]]))
    list(made.lines(params, [TEXTS[0]] * 3))
    assert made.cut == 2
