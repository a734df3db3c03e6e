"""Floating-point operations of a model by formula, letter by letter as in `jaxformer.schema`: nothing is traced.

Counted are the products of matrices (and the taps of convolutions), two operations for each multiplication and
addition, over all positions of the batch's shape, padding included, as the program computes them: a mask saves none.
Not counted is what grows with no product of two widths: norms, activations, softmax, embeddings looked up, the
optimiser. Training is three times the forward pass: the backward pass multiplies by each matrix twice (Kaplan et al.
2020, 2.1); what `model.remat` or a kernel computes a second time does not count, as it does no further work.
"""

from collections.abc import Sequence

from jaxformer.model.heads import narrowed
from jaxformer.schema import ModelConfig

_GATED = ('geglu', 'swiglu')
_GATES = {'rnn': 1, 'lstm': 4, 'gru': 3}


def training(model: ModelConfig, vocab_size: int, num_classes: int, shape: Sequence[int]) -> int:
    """Operations per example of a training step on batches of that shape: three forward passes."""
    return 3 * forward(model, vocab_size, num_classes, shape)


def forward(model: ModelConfig, vocab_size: int, num_classes: int, shape: Sequence[int]) -> int:
    """Operations per example of a forward pass with labels.

    Args:
      vocab_size: V as the model is built. num_classes: Y, of a classifier.
      shape: (S, T) of seq2seq, (T,) of the others.
    """
    T = shape[-1]
    N, M = model.encoder_layers, model.decoder_layers
    of_encoder, of_decoder, of_cross = (narrowed(model, kind) for kind in ('encoder', 'decoder', 'cross'))
    if model.family == 'seq2seq':
        S = shape[0]
        encoder = N * (_mixer(of_encoder, model.encoder_mixer, S, causal=False) + _feed_forward(model, S))
        cross = _queries(of_cross, T) + _keys(of_cross, S) + _values(of_cross, S) + _attention(of_cross, T, S)
        decoder = M * (_mixer(of_decoder, model.decoder_mixer, T, causal=True) + cross + _feed_forward(model, T))
        return encoder + decoder + 2 * T * model.d_model * vocab_size
    if model.family == 'lm':
        blocks = M * (_mixer(of_decoder, model.decoder_mixer, T, causal=True) + _feed_forward(model, T))
        return blocks + 2 * T * model.d_model * vocab_size
    blocks = N * (_mixer(of_encoder, model.encoder_mixer, T, causal=False) + _feed_forward(model, T))
    square = 2 * model.d_model**2
    if model.family == 'mlm':
        transform = T * square if model.head.transform == 'on' else 0
        return blocks + transform + 2 * T * model.d_model * vocab_size
    rows = T if model.head.pooling == 'tokens' else 1
    mean = 2 * T * model.d_model if model.head.pooling == 'mean' else 0
    pooler = rows * square if model.head.pooler == 'on' else 0
    return blocks + mean + pooler + 2 * rows * model.d_model * num_classes


def _mixer(model: ModelConfig, mixer: str, T: int, causal: bool) -> int:
    """Of one layer's mixer over T positions."""
    D = model.d_model
    if mixer == 'attention':
        return _queries(model, T) + _keys(model, T) + _values(model, T) + _attention(model, T, T)
    if mixer == 'static':
        return _values(model, T) + _weighted(model, T, T)
    if mixer == 'linformer':
        P = model.linformer.rank
        slots = 2 * P * T * model.num_kv_heads * (model.d_k + model.d_v)
        return _queries(model, T) + _keys(model, T) + _values(model, T) + slots + _attention(model, T, P)
    if mixer == 'conv':
        return 2 * T * model.conv.width * D * 2 * D  # twice as wide, for the gate
    R, directions = model.recurrent.width, 1 if causal else 2
    cell = 2 * (D + R) * R * _GATES[mixer]
    return directions * T * (cell + 2 * R * D)


def _queries(model: ModelConfig, T: int) -> int:
    return 2 * T * model.d_model * model.num_heads * model.d_k


def _keys(model: ModelConfig, S: int) -> int:
    return 2 * S * model.d_model * model.num_kv_heads * model.d_k


def _values(model: ModelConfig, S: int) -> int:
    return 2 * S * model.d_model * model.num_kv_heads * model.d_v


def _attention(model: ModelConfig, T: int, S: int) -> int:
    """Scores (of any kind: each is a sum over K), the values under them, the output projection."""
    return 2 * T * S * model.num_heads * model.d_k + _weighted(model, T, S)


def _weighted(model: ModelConfig, T: int, S: int) -> int:
    out = 2 * T * model.num_heads * model.d_v * model.d_model
    return 2 * T * S * model.num_heads * model.d_v + out


def _feed_forward(model: ModelConfig, T: int) -> int:
    if model.feed_forward == 'none':
        return 0
    return 2 * T * model.d_model * model.d_ff * (3 if model.feed_forward in _GATED else 2)
