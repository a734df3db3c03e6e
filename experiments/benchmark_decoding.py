"""How fast is greedy decoding of a translation model, next to the same model in PyTorch?

Question: new tokens per second of a seq2seq model of Marian's shape (6 + 6 layers, d_model 512, 8 heads, d_ff 2048,
          32,000 symbols, random weights, three tables, as with one such a model repeats its input): 32 sources of 64
          symbols each, 64 new tokens, greedy, float32, with eval.unroll=on and off, against `generate` of transformers
          with its cache of keys and values, with as many threads. All encode the sources, too; none ends a row before
          the 64th token, as the bias of the end is −10⁴.
Command:  make benchmark BENCHMARK='--case=decode --rounds=15'
Result:   medians over the rounds, with the least and the greatest. In each round every side decodes the batch once, in
          alternating order. Nothing is measured before all gave the same 2,048 tokens. The second ratio is that of
          processor time, which other work on the machine leaves as it is; with --threads=1 it is one of work alone, as
          no thread waits for another.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer import config, runtime
from jaxformer.data.ids import Ids
from jaxformer.decode import steps
from jaxformer.decode.found import Found
from jaxformer.decode.greedy import greedy, start_symbols
from jaxformer.errors import RunError
from jaxformer.inspection import import_
from jaxformer.model import transformer
from jaxformer.schema import Config

ROWS, SOURCE, NEW = 32, 64, 64
SIZES = {
    'vocab_size': 32_000, 'd_model': 512, 'encoder_layers': 6, 'decoder_layers': 6, 'encoder_attention_heads': 8,
    'decoder_attention_heads': 8, 'encoder_ffn_dim': 2048, 'decoder_ffn_dim': 2048, 'max_position_embeddings': 512,
}  # fmt: skip
EOS = 0
NEVER = -1e4


def marian(sizes: Mapping[str, int]) -> Any:
    """A MarianMTModel of transformers with random weights, which says many different things and never ends."""
    import torch
    import transformers

    pad = sizes['vocab_size'] - 1
    special: dict[str, Any] = {'pad_token_id': pad, 'decoder_start_token_id': pad, 'eos_token_id': EOS, **sizes}
    special |= {'forced_eos_token_id': None, 'tie_word_embeddings': False, 'share_encoder_decoder_embeddings': False}
    special |= {'scale_embedding': True, 'activation_function': 'relu'}
    transformers.logging.disable_progress_bar()
    settings = transformers.MarianConfig(**special)
    model = transformers.MarianMTModel(settings).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() == 2 and 'embed_positions' not in name:
                # What is added weighs less than what was read: else the mean of what relu gives drowns all symbols.
                wide = 0.3 if name.endswith(('out_proj.weight', 'fc2.weight')) else 1.0
                values.normal_(0, wide * sizes['d_model'] ** -0.5, generator=random)
        model.final_logits_bias[0, EOS] = model.final_logits_bias[0, pad] = NEVER
    return model


def ours(
    cfg: Config, params: Any, source_BS: np.ndarray, new: int, unroll: str
) -> tuple[Callable[[], np.ndarray], float]:
    """(what decodes the batch to tokens [B, T], seconds that it took to compile)."""
    runtime.configure(cfg.runtime)
    V = cfg.model.vocab_size
    model, special = transformer.build(cfg.model, V), Ids(pad=cfg.model.ids.pad, bos=-1, eos=EOS)

    def search(params: Any, source_BS: jax.Array) -> Found:
        extend, cache = steps.begin(model, params, unroll, source_BS, new)
        return greedy(extend, cache, start_symbols(len(source_BS), cfg.model), new, V, special)

    begun = time.perf_counter()
    compiled = jax.jit(search).lower(params, source_BS).compile()
    return lambda: np.asarray(compiled(params, source_BS).tokens), time.perf_counter() - begun


def theirs(model: Any, source_BS: np.ndarray, new: int) -> Callable[[], np.ndarray]:
    """What decodes the batch to tokens [B, T]."""
    import torch

    source = torch.from_numpy(source_BS.astype(np.int64))
    options = {'do_sample': False, 'num_beams': 1, 'max_new_tokens': new, 'use_cache': True}

    def decode() -> np.ndarray:
        with torch.inference_mode():
            found = model.generate(source, attention_mask=torch.ones_like(source), **options)
        return found.numpy()[:, 1:]

    return decode


def measure(rounds: int, rows: int = ROWS, length: int = SOURCE, new: int = NEW, **sizes: int) -> dict[str, Any]:
    """Tokens per second of both sides and their ratio, median, least and greatest.

    Raises:
      RunError: the tokens differ.
    """
    sizes = {**SIZES, **sizes}
    model = marian(sizes)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        fields, read = import_.read(Path(directory))
    cfg = config.resolve(fields)
    random = np.random.default_rng(0)
    source_BS = random.integers(1, sizes['vocab_size'] - 1, (rows, length), np.int32)
    source_BS[:, -1] = EOS
    params, sides = jax.device_put(read), {'torch': theirs(model, source_BS, new)}
    compile_seconds: dict[str, float] = {}
    for unroll in ('off', 'on'):
        sides[unroll], compile_seconds[unroll] = ours(cfg, params, source_BS, new, unroll)
    first, *others = (side() for side in sides.values())
    for tokens in others:
        if not np.array_equal(first, tokens):
            raise RunError(
                f'{np.mean(first != tokens):.1%} of the tokens differ: two models, of which there is no ratio'
            )
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    work: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in list(sides.items())[:: 1 if number % 2 == 0 else -1]:
            begun, worked = time.perf_counter(), time.process_time()
            side()
            work[name].append(time.process_time() - worked)
            speeds[name].append(rows * new / (time.perf_counter() - begun))
    return {
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(read)),
        'different_tokens': len(np.unique(first)),
        'torch_tokens_per_second': spread(speeds['torch']),
        'unroll': {
            unroll: {
                'compile_seconds': seconds,
                'tokens_per_second': spread(speeds[unroll]),
                'ratio': spread([here / there for here, there in zip(speeds[unroll], speeds['torch'], strict=True)]),
                'processor_ratio': spread(
                    [there / here for here, there in zip(work[unroll], work['torch'], strict=True)]
                ),
            }
            for unroll, seconds in compile_seconds.items()
        },
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {'median': statistics.median(values), 'min': min(values), 'max': max(values)}


def table(found: Mapping[str, Any]) -> str:
    """What was measured, for people."""

    def cell(values: Mapping[str, float], form: str) -> str:
        return f'{values["median"]:{form}} ({values["min"]:{form}} to {values["max"]:{form}})'

    def rows(unroll: str, side: Mapping[str, Any]) -> list[str]:
        return [
            f'eval.unroll={unroll}, compiled in {side["compile_seconds"]:.1f} s',
            f'  new tokens/s        {cell(side["tokens_per_second"], ",.0f")}',
            f'  x transformers      {cell(side["ratio"], ".2f")}',
            f'  in processor time   {cell(side["processor_ratio"], ".2f")}',
        ]

    return '\n'.join([
        f'greedy decoding of {found["parameters"]:,} parameters; the tokens are equal '
        f'({found["different_tokens"]} different ones)',
        f'transformers          {cell(found["torch_tokens_per_second"], ",.0f")} new tokens/s',
        *(line for unroll, side in found['unroll'].items() for line in rows(unroll, side)),
    ])  # fmt: skip
