"""What a configuration costs, by shapes and by formula: nothing is allocated, nothing is traced but the parameters."""

import dataclasses
import functools
import math

from jaxformer.ablate import flops
from jaxformer.schema import Config, DataConfig, ModelConfig


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a run takes; None where it was not counted.

    flops: operations of its training (see `jaxformer.ablate.flops`). tokens: labels that it is trained on, those of the
    target of a pair. batch: sequences per update.
    """

    parameters: int | None
    flops: int | None
    tokens: int | None
    batch: int


def cost(cfg: Config) -> Cost:
    """The cost of a run.

    Raises:
      UserError: the data are needed and cannot be prepared.
    """
    return Cost(parameter_count(cfg), train_flops(cfg), train_tokens(cfg), cfg.train.batch_size)


def parameter_count(cfg: Config) -> int:
    """Number of parameters; what the configuration leaves to the data (symbols, classes) the data are asked for."""
    return _count(cfg.model, *data_sizes(cfg))


def step_flops(cfg: Config) -> float:
    """Floating-point operations of a training step: the mean over the shapes of an epoch's batches.

    Where the configuration leaves nothing to the data (model.vocab_size is set) the data are not asked, and every batch
    counts as one of the largest bucket.
    """
    sizes = data_sizes(cfg)
    shares, _ = _batches(cfg)
    of_bucket = zip(shares, cfg.data.buckets, strict=True)
    mean = math.fsum(share * flops.training(cfg.model, *sizes, bucket) for share, bucket in of_bucket if share)
    return cfg.train.batch_size * mean


def train_flops(cfg: Config) -> int:
    """Floating-point operations of the training of a run, all its steps."""
    return round(cfg.train.num_steps * step_flops(cfg))


def train_tokens(cfg: Config) -> int:
    """Labels that a run is trained on: real ones where the data are asked (see `step_flops`), else all positions."""
    return round(cfg.train.num_steps * _batches(cfg)[1])


def data_sizes(cfg: Config) -> tuple[int, int]:
    """(symbols, classes) of the model: those set, those of the data where 0 is set, 0 classes where there are none.

    Raises:
      UserError: the data are needed and cannot be prepared.
    """
    classified = cfg.model.family == 'classifier'
    vocab_size, num_classes = cfg.model.vocab_size, cfg.model.head.num_classes if classified else 0
    if not asks_data(cfg):
        return vocab_size, num_classes
    from jaxformer.data import corpus

    found = corpus.load(cfg.data)
    return vocab_size or len(found.vocab), num_classes or (len(found.classes) if classified else 0)


def at_hand(cfg: Config) -> bool:
    """Whether the cost can be said without preparing data.

    Raises:
      UserError: what the data are made of is not there.
    """
    if not asks_data(cfg):
        return True
    from jaxformer.data import corpus

    return corpus.prepared_directory(cfg.data).exists()


def asks_data(cfg: Config) -> bool:
    """Whether the configuration leaves the number of symbols or of classes to the data."""
    return not cfg.model.vocab_size or (cfg.model.family == 'classifier' and not cfg.model.head.num_classes)


def _batches(cfg: Config) -> tuple[tuple[float, ...], float]:
    """(share of the batches in each bucket, labels per batch)."""
    if asks_data(cfg):
        from jaxformer.data import corpus

        return _epoch(cfg.data, cfg.train.batch_size, str(corpus.prepared_directory(cfg.data)))
    largest = cfg.data.buckets[-1]
    return (0.0,) * (len(cfg.data.buckets) - 1) + (1.0,), float(cfg.train.batch_size * largest[-1])


@functools.lru_cache(maxsize=64)
def _epoch(data: DataConfig, batch_size: int, prepared: str) -> tuple[tuple[float, ...], float]:
    """`_batches` of the first epoch; the shapes of another are the same in another order.

    Args:
      prepared: where the data are, named after their content, so that other files of the same names count anew.
    """
    import numpy as np

    from jaxformer.data import corpus, pipeline
    from jaxformer.data.splits import PairSplit, TextSplit

    split = corpus.load(data).split('train')
    assigned = pipeline.assign_buckets(split, data.buckets)
    batches = pipeline.plan_epoch(assigned, len(data.buckets), batch_size, seed=0, epoch=0, shuffle=False)
    counts = np.bincount([bucket for bucket, _ in batches], minlength=len(data.buckets))
    if isinstance(split, TextSplit):
        labels = split.num_tokens
    else:
        lengths = split.target.lengths if isinstance(split, PairSplit) else split.tokens.lengths  # type: ignore[attr-defined]
        labels = int(lengths[assigned >= 0].sum())
    total = max(len(batches), 1)
    return tuple(float(count) / total for count in counts), labels / total


@functools.cache
def _count(model: ModelConfig, vocab_size: int, num_classes: int) -> int:
    import jax

    from jaxformer.model import transformer

    tree = transformer.abstract_params(model, vocab_size, num_classes)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
