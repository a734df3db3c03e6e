"""AIAYN Table 3, every row, at the size of the paper.

Question: what do heads, key width, depth, width, dropout, label smoothing and learned positions cost or bring?
Command:  jaxformer plan --grid=experiments/table3.py --workdir=runs/table3
          jaxformer ablate --grid=experiments/table3.py --workdir=runs/table3 --seeds=3
          on two files of your own, line by line (train, dev and test in place of {split}):
          … --config.data.name=parallel '--config.data.source=my.{split}.en' '--config.data.target=my.{split}.de'
          --config.model.vocab_size=0 (tables of as many rows as the data has symbols)
Result:   the paper's perplexity, BLEU and parameter count stand beside ours. Its training of 100,000 updates a cell
          wants accelerators and the WMT14 data (by their TFDS name); the plan counts the parameters of all rows
          without either. experiments/table3_toy.py runs the same rows on CMUdict.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from configs import base as base_config
from jaxformer import config as config_lib
from jaxformer.ablate.count import parameter_count
from jaxformer.ablate.grid import Overrides
from jaxformer.rules import refused

REFERENCE = 'AIAYN, Table 3 (English to German, newstest2013; parameters in millions)'
METRIC = 'perplexity'

COUNTED = {'base': 41_100, 'big': 36_000}
"""Rows of the vocabulary at which the parameters come out as printed; `notes` says for which others they do."""

SAID = 37_000  # symbols, AIAYN 5.1


def get_config() -> ConfigDict:
    config = base_config.get_config()
    config.model.vocab_size = COUNTED['base']
    config.train.batch_size = 1024  # sequences; the paper's batches hold about 25,000 tokens a side
    config.data.name = 'wmt14_translate/de-en'
    config.data.source = 'en'
    config.data.target = 'de'
    config.data.tokenizer = 'bpe'
    config.data.tokenizer_size = COUNTED['big']  # the same symbols for every row of the table
    config.data.buckets = ((16, 16), (24, 24), (32, 32), (48, 48), (64, 64), (128, 128))
    config.eval.max_decode_length = 128
    return config


class Row(NamedTuple):
    """A row of the table: what it changes, and what the paper prints (parameters in millions)."""

    name: str
    changes: Overrides
    perplexity: float
    bleu: float
    parameters: int | None


def rows(config: ConfigDict) -> list[Row]:
    """The table's rows relative to a base.

    Raises:
      UserError: the base's heads, layers or keys are not such that the rows divide them.
    """
    model = config.model
    for field, divisor in (('num_heads', 8), ('num_layers', 3), ('d_k', 4)):
        if not model[field] or model[field] % divisor:
            raise refused(f'model.{field}', model[field], f'a multiple of {divisor}, which rows of the table divide')
    heads, layers, d_k, d_model, d_ff = model.num_heads, model.num_layers, model.d_k, model.d_model, model.d_ff
    big = {'model.d_model': 2 * d_model, 'model.d_ff': 2 * d_ff, 'model.num_heads': 2 * heads, **dropout(0.3)}
    big |= {'train.num_steps': 3 * config.train.num_steps}
    if model.vocab_size == COUNTED['base']:
        big |= {'model.vocab_size': COUNTED['big']}
    return [
        Row('base', {}, 4.92, 25.8, 65),
        Row('A', {'model.num_heads': heads // 8}, 5.29, 24.9, None),
        Row('A', {'model.num_heads': heads // 2}, 5.00, 25.5, None),
        Row('A', {'model.num_heads': 2 * heads}, 4.91, 25.8, None),
        Row('A', {'model.num_heads': 4 * heads}, 5.01, 25.4, None),
        Row('B', {'model.d_k': d_k // 4}, 5.16, 25.1, 58),
        Row('B', {'model.d_k': d_k // 2}, 5.01, 25.4, 60),
        Row('C', {'model.num_layers': layers // 3}, 6.11, 23.7, 36),
        Row('C', {'model.num_layers': 2 * layers // 3}, 5.19, 25.3, 50),
        Row('C', {'model.num_layers': 4 * layers // 3}, 4.88, 25.5, 80),
        Row('C', {'model.d_model': d_model // 2}, 5.75, 24.5, 28),
        Row('C', {'model.d_model': 2 * d_model}, 4.66, 26.0, 168),
        Row('C', {'model.d_ff': d_ff // 2}, 5.12, 25.4, 53),
        Row('C', {'model.d_ff': 2 * d_ff}, 4.75, 26.2, 90),
        Row('D', dropout(0.0), 5.77, 24.6, None),
        Row('D', dropout(0.2), 4.95, 25.5, None),
        Row('D', {'optim.label_smoothing': 0.0}, 4.67, 25.3, None),
        Row('D', {'optim.label_smoothing': 0.2}, 5.47, 25.7, None),
        Row('E', {'model.position': 'learned'}, 4.92, 25.7, None),
        Row('big', big, 4.33, 26.4, 213),
    ]


def dropout(rate: float) -> Overrides:
    """P_drop of the paper: on each sublayer's output, and on the sum of embedding and position."""
    return {'model.dropout.residual': rate, 'model.dropout.embedding': rate}


