"""What each family is trained to say: from a batch to the model's inputs, the labels, and the weight of each label."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.model import ops
from jaxformer.schema import Config

Array = jax.Array
Batch = dict[str, Array]
Objective = Callable[[Batch, Array | None], 'Examples']

CHOSEN, SHOWN, DRAWN = range(3)  # what a number of the masking recipe is for, folded into its key


def counted(family: str) -> str:
    """What the labels of a family are, in the name of a metric: tokens, but for a classifier."""
    return 'labels' if family == 'classifier' else 'tokens'


class Examples(NamedTuple):
    """inputs: what the model is called with. labels_BT: int32; weights_BT: float32, 0 where a label does not count."""

    inputs: tuple[Array, ...]
    labels_BT: Array
    weights_BT: Array


def sequence(batch: Batch, key_2: Array | None, *, pad: int) -> Examples:
    """The target given the source."""
    target_BT = batch['target']
    return Examples((batch['source'], target_BT), target_BT, _real(target_BT, pad))


def next_token(batch: Batch, key_2: Array | None, *, pad: int) -> Examples:
    """Every token given those before it in its row, or in its document where the batch has a 'segment'."""
    tokens_BT = batch['tokens']
    return Examples((tokens_BT, *_segments(batch)), tokens_BT, _real(tokens_BT, pad))


def masked_tokens(
    batch: Batch,
    key_2: Array | None,
    *,
    pad: int,
    mask: int,
    num_symbols: int,
    rate: float,
    replaced: float,
    random: float,
) -> Examples:
    """Chosen tokens given the others (Devlin et al. 2019, 3.1), of their document where the batch has a 'segment'.

    Of the real tokens a share `rate` is chosen. Of these a share `replaced` is shown as the mask, a share `random` as
    one of all symbols, and the rest as it is. In evaluation (key_2 None) every chosen one is shown as the mask. Which
    are chosen depends on the key, the number of the example and the place in it, and not on the batch around it.

    Args:
      key_2: uint32[2]. pad, mask: ids. num_symbols: V.
    """
    tokens_BT = batch['tokens']
    base_2 = jnp.zeros(2, jnp.uint32) if key_2 is None else key_2

    def uniform(purpose: int) -> Array:
        row = lambda example: ops.random_bits(ops.fold(base_2, purpose, example), tokens_BT.shape[1:])  # noqa: E731
        return jax.vmap(row)(batch['example_id'])

    chosen_BT = (tokens_BT != pad) & _below(uniform(CHOSEN), rate)
    shown_BT = jnp.full_like(tokens_BT, mask)
    if key_2 is not None:
        drawn_BT = (uniform(DRAWN) % jnp.uint32(num_symbols)).astype(tokens_BT.dtype)
        drawn_BT = jnp.where(drawn_BT == pad, mask, drawn_BT)  # what is padding is not looked at
        kind_BT = uniform(SHOWN)
        shown_BT = jnp.where(_below(kind_BT, replaced + random), drawn_BT, tokens_BT)
        shown_BT = jnp.where(_below(kind_BT, replaced), mask, shown_BT)
    shown_BT = jnp.where(chosen_BT, shown_BT, tokens_BT)
    return Examples((shown_BT, *_segments(batch)), tokens_BT, chosen_BT.astype(jnp.float32))


def classes(batch: Batch, key_2: Array | None) -> Examples:
    """The class of each text (label [B]) or of each token (label [B, T]); a negative label does not count."""
    label_BT = batch['label'] if batch['label'].ndim == 2 else batch['label'][:, None]
    return Examples((batch['tokens'],), jnp.maximum(label_BT, 0), (label_BT >= 0).astype(jnp.float32))


def of(cfg: Config, num_symbols: int) -> Objective:
    """The objective of cfg.model.family as (batch, key_2) → Examples; key_2 is None in evaluation.

    Args:
      num_symbols: V of the model, for the random tokens of mlm.
    """
    ids, masking = cfg.model.ids, cfg.train.masking
    return {
        'seq2seq': lambda batch, key_2: sequence(batch, key_2, pad=ids.pad),
        'lm': lambda batch, key_2: next_token(batch, key_2, pad=ids.pad),
        'mlm': lambda batch, key_2: masked_tokens(
            batch,
            key_2,
            pad=ids.pad,
            mask=ids.mask,
            num_symbols=num_symbols,
            rate=masking.rate,
            replaced=masking.replaced,
            random=masking.random,
        ),
        'classifier': classes,
    }[cfg.model.family]


def _segments(batch: Batch) -> tuple[Array, ...]:
    return (batch['segment'],) if 'segment' in batch else ()


def _real(tokens_BT: Array, pad: int) -> Array:
    return (tokens_BT != pad).astype(jnp.float32)


def _below(bits: Array, share: float) -> Array:
    """True for a share of uniformly random bits."""
    return bits < jnp.uint32(min(round(share * 2**32), 2**32 - 1))
