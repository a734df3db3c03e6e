"""Whether the special ids of a vocabulary are there, and are those that the model is told of."""

from jaxformer.data import sources
from jaxformer.data.ids import Ids
from jaxformer.data.tokenizer_file import NAMES
from jaxformer.errors import UserError
from jaxformer.schema import DataConfig, ModelConfig


def refuse_missing(data: DataConfig, ids: Ids) -> None:
    """Raises UserError where a tokenizer file has no end of a text, or no begin where rows have one (labelled data)."""
    needed = ('bos', 'eos') if sources.find(data.name).kind == 'labelled' else ('eos',)
    for role in needed:
        if getattr(ids, role) < 0:
            raise UserError(
                f'config.data.tokenizer_file={data.tokenizer_file}: {_none_of(role)}; '
                f'name it as {role}_token in tokenizer_config.json beside it, or use another tokenizer.json'
            )


def refuse_others(model: ModelConfig, data: DataConfig, ids: Ids) -> None:
    """Raises UserError where model.ids are not those of the data.

    The padding has to be that of the rows, the mask (of mlm) and the start (of lm, where the vocabulary has a begin)
    those of the vocabulary. What a decoder of pairs starts with is the model's own affair.
    """
    wanted = {'pad': ('pad', ids.pad)}
    if model.family == 'lm' and ids.bos >= 0:
        wanted['start'] = 'bos', ids.bos
    if model.family == 'mlm':
        wanted['mask'] = 'mask', ids.mask
    of_file = data.tokenizer == 'file'
    where = 'config.data.' + (f'tokenizer_file={data.tokenizer_file}' if of_file else f'tokenizer={data.tokenizer}')
    for name, (role, id_) in wanted.items():
        if name == 'mask' and id_ < 0:
            raise UserError(f'{where}: {_none_of(role)}, which model.family=mlm needs; use another one')
        if (told := getattr(model.ids, name)) != id_:
            there = f'has {id_}' if id_ >= 0 else _none_of(role)
            raise UserError(f'config.model.ids.{name}={told}: {where} {there}; set config.model.ids.{name}={id_}')


def _none_of(role: str) -> str:
    return f'has no special token for {role} ({" or ".join(NAMES[role])})'
