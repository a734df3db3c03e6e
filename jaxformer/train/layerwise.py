"""What goes on in each layer while a run trains: how wide it looks, how large its values and its gradients are.

A program of its own, asked every train.inspect_every steps with the state and the batch of the step to come, so that
the step itself stays as it is. Off by default, as it has to be compiled, too; every 100 steps is a good interval. Each
time it costs what 1.2 steps cost of configs/quickstart.py, and 1.3 of configs/g2p.py (processor time on two cores,
medians of seven and five pairs, 1.1 to 1.3 in each): every 100 steps 1.3 %.

It weighs all keys for every query, whatever config.model.attention.kernel: where that is to save memory, for one row of
the batch on each device at a time.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import sharding
from jaxformer.hyperparameters import Hyperparameters
from jaxformer.model import ops
from jaxformer.model.family import Family
from jaxformer.model.keep import Keep
from jaxformer.model.stack import WEIGHING
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config
from jaxformer.train import accumulation
from jaxformer.train import step as steps
from jaxformer.train.state import TrainState

Array = jax.Array
Batch = dict[str, Array]
Found = Mapping[str, Mapping[str, Array]]


class Layers:
    """(state, batch, values) → {what: {part: [N] or []}} of the update that the step would make, on every process.

    gradient_norm: of each layer's parameters, and of the others by the first two parts of their path, before clipping:
    the root of their sum of squares is train/grad_norm. output_rms: root mean square of what leaves the layer, over
    the rows that are no padding. attention_entropy: of the weights of encoder, decoder and cross, in nats, the mean
    over rows (queries) and heads; attention_entropy_least: that of the head where it is least. The gradient is that of
    the step, dropout included; outputs and weights are those of a pass without dropout on the same inputs. All of it
    is of one batch, and so of one bucket: entropies of short sequences are smaller.
    """

    def __init__(self, cfg: Config, model: Family, mesh: Mesh) -> None:
        self._model, self._family, self._pad = model, cfg.model.family, cfg.model.ids.pad
        self._arguments, self._parts = steps.arguments(cfg, model), cfg.train.accumulation
        if cfg.model.attention.kernel != 'plain':
            self._parts = cfg.train.batch_size // (mesh.shape['data'] * mesh.shape['fsdp'])
        stacks = {
            'encoder': cfg.model.encoder_mixer if self._family != 'lm' else '',
            'decoder': cfg.model.decoder_mixer if self._family in ('seq2seq', 'lm') else '',
        }
        weights = [stack for stack, mixer in stacks.items() if mixer in WEIGHING]
        weights += ['cross'] if self._family == 'seq2seq' else []
        self._weights, self._stacks = tuple(weights), tuple(stack for stack, mixer in stacks.items() if mixer)
        self.numbers = CountedJit(self._numbers, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, state: TrainState, batch: Batch, values: Hyperparameters) -> Found:
        return self.numbers(state, batch, values)

    def _numbers(self, state: TrainState, batch: Batch, values: Hyperparameters) -> Found:
        gradient = steps.gradient(state, batch, values, **self._arguments)
        key_2 = steps.key_of(state, values)
        sums = accumulation.summed(functools.partial(self._sums, state.params, key_2), self._parts, batch)
        rows = {part: jnp.maximum(sums['rows'][part], 1.0) for part in self._stacks}
        rows |= {'cross': rows['decoder']} if 'cross' in self._weights else {}
        entropy = {part: sums[part] / rows[part] for part in self._weights}
        return {
            'gradient_norm': gradient_norms(gradient.grads),
            'output_rms': {part: jnp.sqrt(sums[f'{part}_output'] / rows[part]) for part in self._stacks},
            'attention_entropy': {part: entropy_NH.mean(1) for part, entropy_NH in entropy.items()},
            'attention_entropy_least': {part: entropy_NH.min(1) for part, entropy_NH in entropy.items()},
        }

    def _sums(self, params: Any, key_2: Array, batch: Batch) -> dict[str, Any]:
        """Over real rows: of each head's entropy [N, H], of the mean square of each layer's output [N]; and of rows."""
        objective = self._arguments['objective']
        inputs, _, weights_BT = objective(batch, ops.fold(key_2, steps.OBJECTIVE_SITE))
        real = {'encoder': inputs[0] != self._pad, 'decoder': weights_BT > 0}
        keep = {kind: Keep(reduce=ops.entropy) for kind in self._weights}
        keep |= {f'{stack}_output': Keep(reduce=_mean_square) for stack in self._stacks}
        _, found = self._model.apply({'params': params}, *inputs, collect=tuple(keep.items()))
        sums: dict[str, Any] = {'rows': {stack: jnp.sum(real[stack], dtype=jnp.float32) for stack in self._stacks}}
        for stack in self._stacks:
            sums[f'{stack}_output'] = jnp.einsum('NBT,BT->N', found[f'{stack}_output'], real[stack].astype(jnp.float32))
        for kind in self._weights:
            rows_BT = real['encoder' if kind == 'encoder' else 'decoder'].astype(jnp.float32)
            sums[kind] = jnp.einsum('NBHT,BT->NH', found[kind], rows_BT)
        return sums


def gradient_norms(grads: Any) -> dict[str, Array]:
    """{'encoder': [N], 'decoder': [N], 'embedding': [], 'decoder.final_norm': [] …}: norms, summed up in float32."""
    squares: dict[str, Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        first, *rest = sharding.path_name(path).split('/')
        of_layer = rest[:1] == ['layers']
        part = first if of_layer else '.'.join([first, *rest[:1]])
        square = jnp.sum(jnp.square(leaf.astype(jnp.float32)), axis=tuple(range(int(of_layer), leaf.ndim)))
        squares[part] = squares[part] + square if part in squares else square
    return {part: jnp.sqrt(square) for part, square in squares.items()}


def named(found: Found) -> dict[str, float]:
    """'layers/gradient_norm/encoder.1' …: layers counted from 1."""
    numbers: dict[str, float] = {}
    for what, parts in jax.device_get(found).items():
        for part, values in parts.items():
            names = [part] if not np.ndim(values) else [f'{part}.{n + 1}' for n in range(len(values))]
            numbers |= {f'layers/{what}/{name}': float(v) for name, v in zip(names, np.atleast_1d(values), strict=True)}
    return numbers


def _mean_square(x_BTD: Array) -> Array:
    return jnp.mean(jnp.square(x_BTD.astype(jnp.float32)), axis=-1)
