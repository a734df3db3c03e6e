"""Scores of a finished or running run's checkpoint on a whole split, of its own data or of other."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import logging

from jaxformer.data import corpus as corpora
from jaxformer.data import special_ids
from jaxformer.data.corpus import Split
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import OpenRun, changed, on_every_device, open_run
from jaxformer.errors import UserError
from jaxformer.train.directory import other_data, refuse_another_vocabulary
from jaxformer.train.measures import Measured, measure


class Subject(NamedTuple):
    """A checkpoint, and the split by which it is to be judged. vocab: that of the data, equal to the run's."""

    run: OpenRun
    vocab: Vocabulary
    split: Split

    def measured(self) -> Measured:
        """What `measures.measure` says of it."""
        mesh, params = on_every_device(self.run)
        return measure(self.run, params, self.vocab, self.split, mesh)


def score(
    workdir: str | os.PathLike,
    step: int | None = None,
    split: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The metrics of `subject`, by '<split>/<name>', and its step."""
    found = subject(workdir, step, split, changes)
    named = {f'{found.split.name}/{name}': value for name, value in found.measured().metrics.items()}
    return {'step': found.run.step, **named}


def subject(
    workdir: str | os.PathLike,
    step: int | None = None,
    split: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Subject:
    """A checkpoint with a whole split by which it can be judged; evaluates nothing.

    Args:
      workdir: a run directory. step: the newest whole checkpoint without it. split: the config's eval.split without it.
      changes: fields of data and eval in place of the config's, {'data.source': 'file'}.

    Raises:
      UserError: no such run, step or split, or the data is not in the symbols of the run.
      RunError: no whole checkpoint.
    """
    run = changed(open_run(workdir, step, keep_int8=True), changes or {}, 'eval', ('data.', 'eval.'))
    split = split or run.cfg.eval.split
    other = any(field.startswith('data.') for field in changes or {})
    imported = run.vocab.tokenizer == 'file'
    if imported and not run.vocab.definition:
        raise UserError(
            f'{run.workdir}: imported without a tokenizer.json: only ids, and no data can be read; '
            'import the model again from a directory that has one'
        )
    try:
        corpus = corpora.load_for(run.cfg.data, split)
    except UserError as error:
        if other or not imported:
            raise
        raise UserError(f'{error}. {_remedy(run)}') from error
    if imported and not other and corpus.vocab.classes != run.vocab.classes:
        raise UserError(f'{run.workdir}: its classes are not those of data.name={run.cfg.data.name}. {_remedy(run)}')
    special_ids.refuse_others(run.cfg.model, run.cfg.data, corpus.vocab.ids)
    refuse_another_vocabulary(run.workdir, corpus.vocab, other)
    if not other and (difference := other_data(run.cfg, run.workdir, split)):
        logging.warning('%s: evaluated on data that changed since the run began (%s)', run.workdir, difference)
    return Subject(run, corpus.vocab, corpus.split(split))


def own_data(family: str) -> list[str]:
    """The arguments that name data of the user's for a family of models."""
    name = {'seq2seq': 'parallel', 'classifier': 'labelled'}.get(family, 'text')
    fields = ('source', 'target') if name == 'parallel' else ('source',)
    return [f'--config.data.name={name}', *(f'--config.data.{field}=FILE' for field in fields)]


def _remedy(run: OpenRun) -> str:
    data = ' '.join(own_data(run.cfg.model.family))
    return f'An import has no data of its own; give some: jaxformer eval --workdir={run.workdir} {data}'
