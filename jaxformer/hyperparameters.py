"""Settings that are arguments of a compiled step and no part of its program: runs that differ in them share one."""

import json
from collections.abc import Hashable
from typing import Any

import flax.struct
import numpy as np

from jaxformer import config as config_lib
from jaxformer.schema import Config

DROPOUT_PLACES = ('attention', 'residual', 'feed_forward', 'embedding')

FIELDS = (
    'seed',
    'optim.learning_rate',
    'optim.weight_decay',
    'optim.beta1',
    'optim.beta2',
    'optim.label_smoothing',
    *(f'model.dropout.{place}' for place in DROPOUT_PLACES),
)
"""Of the configuration. Whether a rate is zero is part of the program all the same: nothing is computed for it then."""

_NEVER_OFF = ('optim.learning_rate', 'optim.beta1', 'optim.beta2')

Scalar = Any
"""An array without dimensions (with a leading C where several runs are trained together), of NumPy or of JAX."""


class Hyperparameters(flax.struct.PyTreeNode):
    """The values of FIELDS, float32 (seed: int32). What is switched off is None, or missing from `dropout`."""

    seed: Scalar
    learning_rate: Scalar
    beta1: Scalar
    beta2: Scalar
    weight_decay: Scalar | None
    label_smoothing: Scalar | None
    dropout: dict[str, Scalar]


def of(cfg: Config) -> Hyperparameters:
    """Those of a configuration."""
    optim, rates = cfg.optim, cfg.model.dropout
    return Hyperparameters(
        seed=np.int32(cfg.seed),
        learning_rate=np.float32(optim.learning_rate),
        beta1=np.float32(optim.beta1),
        beta2=np.float32(optim.beta2),
        weight_decay=np.float32(optim.weight_decay) if optim.weight_decay else None,
        label_smoothing=np.float32(optim.label_smoothing) if optim.label_smoothing else None,
        dropout={place: np.float32(rate) for place in DROPOUT_PLACES if (rate := getattr(rates, place))},
    )


def program(cfg: Config) -> Hashable:
    """What is left of a configuration without the values of FIELDS: equal where the compiled step is the same."""
    fields = config_lib.flatten(cfg)
    for field in FIELDS:
        fields[field] = None if field == 'seed' or field in _NEVER_OFF else bool(fields[field])
    return json.dumps(fields, sort_keys=True)
