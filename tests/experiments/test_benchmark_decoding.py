"""The decoding benchmark compares one model with itself, and refuses to compare two."""

import numpy as np
import pytest

from experiments import benchmark_decoding
from jaxformer.errors import RunError

pytest.importorskip('torch', reason='the comparison needs PyTorch: make benchmark installs it')
pytest.importorskip('transformers', reason='the comparison needs transformers: make benchmark installs it')

TOY = {
    'vocab_size': 37, 'd_model': 18, 'encoder_layers': 2, 'decoder_layers': 2, 'encoder_attention_heads': 3,
    'decoder_attention_heads': 3, 'encoder_ffn_dim': 22, 'decoder_ffn_dim': 22, 'max_position_embeddings': 64,
}  # fmt: skip


def test_both_sides_decode_the_same_tokens_and_ratios_are_of_pairs():
    found = benchmark_decoding.measure(3, rows=3, length=5, new=7, **TOY)
    assert found['different_tokens'] > 3
    theirs = found['torch_tokens_per_second']
    assert set(found['unroll']) == {'off', 'on'}
    for side in found['unroll'].values():
        ours, ratio = side['tokens_per_second'], side['ratio']
        assert (
            ours['min'] / theirs['max']
            <= ratio['min']
            <= ratio['median']
            <= ratio['max']
            <= ours['max'] / theirs['min']
        )
    shown = benchmark_decoding.table(found)
    assert 'eval.unroll=off, compiled in' in shown and 'eval.unroll=on, compiled in' in shown


def test_other_tokens_are_no_ratio(monkeypatch):
    made = benchmark_decoding.theirs
    monkeypatch.setattr(benchmark_decoding, 'theirs', lambda *args: lambda: np.roll(made(*args)(), 1, axis=1))
    with pytest.raises(RunError, match='of the tokens differ: two models, of which there is no ratio'):
        benchmark_decoding.measure(1, rows=3, length=5, new=7, **TOY)
