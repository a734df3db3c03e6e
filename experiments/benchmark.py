"""How fast is a training step, what is lost around it, and how fast is the same model in PyTorch?

Question: (a) source and target tokens per second of the compiled step, padding not counted; (b) the share of a step's
          time that is spent outside the compiled function when batches come from the pipeline and metrics are read one
          step late, as the training loop does it; (c) the speed relative to PyTorch eager on the CPU with as many
          threads. For configs/g2p.py with its own buckets in their own mixture, and for d_model 256 with 3+3 layers on
          16 x (64+64) random tokens.
Command:  make benchmark    (or: pip install -e '.[benchmark]' && python experiments/benchmark.py --json)
Result:   a table, one row for each case: medians over the rounds, with the least and the greatest. In each round every
          side takes the same batches, in alternating order, so that what else the machine does weighs on all of them.
          The ratio is printed only after both models gave the same loss, gradient norm and update with dropout off.
"""

import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from absl import app, flags

from configs import base, g2p
from experiments import benchmark_decoding, benchmark_grid
from jaxformer import config, hyperparameters, optim, runtime, sharding
from jaxformer.data import corpus as corpora
from jaxformer.data import pipeline
from jaxformer.data.vocab import EOS, PAD, UNK
from jaxformer.errors import RunError, UserError
from jaxformer.model import transformer
from jaxformer.schema import Config
from jaxformer.train import state as states
from jaxformer.train.step import compiled_step

if TYPE_CHECKING:
    import torch

    from experiments import torch_transformer

Batch = Mapping[str, np.ndarray]

_CASE = flags.DEFINE_multi_enum(
    'case',
    ['g2p', 'random'],
    ['g2p', 'random', 'grid', 'decode'],
    'What to measure (grid, decode: see experiments/benchmark_grid.py and benchmark_decoding.py).',
)
_SET = flags.DEFINE_multi_string('set', [], 'Change a field in every case, as in --set=model.num_layers=2.')
_ROUNDS = flags.DEFINE_integer('rounds', 9, 'Rounds; in each, every side is measured once.', lower_bound=1)
_STEPS = flags.DEFINE_integer('steps', 12, 'Timed steps of each side in a round.', lower_bound=1)
_WARM_UP = flags.DEFINE_integer('warm_up', 2, 'Steps of each side in a round before the timed ones.', lower_bound=0)
_THREADS = flags.DEFINE_integer(
    'threads', 0, 'Processor cores for either side; 0 = all that are allowed.', lower_bound=0
)
_JSON = flags.DEFINE_boolean('json', False, 'Print JSON instead of a table.')

