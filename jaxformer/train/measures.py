"""What a checkpoint does with a split, as sums over its examples: numbers, their intervals, and differences of two."""

import dataclasses
import math
from typing import Any

import numpy as np
from absl import logging
from jax.sharding import Mesh

from jaxformer.data.corpus import Split
from jaxformer.data.splits import PairSplit, TextSplit
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import text_scores
from jaxformer.decode.bootstrap import Measure, interval, ratio
from jaxformer.decode.error_rates import rate_names
from jaxformer.decode.open import OpenRun
from jaxformer.decode.predict import Decoder
from jaxformer.train.evaluate import Evaluator

DECODED = ('bleu', 'per', 'wer', 'symbol_errors', 'line_errors')
"""Measures that come with an interval."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """metrics: by name. measures: those of them that are functions of sums over examples. example_id: int64 [n]."""

    metrics: dict[str, Any]
    measures: dict[str, Measure]
    example_id: np.ndarray


def measure(run: OpenRun, params: Any, vocab: Vocabulary, split: Split, mesh: Mesh) -> Measured:
    """Loss, perplexity (of text whose words are known also per word), accuracy; of sequences what decoding gives.

    That is error rates, the share of outputs that the limit of length cut off, and of translations BLEU and chrF of the
    texts that the symbols stand for.
    """
    evaluator = Evaluator(run.cfg, run.model, mesh)
    examples = evaluator.examples(params, split)
    metrics: dict[str, Any] = evaluator.totals(examples, split)
    measures = {
        'loss': ratio(examples['nll'], examples['tokens']),
        'accuracy': ratio(examples['correct'], examples['tokens']),
    }
    if isinstance(split, PairSplit):
        decoder = Decoder(run.cfg, run.model, vocab, mesh)
        outputs = decoder.outputs(params, split)
        wrong = decoder.errors(outputs, split)
        metrics |= decoder.totals(wrong) | {'truncated': float(outputs.truncated.mean())}
        names = rate_names(run.cfg.data.name)
        measures |= {names[0]: ratio(wrong['errors'], wrong['symbols']), names[1]: ratio(wrong['wrong'])}
        if names != rate_names('cmudict'):  # lines of text
            references = [split.reference_texts(int(i)) for i in outputs.example_id]
            texts = [' '.join(text.split('\n')) for text in outputs.texts]
            text_scores.warn_of_tokenised(f'references of {split.name}', [first for first, *_ in references])
            metrics |= text_scores.corpus_scores(texts, references)
            measures['bleu'] = text_scores.bleu_measure(texts, references)
            words = np.array([len(first.split()) + 1 for first, *_ in references])
            measures['perplexity_per_word'] = _per_word(examples['nll'], words)
    elif isinstance(split, TextSplit) and run.cfg.model.family == 'lm' and split.num_bytes:
        documents = map(split.documents.__getitem__, range(len(split.documents)))
        total = sum(len(vocab.join(vocab.decode(ids.tolist())).split()) + 1 for ids in documents)
        metrics['perplexity_per_word'] = math.exp(min(float(examples['nll'].sum()) / total, 700.0))
    if 'perplexity_per_word' in measures:
        metrics['perplexity_per_word'] = measures['perplexity_per_word'].whole()
    if len(examples['example_id']) > 1:
        for name in DECODED:
            if name in measures:
                metrics[f'{name}_low'], metrics[f'{name}_high'] = interval(measures[name])
    else:
        logging.warning('%s: one example, so no interval', split.name)
    return Measured(metrics, measures, examples['example_id'])


def _per_word(nll: np.ndarray, words: np.ndarray) -> Measure:
    """exp(Σ nll / Σ words): the ends of lines are words, too, as they are guessed."""
    added = np.stack([nll, words], axis=1).astype(np.float64)
    return Measure(added, lambda sums: math.exp(min(float(sums[0] / sums[1]), 700.0)))
