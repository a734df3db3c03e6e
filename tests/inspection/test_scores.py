"""Numbers about a head are those of its weights, by hand for one text and over a split, and name what it looks at."""

import dataclasses

import numpy as np
import pytest

from jaxformer.data import corpus
from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.inspection import attention, choice, explorer, prune, scores
from jaxformer.model import transformer

NAMES = ('entropy', 'distance', 'first', 'previous', 'diagonal', 'next', 'slant')


def by_hand(maps):
    """{name: sum over rows} of weights [T, S], row by row, and how many rows count for each."""
    totals = dict.fromkeys(NAMES, 0.0)
    T, S = maps.shape
    for t, row in enumerate(np.asarray(maps, np.float64)):
        totals['entropy'] -= sum(w * np.log(w) for w in row if w > 0)
        totals['distance'] += sum(w * abs(s - t) for s, w in enumerate(row))
        totals['first'] += row[0]
        totals['previous'] += row[t - 1] if 0 < t <= S else 0
        totals['diagonal'] += row[t] if t < S else 0
        totals['next'] += row[t + 1] if t + 1 < S else 0
        totals['slant'] += abs(sum(w * s for s, w in enumerate(row)) / (S - 1) - t / (T - 1))
    return totals, {name: T - (name == 'previous') for name in NAMES}


@pytest.fixture(scope='module')
def run(trained):
    return open_run(trained)


def test_of_a_text(run):
    maps = attention.of_run(run, '3 1 4 1 5')
    for found in scores.of_maps(run, maps):
        for layer, head in np.ndindex(2, 3):
            totals, rows = by_hand(getattr(maps, found.kind)[layer, head])
            for name in NAMES:
                assert found.of[name][layer, head] == pytest.approx(totals[name] / rows[name], abs=1e-5)


def test_over_a_split_every_row_counts_once(run):
    split = corpus.load(run.cfg.data).split('dev')
    chosen = choice.Choice(('cross', 'encoder'), layers=(1,), heads=(2, 0))
    found = {part.kind: part for part in scores.of_split(run, split, chosen)}
    sums = {kind: dict.fromkeys(NAMES, 0.0) for kind in found}
    counts = {kind: dict.fromkeys(NAMES, 0) for kind in found}
    for number in range(len(split)):
        maps = attention.of_run(run, split.source_text(number), ' '.join(split.references(number)[0]))
        for kind in found:
            totals, rows = by_hand(getattr(maps, kind)[1, 2])
            for name in NAMES:
                sums[kind][name] += totals[name]
                counts[kind][name] += rows[name]
    for kind, part in found.items():
        assert part.rows == counts[kind]['entropy'] and part.layers == (1,) and part.heads == (2, 0)
        for name in NAMES:
            assert part.of[name][0, 0] == pytest.approx(sums[kind][name] / counts[kind][name], rel=1e-4), name


def test_roles_and_a_dead_head(run):
    weights = {
        'first': np.eye(1, 5).repeat(5, 0),
        'previous': np.eye(5, k=-1) + np.eye(1, 5) * np.eye(5)[:1].T,
        'diagonal': np.eye(5),
        'next': np.eye(5, k=1) + np.eye(5) * np.eye(5)[4:].T,
    }
    rows = np.asarray(scores.of_rows(np.stack(list(weights.values()))[None, :]))[0].mean(1)
    of = dict(zip(NAMES, rows.T[:, None], strict=True)) | {'strength': np.array([[1.0, 0.5, 0.2, 0.9]])}
    part = scores.Scores('encoder', (0,), (0, 1, 2, 3), 5, of)
    assert [part.role(0, head) for head in range(4)] == list(weights)
    attention_ = run.params['encoder']['layers']['self_attention']
    dead = dict(attention_) | {'out': np.array(attention_['out'])}
    dead['out'][1, 2] = 0
    layers = dict(run.params['encoder']['layers']) | {'self_attention': dead}
    changed = run.__class__(
        **{**vars(run), 'params': {**run.params, 'encoder': {**run.params['encoder'], 'layers': layers}}}
    )
    strength = scores.strength(changed, 'encoder')
    value, out = (np.asarray(dead[name], np.float64) for name in ('value', 'out'))
    norms = [[np.linalg.norm(value[n][:, h] @ out[n, h]) for h in range(3)] for n in range(2)]
    np.testing.assert_allclose(strength, norms / np.max(norms, axis=1, keepdims=True), rtol=1e-9)
    text = scores.as_json(scores.of_maps(changed, attention.of_run(changed, '3 1 4')))
    assert [(row['layer'], row['head']) for row in text if row['role'] == 'dead'] == [(2, 3)]


def test_flags_are_numbers_from_one():
    assert choice.parse('cross', '2,1', '3') == choice.Choice(('cross',), (1, 0), (2,))
    assert choice.parse() == choice.ALL
    for arguments, said in (
        (('all',), "which=all: 'all'"),
        ((None, '0'), 'layers=0'),
        ((None, None, '1,1'), 'heads=1,1'),
    ):
        with pytest.raises(UserError, match=said):
            choice.parse(*arguments)


def test_heads_of_a_pruned_model_have_their_numbers_and_their_names(run):
    """What is left of layer 1 are heads 1 and 3, of layer 2 heads 2 and 3."""
    gone = prune.parse('encoder.1.2,encoder.2.1', run.cfg.model)
    cfg, params = prune.pruned(run.cfg, run.params, gone)
    fewer = dataclasses.replace(run, cfg=cfg, params=params, model=transformer.build(cfg.model, len(run.vocab)))
    masked = dataclasses.replace(run, params=prune.masked(run.params, run.cfg.model, gone))
    rows, whole = (
        {row['name']: row for row in scores.as_json(scores.of_maps(of, attention.of_run(of, '3 1 4', '4 1 3')))}
        for of in (fewer, masked)
    )
    encoder = [name for name in rows if name.startswith('encoder')]
    assert encoder == ['encoder.1.1', 'encoder.1.3', 'encoder.2.2', 'encoder.2.3']
    assert [rows[name]['head'] for name in encoder] == [1, 2, 1, 2] and 'cross.2.3' in rows
    for name in rows:
        for number in NAMES:
            assert rows[name][number] == pytest.approx(whole[name][number], abs=1e-5)
    page = explorer._example(fewer, attention.of_run(fewer, '3 1 4'), choice.ALL)['kinds']
    assert '; encoder.1.3 before pruning.' in page[0]['summary'][0][1] and 'pruning' not in page[1]['summary'][0][1]
    assert 'encoder.2.2' in scores.as_text(scores.of_maps(fewer, attention.of_run(fewer, '3 1 4')))
