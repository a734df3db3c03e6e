"""What a configuration costs, by shapes alone: nothing is allocated."""

import functools
import math

from jaxformer.config import Config, ModelConfig


def parameter_count(cfg: Config) -> int:
    """Number of parameters; what the configuration leaves to the data (symbols, classes) the data are asked for."""
    return _count(cfg.model, *data_sizes(cfg))


def data_sizes(cfg: Config) -> tuple[int, int]:
    """(symbols, classes) of the model: those set, those of the data where 0 is set, 0 classes where there are none.

    Raises:
      UserError: the data are needed and cannot be prepared.
    """
    classified = cfg.model.family == 'classifier'
    vocab_size, num_classes = cfg.model.vocab_size, cfg.model.head.num_classes if classified else 0
    if vocab_size and (num_classes or not classified):
        return vocab_size, num_classes
    from jaxformer.data import corpus

    found = corpus.load(cfg.data)
    return vocab_size or len(found.vocab), num_classes or (len(found.classes) if classified else 0)


@functools.cache
def _count(model: ModelConfig, vocab_size: int, num_classes: int) -> int:
    import jax

    from jaxformer.model import transformer

    tree = transformer.abstract_params(model, vocab_size, num_classes)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
