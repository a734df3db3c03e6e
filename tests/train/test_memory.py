"""The bytes of a step by its compiled program are those of the arrays, and shrink as a mesh divides them."""

import json
import math
import sys

import jax
import pytest
import small

from jaxformer.train import memory
from jaxformer.train.program import Program

CHANGES = {
    **{'model.d_model': 32, 'model.num_heads': 8, 'model.d_k': 4, 'model.d_v': 4, 'model.d_ff': 40},
    **{'model.vocab_size': 24, 'data.buckets': ((16, 24),), 'train.batch_size': 16},
}


def shares(program):
    """Bytes of the state's arrays on one device."""
    leaves = jax.tree.leaves(program.target)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def main():
    """Run with eight devices: what a step of one and of eight takes, as JSON."""
    for strategy, devices in (('', jax.devices()[:1]), ('fsdp', jax.devices())):
        cfg = small.make(CHANGES | {'mesh.strategy': strategy})
        program = Program(cfg, devices)
        step = memory.of_step(cfg, len(program.vocab), devices=devices)[16, 24]
        batch = 16 // len(devices) * (16 + 24) * 4
        known = {
            'state': shares(program),
            'batch': batch,
            'leaves': len(jax.tree.leaves(program.target)),
            'total': step.total,
        }
        print(json.dumps(vars(step) | known))


@pytest.fixture(scope='module')
def found():
    result = small.run_process(__file__, devices=8)
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_arguments_are_state_and_batch_and_the_state_is_donated(found):
    for step in found:
        rest = step['arguments'] - step['state'] - step['batch']
        assert 0 <= rest < 200  # seed, rates, and what else is a number
        assert step['state'] <= step['shared'] <= step['outputs'] < step['state'] + 8 * step['leaves'] + 200  # pointers
        assert step['total'] == step['arguments'] + step['temporaries'] + step['outputs'] - step['shared']


def test_eight_devices_take_an_eighth_of_the_state_and_less_of_the_rest(found):
    one, eight = found
    undivided = 3 * 4 * 40 * 2 + 100  # the bias of F and its moments, in two stacks; counters
    assert eight['state'] <= one['state'] / 8 + undivided
    assert eight['temporaries'] < one['temporaries'] / 2


if __name__ == '__main__':
    sys.exit(main())
