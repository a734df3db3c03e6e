"""Attention rollout (Abnar and Zuidema 2020, 3): what attention comes to when layers are followed back to the input."""

import numpy as np


def rollout(weights_NHTT: np.ndarray) -> np.ndarray:
    """[T, T] of a stack that attends to itself; each row sums to 1.

    A layer mixes half of what was there (the residual) and half of what its heads, on average, look at (eq. 1).
    """
    mixed = np.eye(weights_NHTT.shape[-1])
    for weights_TT in weights_NHTT.astype(np.float64).mean(axis=1):
        mixed = 0.5 * mixed + 0.5 * weights_TT @ mixed
    return mixed


def cross_rollout(encoder_NHSS: np.ndarray, decoder_NHTT: np.ndarray, cross_NHTS: np.ndarray) -> np.ndarray:
    """[T, S]: how much of each source symbol is in what the decoder writes; the rest of a row, up to 1, is its inputs.

    The rule of the paper for an encoder-decoder: each layer mixes by its self-attention and then, by halves again, with
    the memory, which is the rolled-out encoder.
    """
    T, S = cross_NHTS.shape[-2:]
    memory_SS = rollout(encoder_NHSS)
    source_TS = np.zeros((T, S))
    for own_TT, cross_TS in zip(
        decoder_NHTT.astype(np.float64).mean(axis=1), cross_NHTS.astype(np.float64).mean(axis=1), strict=True
    ):
        source_TS = 0.5 * source_TS + 0.5 * own_TT @ source_TS
        source_TS = 0.5 * source_TS + 0.5 * cross_TS @ memory_SS
    return source_TS
