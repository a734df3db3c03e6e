"""Scores of a finished or running run's checkpoint on a whole split."""

import os

from jaxformer.data import corpus as corpora
from jaxformer.data import special_ids
from jaxformer.data.splits import PairSplit
from jaxformer.decode.open import on_every_device, open_run
from jaxformer.decode.predict import Decoder
from jaxformer.train.directory import refuse_another_vocabulary
from jaxformer.train.evaluate import Evaluator


def score(workdir: str | os.PathLike, step: int | None = None, split: str | None = None) -> dict[str, float]:
    """Loss, perplexity, accuracy, and of sequences error rates by greedy decoding; examples and tokens they rest on.

    Args:
      workdir: a run directory. step: the newest whole checkpoint without it. split: the config's eval.split without it.

    Raises:
      UserError: no such run, step or split. RunError: no whole checkpoint.
    """
    run = open_run(workdir, step)
    corpus = corpora.load(run.cfg.data)
    special_ids.refuse_others(run.cfg.model, run.cfg.data, corpus.vocab.ids)
    refuse_another_vocabulary(run.workdir, corpus.vocab)
    examples = corpus.split(split or run.cfg.eval.split)
    mesh, params = on_every_device(run)
    metrics = Evaluator(run.cfg, run.model, mesh).split_losses(params, examples)
    if isinstance(examples, PairSplit):
        metrics |= Decoder(run.cfg, run.model, corpus.vocab, mesh).split_error_rates(params, examples)
    return {'step': run.step, **{f'{examples.name}/{name}': value for name, value in metrics.items()}}
