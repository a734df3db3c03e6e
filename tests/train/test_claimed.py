"""A run whose process was suspended for so long that another one took the run over."""

import json
import os
import signal
import time

import small

from jaxformer import claims
from jaxformer.train import loop

SLOW = (  # so slow that there is time to do something to it
    'import sys, time; from jaxformer import main, sharding; put = sharding.put_batch\n'
    'sharding.put_batch = lambda *args: (time.sleep(0.3), put(*args))[1]\n'
    'sys.exit(main.main(sys.argv[1:]))'
)


def test_a_run_that_was_taken_over_stops_and_writes_nothing_more(tmp_path, straight):
    expected, workdir = straight[0], tmp_path / 'run'
    with small.process('-c', SLOW, *small.arguments(workdir)) as first:
        deadline = time.monotonic() + 240
        while not ((workdir / 'metrics.jsonl').exists() and 6 in small.lines(workdir, 'train/loss')):
            assert first.poll() is None, first.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        (path,) = (workdir / claims.DIRECTORY).glob('*.json')
        path.write_text(json.dumps({**json.loads(path.read_text()), 'node': 'another'}))
        os.utime(path, (0, time.time() - claims.STALE))
        loop.train(small.make(), workdir)
        whole = small.snapshot(workdir)
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=240)
    assert first.returncode == 1 and 'another process took this directory over' in said
    assert small.snapshot(workdir) == whole and small.status(workdir)['status'] == 'done'
    small.assert_bit_equal(small.state(workdir), small.state(expected))
    assert small.series(workdir) == small.series(expected)
