"""Text lines through a run's newest whole checkpoint: a list of them, or a stream."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from absl import logging

from jaxformer.data import corpus as corpora
from jaxformer.data.splits import PairSplit
from jaxformer.decode.continuation import Continuation
from jaxformer.decode.labels import Labels
from jaxformer.decode.open import changed, on_every_device, open_run, read_config
from jaxformer.decode.predict import Decoder
from jaxformer.decode.stream import Lines, Progress
from jaxformer.errors import UserError

BY_FAMILY: Mapping[str, Any] = {'seq2seq': Decoder, 'lm': Continuation, 'classifier': Labels}
"""model.family → what makes output lines of input lines."""

_BATCHES = 16  # sorted by length together
_BYTES = 64  # of a symbol, at most: a line with more for each that may be is not read


class Writer:
    """What writes lines with a run."""

    def __init__(
        self, workdir: str | os.PathLike, step: int | None = None, changes: Mapping[str, Any] | None = None
    ) -> None:
        """changes: fields of eval in place of the config's, {'eval.search': 'beam'}.

        Raises:
          UserError: a family that writes nothing (mlm), or a change of other fields.
        """
        run = changed(open_run(workdir, step, keep_int8=True), changes or {}, 'decode', ('eval.',))
        if run.cfg.model.family not in BY_FAMILY:
            raise UserError(
                f'{workdir}: a run of model.family={run.cfg.model.family}, which writes no text; '
                f'decode takes one of {", ".join(BY_FAMILY)}'
            )
        mesh, self._params = on_every_device(run)
        self._made = BY_FAMILY[run.cfg.model.family](run.cfg, run.model, run.vocab, mesh)
        self._cfg = run.cfg.eval
        self._number = self._unknown = self._with_unknown = 0

    def stream(self, source: BinaryIO, write: Callable[[bytes], Any], num_bytes: int = 0) -> None:
        """Writes a line (n best: or several) for each line of `source`, in order, as soon as those there are decoded.

        Lines are read, sorted by length and decoded in windows, so that the memory does not grow with their number. A
        line that is too long for the model is named in a warning, and an empty line stands for it. What comes as a line
        is said in `stream.py`.

        Args:
          num_bytes: of the source, 0 where nobody knows.
        """
        lines = Lines(source, _BYTES * self._cfg.max_source_length)
        progress = Progress(sys.stderr, num_bytes)
        self._made.reading.lenient = True
        while window := lines.window(_BATCHES * self._cfg.batch_size):
            for index, line in enumerate(window):
                if line.too_long:
                    reason = f'{line.too_long} bytes are more than {_BYTES} for each symbol of config.eval.'
                    self._made.reading.leave_out(
                        self._number + index, f'{reason}max_source_length={self._cfg.max_source_length}'
                    )
            outputs = self.lines([line.text for line in window])
            write(''.join(f'{output}\n' for output in outputs).encode(errors='replace'))
            progress.show(self._number, lines.num_bytes)
        progress.end()
        if lines.damaged:
            logging.warning(
                '%d of %d lines are not UTF-8: bytes that are not are read as U+FFFD', lines.damaged, self._number
            )
        self.warn()

    def lines(self, lines: Sequence[str]) -> list[str]:
        """What the model makes of each of the next lines, in order."""
        outputs = list(self._made.lines(self._params, lines, self._number))
        self._number += len(outputs)
        counts = [count for _, count in outputs]
        self._unknown += sum(counts)
        self._with_unknown += sum(map(bool, counts))
        return [output for output, _ in outputs]

    def warn(self) -> None:
        """Says what is unusual about all lines so far."""
        if left_out := self._made.reading.left_out:
            logging.warning('%d of %d lines are too long and left out: empty lines', left_out, self._number)
        if isinstance(self._made, Decoder) and self._made.cut:
            logging.warning(
                '%d of %d outputs are cut at config.eval.max_decode_length=%d; raise it for whole ones',
                self._made.cut, self._number, self._cfg.max_decode_length,
            )  # fmt: skip
        if self._unknown:
            logging.warning(
                '%d symbols in %d lines are not in the vocabulary: read as unknown', self._unknown, self._with_unknown
            )


def decode_lines(
    workdir: str | os.PathLike, step: int | None, lines: Sequence[str], changes: Mapping[str, Any] | None = None
) -> list[str]:
    """What the model makes of each line, in order; a blank line gives an empty one.

    Of seq2seq the output and of lm the continuation that eval.search finds, of a classifier the class (or that of each
    token). Symbols that the run's vocabulary does not have are read as unknown and counted in a warning.

    Args:
      changes: as of `Writer`.

    Raises:
      UserError: as `Writer`, or a line that is too long for the model.
    """
    writer = Writer(workdir, step, changes)
    outputs = writer.lines(lines)
    writer.warn()
    return outputs


def sources(workdir: str | os.PathLike, split: str) -> contextlib.AbstractContextManager[tuple[BinaryIO, int]]:
    """The sources of a split of a run's own data as lines, in its order, as `data.text.opened` gives those of a file.

    Raises:
      UserError: no such run or split, or data that are no pairs.
    """
    data = corpora.untaught(read_config(workdir).data)  # the pairs that a student's targets are made of
    found = corpora.load(data).split(split)
    if not isinstance(found, PairSplit):
        raise UserError(f'--split={split}: data.name={data.name} has no sources, as pairs have; give --input')
    lines = (found.source_text(index).replace('\n', ' ') for index in range(len(found)))  # a line stays one
    content = ''.join(f'{line}\n' for line in lines).encode()
    return contextlib.nullcontext((io.BytesIO(content), len(content)))
