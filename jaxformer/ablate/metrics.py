"""What is known about each metric that a run records: its name in print, which way is better, how it is printed."""

import dataclasses

from jaxformer.decode.error_rates import rate_names
from jaxformer.errors import UserError
from jaxformer.schema import Config


@dataclasses.dataclass(frozen=True)
class Metric:
    """How a metric is shown. `percent`: recorded as a fraction and printed times 100."""

    label: str
    better: str
    percent: bool
    decimals: int

    @property
    def scale(self) -> float:
        return 100.0 if self.percent else 1.0

    def number(self, value: float) -> str:
        """The value as printed, without a unit: 0.2531 → '25.31' for an error rate."""
        return f'{self.scale * value:.{self.decimals}f}'


METRICS = {
    'loss': Metric('loss', 'lower', percent=False, decimals=3),
    'perplexity': Metric('perplexity', 'lower', percent=False, decimals=2),
    'bits_per_byte': Metric('bits per byte', 'lower', percent=False, decimals=3),
    'accuracy': Metric('accuracy', 'higher', percent=True, decimals=2),
    'per': Metric('PER', 'lower', percent=True, decimals=2),
    'wer': Metric('WER', 'lower', percent=True, decimals=2),
    'symbol_errors': Metric('symbol errors', 'lower', percent=True, decimals=2),
    'line_errors': Metric('line errors', 'lower', percent=True, decimals=2),
}
"""By the name after the split: `dev/per` is `per` on the split `dev`. The order is that of the report's columns."""

OF_FAMILY = {'lm': 'loss', 'mlm': 'loss', 'classifier': 'accuracy'}
"""By model.family: what a grid is judged by where it does not say; of seq2seq the rate of wrong symbols."""

UNITS = ('data.tokenizer', 'data.tokenizer_size', 'data.tokenizer_file', 'train.masking.rate', 'eval.split')
"""Fields that say what a loss or a rate is of: cells that differ in them cannot be compared by it."""


def of_grid(name: str | None, config: Config) -> str:
    """The key of a grid's metric: `name` with its split or on eval.split, the family's own where it is None.

    Raises:
      UserError: an unknown metric.
    """
    family = config.model.family
    key = name or (rate_names(config.data.name)[0] if family == 'seq2seq' else OF_FAMILY[family])
    key = key if '/' in key else f'{config.eval.split}/{key}'
    lookup(key)
    return key


def lookup(key: str) -> Metric:
    """The metric of a recorded key such as `dev/per`. Raises UserError where the table does not know it."""
    name = key.rpartition('/')[2]
    if name not in METRICS:
        raise UserError(f'metric {key!r}: unknown; choose one of {", ".join(METRICS)} after the split, as in dev/per')
    return METRICS[name]


def title(key: str) -> str:
    """`dev/per` → 'dev PER'."""
    return f'{key.rpartition("/")[0]} {lookup(key).label}'.strip()
