"""Lines of text as symbol ids: which of them are blank, and which are too long."""

from collections.abc import Callable, Sequence

from absl import logging

from jaxformer.data.sources import source_symbols
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.schema import Config

_NAMED = 10  # lines that are left out and named one by one


class Reading:
    """Encodes lines for the model of a run, and refuses those for which it has no room.

    lenient: leave such a line out (an empty one takes its place) and name it in a warning; else it is an error.
    left_out: how many were.
    """

    def __init__(self, cfg: Config, vocab: Vocabulary, no_room: Callable[[int], str]) -> None:
        """no_room: number of symbols → what there is no room for, '' where there is."""
        self._cfg, self._vocab, self._no_room = cfg, vocab, no_room
        self.lenient = False
        self.left_out = 0

    def __call__(self, lines: Sequence[str], first: int = 0) -> list[list[int]]:
        """The ids of each line; none of a blank one, and none of one that is left out.

        Args:
          first: number of the first line, from 0, for messages.

        Raises:
          UserError: a line is too long; before anything is decoded.
        """
        encoded = [self._vocab.encode(source_symbols(self._cfg.data.name, self._vocab, line)) for line in lines]
        for index, tokens in enumerate(encoded):
            if tokens and (reason := self._refusal(len(tokens))):
                if not self.lenient:
                    raise UserError(f'line {first + index + 1}: {len(tokens)} symbols{reason}; shorten the line')
                self.leave_out(first + index, f'{len(tokens)} symbols{reason}')
                encoded[index] = []
        return encoded

    def leave_out(self, number: int, reason: str) -> None:
        """Counts line `number`, from 0, as left out, and names it, unless many were before."""
        self.left_out += 1
        if self.left_out <= _NAMED:
            logging.warning('line %d: %s; an empty line takes its place', number + 1, reason)

    def _refusal(self, length: int) -> str:
        longest = self._cfg.eval.max_source_length
        return f' are more than config.eval.max_source_length={longest}' if length > longest else self._no_room(length)
