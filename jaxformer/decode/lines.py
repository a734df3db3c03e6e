"""Text lines through a run's newest whole checkpoint."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from jaxformer.decode.continuation import Continuation
from jaxformer.decode.labels import Labels
from jaxformer.decode.open import changed, on_every_device, open_run
from jaxformer.decode.predict import Decoder
from jaxformer.errors import UserError

BY_FAMILY: Mapping[str, Any] = {'seq2seq': Decoder, 'lm': Continuation, 'classifier': Labels}
"""model.family → what makes output lines of input lines."""


def decode_lines(
    workdir: str | os.PathLike, step: int | None, lines: Sequence[str], changes: Mapping[str, Any] | None = None
) -> list[str]:
    """What the model makes of each line, in order; a blank line gives an empty one.

    Of seq2seq the output and of lm the continuation that eval.search finds, of a classifier the class (or that of each
    token). Symbols that the run's vocabulary does not have are read as unknown and counted in a warning.

    Args:
      changes: fields of eval in place of the config's, {'eval.search': 'beam'}.

    Raises:
      UserError: a family that writes nothing (mlm), a line that is too long for the model, or a change of other fields.
    """
    run = changed(open_run(workdir, step), changes or {}, 'decode', ('eval.',))
    if run.cfg.model.family not in BY_FAMILY:
        raise UserError(
            f'{workdir}: a run of model.family={run.cfg.model.family}, which writes no text; '
            f'decode takes one of {", ".join(BY_FAMILY)}'
        )
    mesh, params = on_every_device(run)
    outputs = list(BY_FAMILY[run.cfg.model.family](run.cfg, run.model, run.vocab, mesh).lines(params, lines))
    if unknown := [count for _, count in outputs if count]:
        logging.warning('%d symbols in %d lines are not in the vocabulary: read as unknown', sum(unknown), len(unknown))
    return [output for output, _ in outputs]
