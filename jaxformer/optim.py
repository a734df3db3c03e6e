"""Optimisers by optax, and the learning-rate schedules."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from absl import logging

from jaxformer import hyperparameters
from jaxformer.hyperparameters import Hyperparameters
from jaxformer.schema import Config

# Leaves that weight decay leaves alone, by the last name of their path.
UNDECAYED = re.compile(r'(^|_)(scale|bias)$')


def schedule(cfg: Config, values: Hyperparameters | None = None) -> Callable[[Any], jax.Array]:
    """Learning rate by the number of updates done before: update 1 uses schedule(0).

    values: the peak's is taken in place of that of the config.

    noam is learning_rate · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) (AIAYN eq. 3). The others rise linearly to
    learning_rate over warmup_steps and then stay (constant) or fall to 0 at num_steps (linear, cosine). warmup_steps=0
    starts at the peak. Update 1 is never a step of size 0.
    """
    peak = (values or hyperparameters.of(cfg)).learning_rate
    shape = SCHEDULES[cfg.optim.schedule]
    return lambda count: peak * shape(jnp.asarray(count, jnp.float32) + 1, cfg)


def _warmup(step: jax.Array, cfg: Config) -> jax.Array:
    return jnp.minimum(step / max(cfg.optim.warmup_steps, 1), 1.0)


def _left(step: jax.Array, cfg: Config) -> jax.Array:
    """Share of the steps after warm-up that are still to come: 1 at the peak, just above 0 at the last update."""
    falling = max(cfg.train.num_steps - cfg.optim.warmup_steps, 1)
    return jnp.clip((cfg.train.num_steps + 1 - step) / falling, 0.0, 1.0)


def _noam(step: jax.Array, cfg: Config) -> jax.Array:
    return cfg.model.d_model**-0.5 * jnp.minimum(step**-0.5, step * float(max(cfg.optim.warmup_steps, 1)) ** -1.5)


SCHEDULES: dict[str, Callable[[jax.Array, Config], jax.Array]] = {
    'noam': _noam,
    'constant': _warmup,
    'linear': lambda step, cfg: _warmup(step, cfg) * _left(step, cfg),
    'cosine': lambda step, cfg: _warmup(step, cfg) * 0.5 * (1 - jnp.cos(jnp.pi * _left(step, cfg))),
}


DIRECTIONS: dict[str, Callable[[Hyperparameters, float], optax.GradientTransformation]] = {
    'adam': lambda values, epsilon: optax.scale_by_adam(values.beta1, values.beta2, epsilon),
    'sgd': lambda values, epsilon: optax.trace(decay=values.beta1),
}


def decay_mask(params: Any) -> Any:
    """Tree of booleans: which parameters weight decay applies to. Norm scales, norm biases and biases never."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not UNDECAYED.search(path[-1].key), params)


class AverageState(NamedTuple):
    """seen: updates. average: of the parameters, float32."""

    seen: jax.Array
    average: Any


def moving_average(decay: float) -> optax.GradientTransformation:
    """Changes no update, and keeps a moving average of the parameters as the updates leave them.

    After update t (from 1) it is d · average + (1 − d) · parameters with d = min(decay, t / (9 + t)): the first updates
    do not hold it at the initial values (the `num_updates` of TensorFlow's ExponentialMovingAverage). It is the last of
    a chain.
    """

    def begin(params: Any) -> AverageState:
        return AverageState(jnp.int32(0), jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params))

    def update(updates: Any, state: AverageState, params: Any = None) -> tuple[Any, AverageState]:
        seen = state.seen + 1
        weight = jnp.minimum(decay, seen / (9.0 + seen))
        mean = lambda old, new: old + (1 - weight) * (new.astype(jnp.float32) - old)  # noqa: E731
        return updates, AverageState(seen, jax.tree.map(mean, state.average, optax.apply_updates(params, updates)))

    return optax.GradientTransformation(begin, update)


def judged(params: Any, opt_state: Any) -> Any:
    """The parameters that are evaluated: their moving average, in their dtypes, where there is one."""
    last = opt_state[-1]
    if not isinstance(last, AverageState):
        return params
    return jax.tree.map(lambda mean, leaf: mean.astype(leaf.dtype), last.average, params)


def build(cfg: Config, values: Hyperparameters | None = None) -> optax.GradientTransformation:
    """The optimiser that cfg.optim names: clipping, then the direction, then decay, then the learning rate; last, where
    cfg.train.ema_decay asks for it, a moving average.

    values: taken in place of those of the config; they may be traced, where one program serves many runs.
    """
    optim, values = cfg.optim, values or hyperparameters.of(cfg)
    decays = values.weight_decay is not None
    return optax.chain(
        optax.clip_by_global_norm(optim.clip_norm) if optim.clip_norm else optax.identity(),
        DIRECTIONS[optim.name](values, optim.epsilon),
        optax.add_decayed_weights(values.weight_decay, mask=decay_mask) if decays else optax.identity(),
        optax.scale_by_learning_rate(schedule(cfg, values)),
        *([moving_average(cfg.train.ema_decay)] if cfg.train.ema_decay else []),
    )


def warn(cfg: Config) -> None:
    """Says what of cfg.optim works, but can hardly be meant."""
    if cfg.optim.warmup_steps > cfg.train.num_steps:
        logging.warning(
            'config.optim.warmup_steps=%d is more than config.train.num_steps=%d: the peak is never reached',
            cfg.optim.warmup_steps,
            cfg.train.num_steps,
        )
