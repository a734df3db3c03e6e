"""A model as what a search knows of it: a step function and its cache."""

from collections.abc import Callable
from typing import Any

import jax

from jaxformer.decode.greedy import Extend
from jaxformer.model.cache import Cache, apart
from jaxformer.model.family import Family

Array = jax.Array


def begin(model: Family, params: Any, unroll: str, *args: Any) -> tuple[Extend, Cache]:
    """(extend, the cache of `start_cache(*args)`) of a model with these parameters.

    Args:
      unroll: eval.unroll; on: see `model/cache.py`, `apart`.
    """
    apply: Callable[..., Any] = model.apply
    cache: Cache = apply({'params': params}, *args, method='start_cache')
    if unroll == 'on':
        N, decoder, layers = model.cfg.decoder_layers, params['decoder'], cache['layers']
        params = {**params, 'decoder': {**decoder, 'layers': apart(decoder['layers'], N)}}
        if 'cross' in layers:
            cache = {**cache, 'layers': {**layers, 'cross': apart(layers['cross'], N)}}

    def extend(tokens_BT: Array, cache: Cache) -> tuple[Array, Cache]:
        logits_BTV, cache = apply({'params': params}, tokens_BT, cache, method='extend')
        return logits_BTV, cache

    return extend, cache
