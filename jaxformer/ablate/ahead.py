"""Half of what a cohort has to compile, compiled by a process beside the one that trains it.

XLA compiles a program of a small model on one core, and threads that compile at once are slower than one after the
other (they share locks); two processes are not. The other process leaves what it compiled in the persistent cache
(config.runtime.compilation_cache), says so by a line, and ends. Whatever becomes of it, nothing but time is lost: what
is not there when it is needed is compiled where it is needed.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import jax

from jaxformer import config
from jaxformer.data.splits import Batch, Bucket
from jaxformer.schema import Config

EVALUATION = 'evaluation'


class Ahead:
    """The other process: it compiles the step of every second bucket, and then evaluation and decoding.

    members: of the cohort. devices: that the members are spread over.
    """

    def __init__(self, cfg: Config, members: int, devices: int) -> None:
        self._parts = {*map(_name, buckets(cfg)), EVALUATION}
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'jaxformer.ablate.ahead'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdin
        order = {'config': config.to_dict(cfg), 'members': members, 'devices': devices}
        self._process.stdin.write(json.dumps(order) + '\n')
        self._process.stdin.flush()  # and left open: its end is the end of the parent

    def wait_for_step(self, batch: Batch) -> None:
        """Until the step on such a batch is compiled, where that is to be done ahead."""
        self._wait_for(_name([batch[name].shape[1] for name in ('source', 'target', 'tokens') if name in batch]))

    def wait_for_evaluation(self) -> None:
        """Until evaluation and decoding are compiled."""
        self._wait_for(EVALUATION)

    def _wait_for(self, part: str) -> None:
        assert self._process.stdout
        while part in self._parts:
            if not (line := self._process.stdout.readline()):
                self._parts.clear()
                self._process.wait()
            self._parts.discard(line.strip())


def helps(cfg: Config) -> bool:
    """Whether this process has several cores for its cohort, and there is a cache to leave programs in."""
    return bool(cfg.runtime.compilation_cache) and jax.default_backend() == 'cpu' and len(jax.local_devices()) > 1


def buckets(cfg: Config) -> tuple[Bucket, ...]:
    """Those whose step is compiled ahead; the last one is not among them, which is compiled to see what fits."""
    return cfg.data.buckets[-2::-2]


def _name(bucket: Sequence[int]) -> str:
    return f'step {tuple(bucket)}'


def main() -> None:
    """The other process."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
        jax.config.update('jax_num_cpu_devices', order['devices'])
    from jaxformer.ablate.together import Shared

    cfg = config.from_dict(order['config'])
    shared = Shared(cfg)
    for bucket in buckets(cfg):
        shared.compiled([cfg] * order['members'], bucket)
        print(_name(bucket), flush=True)
    shared.program.compile_evaluation()
    print(EVALUATION, flush=True)


if __name__ == '__main__':
    main()
