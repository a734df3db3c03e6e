"""A second process compiles for a cohort what it will need: each program once, and nothing depends on it."""

import collections
import os
import re
import sys
from pathlib import Path

import jax
import numpy as np

from jaxformer.ablate import ahead, cohort

sys.path.insert(0, str(Path(__file__).parents[1] / 'train'))
import small  # noqa: E402 - the small runs of the tests of training

BUCKETS = ((5, 5), (6, 7), (9, 9))


def configs(cache):
    changes = {'data.buckets': BUCKETS, 'train.num_steps': 30, 'train.checkpoint_every': 30, 'eval.every': 0}
    return [small.make({**changes, 'seed': seed, 'runtime.compilation_cache': str(cache)}) for seed in (1, 2)]


def main(root):
    """A cohort of two on two cores."""
    for variable in [name for name in os.environ if name.startswith('JAX_') and name != 'JAX_PLATFORMS']:
        jax.config.update(variable.lower(), None if 'DIR' in variable else 0)
    root = Path(root)
    outcomes = cohort.Trainer().train(configs(root / 'cache'), [root / 'one', root / 'two'])
    assert all(isinstance(each, dict) for each in outcomes), outcomes


def programs(cache):
    """Name of a compiled function → how many programs of it there are."""
    return collections.Counter(
        re.match(r'jit_+(\w+)-', path.name).group(1) for path in cache.iterdir() if '-cache' in path.name
    )


def test_each_program_is_compiled_once_between_the_two(tmp_path):
    done = small.run_process(__file__, str(tmp_path), devices=2)
    assert done.returncode == 0, done.stderr[-2000:]
    found = programs(tmp_path / 'cache')
    assert (found['together'], found['traced']) == (3, 4), found
    assert small.status(tmp_path / 'one')['status'] == 'done' and small.lines(tmp_path / 'one', 'train/loss')


def test_it_leaves_what_it_is_waited_for_and_nobody_waits_for_one_that_died(tmp_path):
    cfg = configs(tmp_path / 'cache')[0]
    helper = ahead.Ahead(cfg, 2, 1)
    helper.wait_for_step({'source': np.zeros((6, 6)), 'target': np.zeros((6, 7)), 'example_id': np.zeros(6)})
    assert programs(tmp_path / 'cache')['together'] == 1
    helper.wait_for_step({'source': np.zeros((6, 9)), 'target': np.zeros((6, 9))})  # never had it to do
    helper.wait_for_evaluation()
    assert programs(tmp_path / 'cache') == {'together': 1, 'traced': 4}  # the examples of dev are in two buckets
    dead = ahead.Ahead(cfg, 2, 1)
    dead._process.kill()
    dead.wait_for_evaluation()


if __name__ == '__main__':
    main(*sys.argv[1:])
