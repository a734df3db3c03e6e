"""Scores of a finished or running run's checkpoint on a whole split."""

import os

from jaxformer import runtime, sharding
from jaxformer.config import MeshConfig
from jaxformer.data import corpus as corpora
from jaxformer.decode.open import open_run
from jaxformer.decode.predict import Decoder
from jaxformer.train.evaluate import Evaluator


def score(workdir: str | os.PathLike, step: int | None = None, split: str | None = None) -> dict[str, float]:
    """Loss, perplexity, accuracy, and error rates by greedy decoding, with the examples and tokens they rest on.

    Args:
      workdir: a run directory. step: the newest whole checkpoint without it. split: the config's eval.split without it.

    Raises:
      UserError: no such run, step or split. RunError: no whole checkpoint.
    """
    run = open_run(workdir, step)
    runtime.configure(run.cfg.runtime)
    corpus = corpora.load(run.cfg.data)
    examples = corpus.split(split or run.cfg.eval.split)
    mesh = sharding.make_mesh(MeshConfig(data=-1, fsdp=1, model=1, seq=1))  # whatever is here, not what it trained on
    metrics = Evaluator(run.cfg, run.model, mesh).split_losses(run.params, examples)
    metrics |= Decoder(run.cfg, run.model, corpus.vocab, mesh).split_error_rates(run.params, examples)
    return {'step': run.step, **{f'{examples.name}/{name}': value for name, value in metrics.items()}}
