"""Loss, perplexity and accuracy over a whole split: every label counts once, whatever the batch size."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import losses, objectives, sharding
from jaxformer.data import too_few
from jaxformer.data.corpus import Split
from jaxformer.data.pipeline import EvalBatches, eval_batches
from jaxformer.data.splits import TextSplit
from jaxformer.errors import RunError, UserError
from jaxformer.model.family import Family
from jaxformer.runtime import CountedJit
from jaxformer.schema import Config


class Evaluator:
    """Teacher-forced evaluation with one compiled program per bucket."""

    def __init__(self, cfg: Config, model: Family, mesh: Mesh) -> None:
        self._cfg, self._model, self._mesh = cfg, model, mesh
        self._objective = objectives.of(cfg, model.vocab_size)
        self._rows = sharding.whole_rows(cfg.eval.batch_size, mesh)
        # On every process: the sums of a row lie where the row does, and all of them are added up on each host.
        self.sums = CountedJit(self._sums, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def batches(self, split: Split) -> EvalBatches:
        """The batches of a split.

        Raises:
          UserError: it has no example, or none that fits the buckets: every number about it would be an invention.
        """
        here = sharding.rows_here(self._rows, self._mesh)
        batches = eval_batches(split, self._cfg.data.buckets, self._rows, here)
        too_few.refuse(self._cfg.data, split.name, batches.num_examples + batches.skipped)
        if not batches.num_examples:
            buckets = self._cfg.data.buckets
            raise UserError(f'config.data.buckets={buckets}: no example of {split.name} fits; add a larger one')
        return batches

    def _sums(self, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Sums over each row of a batch [B]: negative log-likelihood (nats), right labels, labels; and its example."""
        inputs, labels_BT, weights_BT = self._objective(batch, None)
        logits_BTV, _ = self._model.apply({'params': params}, *inputs)
        return {
            'example_id': batch['example_id'],
            'nll': jax.vmap(losses.cross_entropy)(logits_BTV, labels_BT, weights_BT),
            'correct': jax.vmap(losses.count_correct)(logits_BTV, labels_BT, weights_BT),
            'tokens': jnp.sum(weights_BT, axis=1),
        }

    def examples(self, params: Any, split: Split) -> dict[str, np.ndarray]:
        """What a split's examples add to its numbers, [n] each, in the order of the split.

        example_id: int64, the place in the split. nll: float64, summed over the labels of the example that count
        (nats). correct, tokens: float64, how many of these labels the model guesses, and how many there are.
        """
        parts = [
            jax.device_get(self.sums(params, sharding.put_batch(batch, self._mesh))) for batch in self.batches(split)
        ]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        ids = columns['example_id'].astype(np.int64)
        order = np.argsort(ids, kind='stable')[np.count_nonzero(ids < 0) :]  # rows that fill up a batch have no example
        return {
            name: (ids if name == 'example_id' else found.astype(np.float64))[order] for name, found in columns.items()
        }

    def _per_byte(self, split: Split, nll: float) -> dict[str, float]:
        """bits_per_byte of a text that is guessed whole: the loss that compares over tokenizers."""
        if not isinstance(split, TextSplit) or self._cfg.model.family != 'lm' or not split.num_bytes:
            return {}
        return {'bits_per_byte': nll / math.log(2) / split.num_bytes}

    def split_losses(self, params: Any, split: Split) -> dict[str, float]:
        """`totals` of `examples`."""
        return self.totals(self.examples(params, split), split)

    def totals(self, examples: Mapping[str, np.ndarray], split: Split) -> dict[str, float]:
        """loss (nats per label, without smoothing), perplexity, accuracy; tokens and examples that they rest on.

        Of a classifier labels in the place of tokens; of a language model also bits_per_byte of the text, its ends of
        documents paid for, where the tokenizer keeps all of it.

        Args:
          examples: as `examples` gives them.

        Raises:
          RunError: no label counts (of mlm, no token happens to be masked).
        """
        nll, correct, tokens = (float(examples[name].sum()) for name in ('nll', 'correct', 'tokens'))
        count = float(len(examples['example_id']))
        if not tokens:
            raise RunError(f'{split.name}: none of its {count:.0f} examples has a label that counts; give more')
        loss = nll / tokens
        return {
            'loss': loss,
            'perplexity': math.exp(min(loss, 700.0)),
            'accuracy': correct / tokens,
            **self._per_byte(split, nll),
            objectives.counted(self._cfg.model.family): tokens,
            'examples': count,
        }
