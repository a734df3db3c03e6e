"""What is known about each metric that a run records: its name in print, which way is better, how it is printed."""

import dataclasses

from jaxformer.errors import UserError


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
}
"""By the name after the split: `dev/per` is `per` on the split `dev`. The order is that of the report's columns."""

OF_FAMILY = {'seq2seq': 'per', 'lm': 'loss', 'mlm': 'loss', 'classifier': 'accuracy'}
"""By model.family: what a grid is judged by where it does not say."""


def of_grid(name: str | None, family: str, split: str) -> str:
    """The key of a grid's metric: `name` with its split or on `split`, the family's own where it is None.

    Raises:
      UserError: an unknown metric.
    """
    key = name or OF_FAMILY[family]
    key = key if '/' in key else f'{split}/{key}'
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
