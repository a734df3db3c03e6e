"""Which heads of a design pruning has left, layer by layer, and what attention sees of the configuration then."""

import dataclasses

from jaxformer.schema import ModelConfig

Rows = tuple[tuple[int, ...], ...]


def left(cfg: ModelConfig, kind: str) -> Rows:
    """[N][H']: numbers of the heads of each layer, as the design counts them.

    Args:
      kind: encoder, decoder or cross.
    """
    layers = cfg.encoder_layers if kind == 'encoder' else cfg.decoder_layers
    return getattr(cfg.kept_heads, kind) or (tuple(range(cfg.num_heads)),) * layers


def groups(cfg: ModelConfig, heads: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of the key heads that these heads look at."""
    return tuple(sorted({head // (cfg.num_heads // cfg.num_kv_heads) for head in heads}))


def narrowed(cfg: ModelConfig, kind: str) -> ModelConfig:
    """The configuration with as many heads and key heads as a layer of this kind of attention has left."""
    if not getattr(cfg.kept_heads, kind):
        return cfg
    heads = left(cfg, kind)[0]
    return dataclasses.replace(cfg, num_heads=len(heads), num_kv_heads=len(groups(cfg, heads)))
