"""One update, as a pure function of state and batch."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxformer import losses, objectives, optim
from jaxformer.hyperparameters import Hyperparameters
from jaxformer.model import ops
from jaxformer.model.family import Family
from jaxformer.objectives import Objective
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config
from jaxformer.train import accumulation
from jaxformer.train.state import ScaledState, TrainState

Batch = dict[str, jax.Array]

OBJECTIVE_SITE = 2_000_000  # folded into the key of a step, beyond what the stacks fold into it


def loss_fn(
    params: Any,
    batch: Batch,
    key_2: jax.Array | None,
    model: nn.Module,
    objective: Objective,
    values: Hyperparameters,
    part: jax.Array | None = None,
    distillation: tuple[float, float] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(label-smoothed loss in nats per label that counts, number of such labels); 0 for a batch without any.

    part: which rows of the step's batch these are ([first, stride] uint32), where it is worked on in parts; their
      dropout masks are those that they have in the whole batch.
    distillation: (weight, temperature) of the term by the teacher's logits in the batch.
    """
    inputs, labels_BT, weights_BT = objective(batch, None if key_2 is None else ops.fold(key_2, OBJECTIVE_SITE))
    dropout_2 = key_2 if key_2 is None or part is None else jnp.concatenate([key_2, part])
    logits_BTV, _ = model.apply({'params': params}, *inputs, key_2=dropout_2, rates=values.dropout)
    tokens = jnp.sum(weights_BT)
    total = losses.cross_entropy(logits_BTV, labels_BT, weights_BT, values.label_smoothing)
    if distillation:
        weight, temperature = distillation
        total = (1 - weight) * total
        total += weight * losses.distillation(logits_BTV, batch['teacher'], weights_BT, temperature)
    return total / jnp.maximum(tokens, 1.0), tokens


class Gradient(NamedTuple):
    """loss: nats per label, smoothed. tokens: labels that count. grads: of the loss, as a tree of parameters. scale: by
    which the loss was multiplied (in float16) while its gradient was taken."""

    loss: jax.Array
    tokens: jax.Array
    grads: Any
    scale: jax.Array | float


def key_of(state: TrainState, values: Hyperparameters) -> jax.Array:
    """The key of a step, uint32[2]: a function of seed and step alone."""
    return ops.fold(jnp.zeros(2, jnp.uint32), values.seed, state.step)


def gradient(
    state: TrainState,
    batch: Batch,
    values: Hyperparameters,
    *,
    model: nn.Module,
    objective: Objective,
    parts: int = 1,
    distillation: tuple[float, float] | None = None,
) -> Gradient:
    """That of the update which `train_step` makes; arguments as there."""
    key_2 = key_of(state, values)
    scale = state.loss_scale.scale if isinstance(state, ScaledState) else 1.0

    def scaled_loss(params: Any, rows: Batch, part: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        loss, tokens = loss_fn(params, rows, key_2, model, objective, values, part, distillation)
        return loss * scale, tokens

    scaled, tokens, grads = accumulation.value_and_grad(scaled_loss, parts, state.params, batch)
    return Gradient(scaled / scale, tokens, jax.tree.map(lambda leaf: (leaf / scale).astype(leaf.dtype), grads), scale)


def train_step(
    state: TrainState,
    batch: Batch,
    values: Hyperparameters,
    *,
    model: nn.Module,
    objective: Objective,
    optimizer: Callable[[Hyperparameters], optax.GradientTransformation],
    schedule: Callable[[Hyperparameters], Callable[[jax.Array], jax.Array]],
    parts: int = 1,
    distillation: tuple[float, float] | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One update on one global batch.

    The dropout key is a function of seed and state.step alone, so that a resumed run draws what the straight run drew;
    the values are arguments, so that runs which differ in them alone share a compiled program. Where the loss or the
    gradient is not finite nothing but the counters changes, and the caller decides whether to go on. In float16 the
    loss is scaled before its gradient is taken; where the gradient alone is not finite the next scale is half as great.

    Args:
      batch: as the family's objective reads it; a row that is all padding counts for nothing.
      schedule: learning rate by the number of updates done before; only reported, `optimizer` holds its own.
      parts: of the batch, that are worked on in turn. The update is that of the batch as one, dropout included.
      distillation: see `loss_fn`.

    Returns:
      (state, metrics): loss (nats per token, smoothed), tokens, grad_norm (before clipping), learning_rate, finite (or
      skipped as the loss scale was too great, which mends itself), skipped, skipped_in_row, and loss_scale in float16;
      all scalars on the device.
    """
    scaling = state.loss_scale if isinstance(state, ScaledState) else None
    loss, tokens, grads, scale = gradient(
        state, batch, values, model=model, objective=objective, parts=parts, distillation=distillation
    )
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    mends_itself = jnp.isfinite(loss) & ~finite & scaling.can_fall() if scaling else jnp.bool_(False)
    updates, opt_state = optimizer(values).update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    # Moments of bfloat16 parameters stay bfloat16, whatever the hyperparameters, which are float32, make of them.
    keep_old = lambda new, old: jnp.where(finite, new.astype(old.dtype), old)  # noqa: E731
    new = state.replace(
        step=state.step + 1,
        params=jax.tree.map(keep_old, params, state.params),
        opt_state=jax.tree.map(keep_old, opt_state, state.opt_state),
        skipped=state.skipped + ~finite,
        skipped_in_row=jnp.where(finite, 0, state.skipped_in_row + ~mends_itself),
    )
    metrics = {
        'loss': loss,
        'tokens': tokens,
        'grad_norm': grad_norm,
        'learning_rate': schedule(values)(state.step - state.skipped),
        'finite': finite | mends_itself,
        'skipped': new.skipped,
        'skipped_in_row': new.skipped_in_row,
    }
    if scaling:
        judged = lambda new, old: jnp.where(jnp.isfinite(loss), new, old)  # noqa: E731 - the loss itself has no scale
        new = new.replace(loss_scale=jax.tree.map(judged, scaling.after(finite), scaling))
        metrics['loss_scale'] = scale
    return new, metrics


def of(cfg: Config, model: Family) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """`train_step` of a config as (state, batch, values) → (state, metrics)."""
    return functools.partial(
        train_step,
        optimizer=lambda values: optim.build(cfg, values),
        schedule=lambda values: optim.schedule(cfg, values),
        **arguments(cfg, model),
    )


def arguments(cfg: Config, model: Family) -> dict[str, Any]:
    """Those of `gradient` that a config decides."""
    return {
        'model': model,
        'objective': objectives.of(cfg, model.vocab_size),
        'parts': cfg.train.accumulation,
        'distillation': (cfg.train.teacher_weight, cfg.train.teacher_temperature) if cfg.train.taught else None,
    }


def compiled_step(cfg: Config, model: Family, target: TrainState) -> CountedJit:
    """`train_step` of a config, compiled per bucket; the state is donated.

    Args:
      target: the state as shapes with shardings, of `state.abstract`; the new state lies where it says.
    """
    return CountedJit(
        of(cfg, model),
        donate_argnums=0,
        # Left to itself, XLA may lay the new state out in another way, and the next step would be compiled again.
        out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, target), None),
    )
