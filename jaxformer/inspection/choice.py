"""Which attention is looked at: of the encoder, the decoder or across, and of which layers, heads and rows."""

import dataclasses

from jaxformer.errors import UserError
from jaxformer.model.heads import left
from jaxformer.model.keep import KINDS, Keep
from jaxformer.model.stack import WEIGHING
from jaxformer.schema import ModelConfig

Numbers = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Numbers from 0, as in arrays; None: all there are."""

    kinds: tuple[str, ...] = KINDS
    layers: Numbers | None = None
    heads: Numbers | None = None
    rows: Numbers | None = None

    def keep(self, model: ModelConfig) -> dict[str, Keep]:
        """What is to be kept of each chosen kind that the model has.

        Raises:
          UserError: the model has none of the chosen, or no such layer or head.
        """
        sizes = {kind: size for kind, size in attending(model).items() if kind in self.kinds}
        if not sizes:
            there = ', '.join(attending(model)) or 'none: its mixers have no weight for every key'
            raise UserError(f'{"/".join(self.kinds)}: no such attention in this model; it has: {there}')
        for kind, size in sizes.items():
            for what, numbers, most in (('layer', self.layers, size[0]), ('head', self.heads, size[1])):
                if bad := [number for number in numbers or () if not 0 <= number < most]:
                    raise UserError(f'{what} {bad[0] + 1}: the {kind} attention has {what}s 1 to {most}')
        return {kind: Keep(self.layers, self.heads, self.rows) for kind in sizes}


ALL = Choice()


def attending(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """{kind: (layers, heads)} of the attention of a model that has a weight for every key."""
    found = {}
    if model.family != 'lm' and model.encoder_mixer in WEIGHING:
        found['encoder'] = model.encoder_layers, len(left(model, 'encoder')[0])
    if model.family in ('seq2seq', 'lm') and model.decoder_mixer in WEIGHING:
        found['decoder'] = model.decoder_layers, len(left(model, 'decoder')[0])
    if model.family == 'seq2seq':
        found['cross'] = model.decoder_layers, len(left(model, 'cross')[0])
    return found


def parse(
    which: str | None = None, layers: str | None = None, heads: str | None = None, rows: str | None = None
) -> Choice:
    """The choice that flags ask for: 'cross' or 'encoder,cross'; numbers from 1, as in '1,3'.

    Raises:
      UserError: another kind, or what is no list of numbers.
    """
    kinds = tuple(which.split(',')) if which else KINDS
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UserError(f'--which={which}: {unknown[0]!r} is none of {", ".join(KINDS)}')
    return Choice(kinds, _numbers('layers', layers), _numbers('heads', heads), _numbers('rows', rows))


def _numbers(flag: str, text: str | None) -> Numbers | None:
    if not text:
        return None
    try:
        numbers = [int(part) for part in text.split(',')]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise UserError(f'--{flag}={text}: not numbers from 1 without repetition, as in 1,3')
    return tuple(number - 1 for number in numbers)