def grid(base: ConfigDict) -> Iterator[Overrides]:
    return (row.changes for row in rows(base))


def reference(base: ConfigDict) -> Iterator[dict[str, float | str]]:
    return figures(rows(base))


def figures(table: list[Row]) -> Iterator[dict[str, float | str]]:
    """What the paper prints of each row."""
    for row in table:
        printed: dict[str, float | str] = {
            'paper row': row.name,
            'paper PPL': row.perplexity,
            'paper BLEU': row.bleu,
        }
        yield printed if row.parameters is None else {**printed, 'paper params': row.parameters}


def notes() -> Iterator[str]:
    """What the printed parameter counts imply about the vocabulary, by counting."""
    counted = [row for row in rows(get_config()) if row.parameters is not None]
    printed = {name(row): row.parameters for row in counted if row.parameters is not None}
    sizes = {name(row): by_vocabulary(row.changes) for row in counted}
    ranges = {key: vocabularies(sizes[key], millions) for key, millions in printed.items()}
    *small, big = printed
    low, high = max(ranges[key][0] for key in small), min(ranges[key][1] for key in small)
    said = sum(round(sizes[key](SAID) / 1e6) == printed[key] for key in small)
    yield (
        'The printed parameter counts and the vocabulary. With one table for source, target and softmax, and biases in '
        f'feed-forward and norms only, all {len(small)} counts of the rows base to C come out after rounding for '
        f'{low:,} to {high:,} symbols and for no other number; the {SAID:,} of section 5.1 give {said} of the '
        f'{len(small)}. The count of {big} needs {ranges[big][0]:,} to {ranges[big][1]:,} symbols: no vocabulary gives '
        f'all {len(printed)}.'
    )
    columns = (COUNTED['base'], COUNTED['big'], SAID)
    lines = [f'Millions of parameters as printed, and counted at {", ".join(f"{V:,}" for V in columns)} symbols:']
    for key, millions in printed.items():
        ours = ', '.join(f'{sizes[key](V) / 1e6:.1f}' for V in columns)
        lines.append(f'- {key}: {millions}; {ours} ({ranges[key][0]:,} to {ranges[key][1]:,} give {millions})')
    yield '\n'.join(lines)


def name(row: Row) -> str:
    """'C d_ff=1024'; base and big by their name alone."""
    field, value = next(iter(row.changes.items()), ('', None))
    return row.name if row.name in ('base', 'big') else f'{row.name} {field.rpartition(".")[2]}={value}'


def by_vocabulary(changes: Mapping[str, Any]) -> Callable[[int], int]:
    """The parameter count of a row as a function of V, the symbols, each of which costs one vector."""

    def counted(V: int) -> int:
        config = get_config()
        config_lib.override(config, {**changes, 'model.vocab_size': V, 'data.tokenizer_size': V})
        return parameter_count(config_lib.resolve(config))

    few, more = 1000, 3000
    per_symbol = (counted(more) - counted(few)) // (more - few)
    rest = counted(few) - few * per_symbol
    return lambda V: rest + per_symbol * V


def vocabularies(size: Callable[[int], int], millions: int) -> tuple[int, int]:
    """The least and the greatest V for which `size(V)` (linear) rounds to so many millions."""
    rest, per_symbol = size(0), size(1) - size(0)
    low, high = (math.ceil(((millions + half) * 10**6 - rest) / per_symbol) for half in (-0.5, 0.5))
    return low, high - 1