NO_TORCH = (
    "PyTorch is not installed, so there is no ratio: `make benchmark` installs it, or pip install -e '.[benchmark]'"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured: a model and where its batches come from (`fresh` starts the same sequence anew)."""

    name: str
    cfg: Config
    vocab_size: int
    fresh: Callable[[], Iterator[Batch]]


def case_of(name: str, changes: Mapping[str, Any]) -> Case:
    """The case of that name, with fields changed."""
    if name == 'g2p':
        fields = g2p.get_config()
        config.override(fields, changes)
        cfg = config.resolve(fields)
        corpus = corpora.load(cfg.data)
        return Case(name, cfg, len(corpus.vocab), lambda: pipeline.train_iterator(cfg, corpus))
    fields = base.get_config()
    sizes = {'model.d_model': 256, 'model.d_ff': 1024, 'model.num_layers': 3, 'model.vocab_size': 8000}
    speed = {'model.scan_unroll': 0, 'train.batch_size': 16, 'data.buckets': ((64, 64),)}
    config.override(fields, sizes | speed | {'optim.clip_norm': 1.0} | dict(changes))
    cfg = config.resolve(fields)
    return Case(name, cfg, cfg.model.vocab_size, lambda: random_batches(cfg))


def random_batches(cfg: Config) -> Iterator[Batch]:
    """Endless batches of random symbols without padding, in the shape of the last bucket."""
    random = np.random.default_rng(cfg.seed)
    draw = lambda length: random.integers(  # noqa: E731
        UNK + 1, cfg.model.vocab_size, (cfg.train.batch_size, length), np.int32
    )
    S, T = cfg.data.buckets[-1]
    while True:
        batch = {'source': draw(S), 'target': draw(T), 'example_id': np.arange(cfg.train.batch_size, dtype=np.int32)}
        batch['source'][:, -1] = batch['target'][:, -1] = EOS
        yield batch


def count_tokens(batches: Sequence[Batch]) -> int:
    """Source and target symbols of the batches, padding left out."""
    return sum(int(np.sum(batch[side] != PAD)) for batch in batches for side in ('source', 'target'))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {'median': statistics.median(values), 'min': min(values), 'max': max(values)}


class JaxSide:
    """jaxformer's training: the compiled step alone, or in the manner of the training loop."""

    def __init__(self, cfg: Config, vocab_size: int):
        runtime.configure(cfg.runtime)
        self.mesh = sharding.make_mesh(cfg.mesh)
        self.values = hyperparameters.of(cfg)
        model, optimizer = transformer.build(cfg.model, vocab_size), optim.build(cfg)
        target = states.abstract(model, optimizer, self.mesh)
        self.compiled = compiled_step(cfg, model, target)
        self.state = states.initialise(model, optimizer, cfg.seed, target)

    def dispatch(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Starts one update; its metrics are on their way."""
        self.state, metrics = self.compiled(self.state, batch, self.values)
        return metrics

    def params(self) -> Any:
        """A copy of the parameters as numpy arrays."""
        return jax.tree.map(np.array, self.state.params)

    def put(self, batch: Batch) -> dict[str, jax.Array]:
        return sharding.put_batch(dict(batch), self.mesh)

    def step(self, batch: dict[str, jax.Array]) -> dict[str, float]:
        """One update, its metrics fetched."""
        return {name: value.item() for name, value in jax.device_get(self.dispatch(batch)).items()}

    def alone(self, batches: Sequence[dict[str, jax.Array]], warm_up: int) -> float:
        """Seconds of the steps after the first `warm_up`, on batches that are there already; fetches no metrics."""
        start = time.perf_counter()
        for number, batch in enumerate(batches):
            if number == warm_up:
                jax.block_until_ready(self.state)
                start = time.perf_counter()
            self.dispatch(batch)
        jax.block_until_ready(self.state)
        return time.perf_counter() - start

    def loop(self, batches: Iterator[Batch], steps: int, warm_up: int) -> float:
        """Seconds of `steps` steps after `warm_up` ones as the training loop takes them (`jaxformer/train/loop.py`)."""
        start, pending = time.perf_counter(), None
        for number in range(warm_up + steps):
            if number == warm_up:
                jax.block_until_ready(self.state)
                start = time.perf_counter()
            fresh = self.dispatch(self.put(next(batches)))
            if pending is not None:
                _ = {name: value.item() for name, value in jax.device_get(pending).items()}
            pending = fresh
        jax.device_get(pending)
        return time.perf_counter() - start


def time_torch(trainer: 'torch_transformer.Trainer', batches: Sequence[Any], warm_up: int) -> float:
    """Seconds of PyTorch's steps after the first `warm_up`, on tensors that are ready."""
    for batch in batches[:warm_up]:
        trainer.step(batch)
    start = time.perf_counter()
    for batch in batches[warm_up:]:
        trainer.step(batch)
    return time.perf_counter() - start


def torch_trainer(cfg: Config, params: Any) -> 'torch_transformer.Trainer':
    """The PyTorch side with these parameters and the learning rates of cfg."""
    from experiments import torch_transformer

    schedule = optim.schedule(cfg)
    rates = np.asarray(jax.vmap(schedule)(np.arange(10_000)))  # asked for once, not in every step
    return torch_transformer.Trainer(cfg, params, lambda count: float(rates[min(count, len(rates) - 1)]))


def torch_batch(batch: Batch) -> dict[str, 'torch.Tensor']:
    """The tokens of a batch as PyTorch wants them."""
    import torch

    return {name: torch.from_numpy(batch[name].astype(np.int64)) for name in ('source', 'target')}


def without_dropout(cfg: Config) -> Config:
    """The same with every dropout rate 0."""
    rates = {field.name: 0.0 for field in dataclasses.fields(cfg.model.dropout)}
    model = dataclasses.replace(cfg.model, dropout=dataclasses.replace(cfg.model.dropout, **rates))
    return dataclasses.replace(cfg, model=model)


def require_same(ours: Mapping[str, float], theirs: Mapping[str, float], tolerance: float) -> None:
    """Raises RunError where a number of one side differs from the other's by more than `tolerance`, relatively."""
    for name, value in theirs.items():
        if not abs(ours[name] - value) <= tolerance * max(1.0, abs(value)):
            raise RunError(
                f'{name} is {ours[name]:.7g} here and {value:.7g} in PyTorch: these are two different models, so there '
                'is no ratio; mend experiments/torch_transformer.py'
            )


def check_same_model(case: Case, batches: Sequence[Batch]) -> None:
    """Holds both sides against each other with dropout off: loss and gradient norm before and after one update.

    Raises:
      RunError: they differ.
    """
    cfg = without_dropout(case.cfg)
    ours = JaxSide(cfg, case.vocab_size)
    theirs = torch_trainer(cfg, ours.params())
    for number, batch in enumerate(batches):
        expected = {'loss': theirs.backward(torch_batch(batch)).item(), 'grad_norm': theirs.exact_norm()}
        theirs.update()
        # An update divides by the root of tiny second moments, which magnifies differences of rounding.
        require_same(ours.step(ours.put(batch)), expected, 1e-3 if number else 1e-5)


def measure(case: Case, rounds: int, steps: int, warm_up: int, with_torch: bool) -> dict[str, Any]:
    """All figures of a case; those of PyTorch are None without it."""
    each = warm_up + steps
    batches = list(itertools.islice(case.fresh(), rounds * each))
    one_of_each_shape = {batch['source'].shape + batch['target'].shape: batch for batch in batches}.values()
    ours = JaxSide(case.cfg, case.vocab_size)
    theirs, ready = None, []
    if with_torch:
        check_same_model(case, batches[:1] * 2)
        theirs = torch_trainer(case.cfg, ours.params())
        ready = [torch_batch(batch) for batch in batches]
        for batch in one_of_each_shape:
            theirs.step(torch_batch(batch))
    placed = [ours.put(batch) for batch in batches]
    for batch in one_of_each_shape:
        ours.step(ours.put(batch))
    compilations = ours.compiled.compilations

    live = case.fresh()
    times: dict[str, list[float]] = {'alone': [], 'loop': [], 'torch': []}
    for number in range(rounds):
        block = slice(number * each, (number + 1) * each)
        sides: list[tuple[str, Callable[[], float]]] = [
            ('alone', functools.partial(ours.alone, placed[block], warm_up)),
            ('loop', functools.partial(ours.loop, live, steps, warm_up)),
        ]
        if theirs is not None:
            sides.append(('torch', functools.partial(time_torch, theirs, ready[block], warm_up)))
        for name, run in sides if number % 2 == 0 else reversed(sides):
            times[name].append(run())
    if ours.compiled.compilations != compilations:
        raise RunError(f'{case.name}: the step was compiled anew while it was timed; the figures would be wrong')

    tokens = [count_tokens(batches[number * each + warm_up : (number + 1) * each]) for number in range(rounds)]
    positions = sum(batch[side].size for batch in batches for side in ('source', 'target'))
    per_second = {
        side: spread([n / seconds for n, seconds in zip(tokens, times[side], strict=True)]) if times[side] else None
        for side in times
    }
    ratio = [there / here for here, there in zip(times['alone'], times['torch'], strict=False)]
    return {
        'case': case.name,
        'parameters': sum(leaf.size for leaf in jax.tree.leaves(ours.state.params)),
        'shapes': compilations,
        'padding': 1 - count_tokens(batches) / positions,
        'step_ms': spread([1000 * seconds / steps for seconds in times['alone']]),
        'tokens_per_second': per_second['alone'],
        'loop_tokens_per_second': per_second['loop'],
        'torch_tokens_per_second': per_second['torch'],
        'outside': spread([1 - alone / loop for alone, loop in zip(times['alone'], times['loop'], strict=True)]),
        'ratio': spread(ratio) if ratio else None,
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as text: a row for each case, `median (least–greatest)`."""

    def cell(values: Mapping[str, float] | None, form: str) -> str:
        if values is None:
            return 'not measured'
        return f'{values["median"]:{form}} ({values["min"]:{form}} to {values["max"]:{form}})'

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        'case': lambda row: row['case'],
        'parameters': lambda row: f'{row["parameters"]:,}',
        'ms/step': lambda row: cell(row['step_ms'], '.1f'),
        'tokens/s': lambda row: cell(row['tokens_per_second'], ',.0f'),
        'outside the step': lambda row: cell(row['outside'], '.1%'),
        'PyTorch tokens/s': lambda row: cell(row['torch_tokens_per_second'], ',.0f'),
        'x PyTorch': lambda row: cell(row['ratio'], '.2f'),
    }
    lines = [list(columns)] + [[column(row) for column in columns.values()] for row in results]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return '\n'.join(
        '  '.join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def limit_threads(threads: int) -> int:
    """Keeps this process to `threads` cores (0: leaves it as it is) before any device starts; how many it has then."""
    if not hasattr(os, 'sched_setaffinity'):
        if threads:
            raise UserError(f'--threads={threads}: this system cannot keep a process to some cores; leave it out')
        return os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise UserError(f'--threads={threads}: only {len(cores)} cores are allowed')
    if threads:
        os.sched_setaffinity(0, cores[:threads])
    return threads or len(cores)


def start_torch(threads: int) -> bool:
    """Gives PyTorch as many threads as XLA has; whether it is installed."""
    try:
        import torch
    except ImportError:
        return False
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return True


def main(argv: Sequence[str]) -> None:
    del argv
    try:
        threads, load = limit_threads(_THREADS.value), os.getloadavg()[0]
        with_torch = start_torch(threads)
        if 'decode' in _CASE.value and not (with_torch and importlib.util.find_spec('transformers')):
            raise UserError("--case=decode: needs transformers to compare with; pip install -e '.[benchmark]'")
        changes = dict(change.split('=', 1) for change in _SET.value)
        grid = benchmark_grid.measure(_ROUNDS.value, _SET.value) if 'grid' in _CASE.value else None
        decoding = benchmark_decoding.measure(_ROUNDS.value) if 'decode' in _CASE.value else None
        results = [
            measure(case_of(name, changes), _ROUNDS.value, _STEPS.value, _WARM_UP.value, with_torch)
            for name in dict.fromkeys(_CASE.value)
            if name not in ('grid', 'decode')
        ]
    except (UserError, RunError) as error:
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    if _JSON.value:
        device = jax.devices()[0].device_kind
        print(
            json.dumps(
                {
                    'threads': threads,
                    'device': device,
                    'load': load,
                    'cases': results,
                    'grid': grid,
                    'decoding': decoding,
                },
                indent=2,
            )
        )
    else:
        if grid:
            print(benchmark_grid.table(grid))
        if decoding:
            print(benchmark_decoding.table(decoding))
            print(f'{threads} threads; median of {_ROUNDS.value} rounds (least to greatest).')
        if results:
            print(table(results))
            print(f'{threads} threads; median of {_ROUNDS.value} rounds of {_STEPS.value} steps (least to greatest).')
            print('Tokens are source and target symbols, padding left out.')
    if load > 0.5:
        # Threads that wait for one another at every operation, as PyTorch's do, suffer most from a busy machine.
        print(f'The machine was busy before the start (load {load:.1f}): the figures are distorted.', file=sys.stderr)
    if not with_torch:
        print(NO_TORCH, file=sys.stderr)


if __name__ == '__main__':
    app.run(main)
