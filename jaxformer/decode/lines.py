"""Text lines through a run's newest whole checkpoint."""

import os
from collections.abc import Sequence

from absl import logging

from jaxformer.decode.open import on_every_device, open_run
from jaxformer.decode.predict import Decoder


def decode_lines(workdir: str | os.PathLike, step: int | None, lines: Sequence[str]) -> list[str]:
    """The greedy output of each line, in order; a blank line gives an empty one.

    Source symbols that the run's vocabulary does not have are decoded as unknown and counted in a warning.
    """
    run = open_run(workdir, step)
    mesh, params = on_every_device(run)
    outputs = list(Decoder(run.cfg, run.model, run.vocab, mesh).lines(params, lines))
    if unknown := [count for _, count in outputs if count]:
        logging.warning('%d symbols in %d lines are not in the vocabulary: read as unknown', sum(unknown), len(unknown))
    return [output for output, _ in outputs]
