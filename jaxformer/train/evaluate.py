"""Loss, perplexity and accuracy over a whole split: every label counts once, whatever the batch size."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer import losses, objectives, sharding
from jaxformer.config import Config
from jaxformer.data import too_few
from jaxformer.data.corpus import Split
from jaxformer.data.pipeline import EvalBatches, eval_batches
from jaxformer.data.splits import TextSplit
from jaxformer.errors import RunError, UserError
from jaxformer.model.family import Family
from jaxformer.runtime import CountedJit


class Evaluator:
    """Teacher-forced evaluation with one compiled program per bucket."""

    def __init__(self, cfg: Config, model: Family, mesh: Mesh) -> None:
        self._cfg, self._model, self._mesh = cfg, model, mesh
        self._objective = objectives.of(cfg, model.vocab_size)
        self._rows = sharding.whole_rows(cfg.eval.batch_size, mesh)
        self.sums = CountedJit(self._sums)

    def batches(self, split: Split) -> EvalBatches:
        """The batches of a split.

        Raises:
          UserError: it has no example, or none that fits the buckets: every number about it would be an invention.
        """
        batches = eval_batches(split, self._cfg.data.buckets, self._rows, jax.process_index(), jax.process_count())
        too_few.refuse(self._cfg.data, split.name, batches.num_examples + batches.skipped)
        if not batches.num_examples:
            buckets = self._cfg.data.buckets
            raise UserError(f'config.data.buckets={buckets}: no example of {split.name} fits; add a larger one')
        return batches

    def _sums(self, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Sums over a batch, to be added up: negative log-likelihood (nats), right labels, labels, examples."""
        inputs, labels_BT, weights_BT = self._objective(batch, None)
        logits_BTV, _ = self._model.apply({'params': params}, *inputs)
        return {
            'nll': losses.cross_entropy(logits_BTV, labels_BT, weights_BT),
            'correct': losses.count_correct(logits_BTV, labels_BT, weights_BT),
            'tokens': jnp.sum(weights_BT),
            'examples': jnp.sum(batch['example_id'] >= 0),
        }

    def _per_byte(self, split: Split, nll: float) -> dict[str, float]:
        """bits_per_byte of a text that is guessed whole: the loss that compares over tokenizers."""
        if not isinstance(split, TextSplit) or self._cfg.model.family != 'lm' or not split.num_bytes:
            return {}
        return {'bits_per_byte': nll / math.log(2) / split.num_bytes}

    def split_losses(self, params: Any, split: Split) -> dict[str, float]:
        """loss (nats per label, without smoothing), perplexity, accuracy; tokens and examples that they rest on.

        Of a classifier labels in the place of tokens; of a language model also bits_per_byte of the text, its ends of
        documents paid for, where the tokenizer keeps all of it.

        Raises:
          RunError: no label counts (of mlm, no token happens to be masked).
        """
        sums: dict[str, float] = {'nll': 0.0, 'correct': 0.0, 'tokens': 0.0, 'examples': 0.0}
        for batch in self.batches(split):
            part = jax.device_get(self.sums(params, sharding.put_batch(batch, self._mesh)))
            sums = {name: total + float(part[name]) for name, total in sums.items()}
        if not sums['tokens']:
            raise RunError(
                f'{split.name}: none of its {sums["examples"]:.0f} examples has a label that counts; give more'
            )
        loss = sums['nll'] / sums['tokens']
        return {
            'loss': loss,
            'perplexity': math.exp(min(loss, 700.0)),
            'accuracy': sums['correct'] / sums['tokens'],
            **self._per_byte(split, sums['nll']),
            objectives.counted(self._cfg.model.family): sums['tokens'],
            'examples': sums['examples'],
        }
