"""A stand-in for `train`: writes a run's directory as training does, without training. Also a command, to be killed.

python standin.py GRID_FILE WORKDIR SEEDS                runs the grid; each step takes 20 ms
python standin.py GRID_FILE WORKDIR SEEDS WORKERS PAUSE     the same by several processes, a step takes PAUSE seconds
"""

import dataclasses
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Hashable
from pathlib import Path

from etils import epath

from jaxformer import claims, files, schema
from jaxformer import config as config_lib
from jaxformer.ablate import launch, plan, workers
from jaxformer.errors import RunError
from jaxformer.train.signals import Preempted, stop_signals

HEAD = '''"""Heads at a fixed width.

Question: does it matter?
"""
from configs import base
from jaxformer.ablate.grid import chain, product, zipped


def get_config():
    config = base.get_config()
    config.train.num_steps = 8
    config.train.batch_size = 16
    return config

'''


def grid_file(directory: Path, cells: str, extra: str = '', name: str = 'heads') -> Path:
    """Writes a grid file whose `grid()` returns the expression `cells`."""
    path = Path(directory) / f'{name}.py'
    path.write_text(f'{HEAD}{extra}\n\ndef grid():\n    return {cells}\n')
    return path


def make_plan(directory: Path, cells: str, extra: str = '', name: str = 'heads') -> plan.Plan:
    """The plan of such a file; the number of parameters is 1000 per head."""
    grid = plan.read(grid_file(directory, cells, extra, name))
    return plan.resolve(grid, count=lambda cfg: 1000 * cfg.model.num_heads)


def each(train: Callable) -> launch.Cohort:
    """A cohort that trains one run after the other by `train(cfg, workdir)`."""

    def train_all(configs, workdirs):
        results = []
        for cfg, workdir in zip(configs, workdirs, strict=True):
            try:
                results.append(train(cfg, workdir))
            except Preempted:
                raise
            except Exception as error:
                results.append(error)
        return results

    return launch.Cohort(config_lib.config_hash, train_all)


@dataclasses.dataclass
class Standin:
    """`fail` maps d_k to the exception raised half way; `started` lists (d_k, seed, first step) of each call.

    As a cohort it takes runs of a kind, for which `program` may be set, together: one after the other.
    """

    pause: float = 0.0
    fail: dict[int, BaseException] = dataclasses.field(default_factory=dict)
    preempt: set[int] = dataclasses.field(default_factory=set)
    started: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    groups: list[int] = dataclasses.field(default_factory=list)
    program: Callable[[schema.Config], Hashable] = config_lib.config_hash

    def train(self, configs, workdirs):
        self.groups.append(len(configs))
        return each(self).train(configs, workdirs)

    def __call__(self, cfg: schema.Config, workdir: epath.Path) -> dict[str, float]:
        with claims.hold(workdir), stop_signals() as stop:
            stop.polled = True
            return self._train(cfg, workdir, stop)

    def _train(self, cfg, workdir, stop):
        checkpoint = workdir / 'checkpoint.json'
        step = files.read_json(checkpoint)['step'] if checkpoint.exists() else 0
        d_k = cfg.model.d_k
        self.started.append((d_k, cfg.seed, step))
        with (workdir / 'starts.txt').open('a') as file:
            file.write(f'{os.getpid()} {time.time()} {step}\n')
        files.write_json(workdir / 'config.json', config_lib.to_dict(cfg))
        start = {'time': 1_700_000_000.0 - 30, 'versions': {'jaxformer': '0.1.0'}}
        files.write_json(workdir / 'environment.json', [start])
        clock = itertools.count(1_700_000_000.0)
        record: dict[str, float] = {}

        def say(status, reason=None):
            metrics = {key: value for key, value in record.items() if key.startswith('dev/')}
            content = {'status': status, 'step': step, 'num_steps': cfg.train.num_steps, 'reason': reason}
            about = {'metrics': metrics, 'pid': os.getpid(), 'host': 'here', 'started': 1e9, 'updated': 1_700_000_012.0}
            files.write_json(workdir / 'status.json', {**content, **about})

        say('running')
        while step < cfg.train.num_steps:
            step += 1
            time.sleep(self.pause)
            loss = 1.5 + 0.1 * math.sin(cfg.seed) + 20 / d_k + 3 / step
            record = {'step': step, 'time': next(clock), 'train/loss': 1.1 * loss}
            if step % 2 == 0 or step == cfg.train.num_steps:
                record |= {'dev/loss': loss, 'dev/perplexity': math.exp(loss), 'dev/accuracy': 0.9 - loss / 20}
                record |= {'dev/per': loss / 10, 'dev/wer': loss / 4, 'dev/examples': 321}
            with (workdir / 'metrics.jsonl').open('a') as file:
                file.write(json.dumps(record) + '\n')
            files.write_json(checkpoint, {'step': step})
            if stop.asked:
                say('preempted', 'SIGTERM')
                raise Preempted(f'stopped; step {step} is saved')
            if 2 * step > cfg.train.num_steps and d_k in self.fail:
                error = self.fail[d_k]
                if isinstance(error, RunError):
                    say('failed', str(error))
                raise error
            if 2 * step > cfg.train.num_steps and d_k in self.preempt:
                self.preempt.remove(d_k)
                say('preempted', 'SIGTERM')
                raise RuntimeError('preempted')
        say('done')
        return {key: value for key, value in record.items() if key.startswith('dev/')}


def main(grid_path: str, workdir: str, seeds: str, number: str = '1', pause: str = '0.02') -> int:
    resolved = plan.resolve(plan.read(grid_path), count=lambda cfg: None)
    if number == '1' or launch.WORKER in os.environ:
        workers.leave_with_parent()
        say = lambda line: print(line, flush=True)  # noqa: E731
        train = Standin(pause=float(pause))
        return launch.run(resolved, workdir, int(seeds), train, workers=int(number), say=say, poll=0.1).exit_code
    planned = launch.prepare(resolved, workdir, int(seeds))
    command = (sys.executable, __file__)
    return workers.run(planned, [grid_path, workdir, seeds, number, pause], int(number), command=command)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
