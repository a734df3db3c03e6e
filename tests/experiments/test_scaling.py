"""Scaling on paper: what is read from compiled programs, against formulas, at two, four and eight devices."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

from experiments import scaling
from experiments.hlo import Collective
from experiments.scaling import Hardware, Step
from jaxformer.ablate import count, flops
from jaxformer.errors import UserError
from jaxformer.model import transformer
from jaxformer.train.memory import StepMemory

ROOT = Path(__file__).parents[2]
B, T, D, V, N = 16, 24, 32, 72, 3
# One language model of odd sizes in float32; nothing is tied, so that each parameter has one gradient.
SMALL = {
    **{'model.d_model': D, 'model.num_heads': 8, 'model.num_kv_heads': 8, 'model.d_k': 2, 'model.d_v': 6},
    **{'model.d_ff': 40, 'model.num_layers': N, 'model.vocab_size': V, 'model.remat': 'none'},
    'model.residual': 'post',  # without a norm at the end; a sublayer's gradient joins what comes along the residual
    **{'model.precision.compute': 'float32', 'model.attention.kernel': 'plain', 'data.packing': 'stream'},
    **{'data.buckets': ((T,),), 'train.batch_size': B},
}
MATRICES = N * (D * 8 * (2 + 2 + 6) + 8 * 6 * D + 3 * D * 40)
NORMS = 2 * N * D


def main():
    """Run with eight virtual devices: the steps of the small model as JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        scaling.virtual_devices(8, Path(scratch))
        for strategy, devices in [('dp', 2), ('dp', 8), ('fsdp', 8), ('tp', 4)]:
            cfg = scaling.of_model('7B', strategy, SMALL)
            print(json.dumps(dataclasses.asdict(scaling.compiled('7B', cfg, devices, Path(scratch)))), flush=True)
        parts = scaling.of_model('7B', 'dp', SMALL | {'train.accumulation': 4})
        scaling.in_parts = lambda cfg, devices: cfg
        print(json.dumps(dataclasses.asdict(scaling.compiled('7B', parts, 2, Path(scratch)))), flush=True)


@pytest.fixture(scope='module')
def steps():
    """(strategy, devices, parts) → Step."""
    env = {**os.environ, 'PYTHONPATH': str(ROOT)}
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr[-3000:]
    found = {}
    for line in result.stdout.splitlines():
        record = json.loads(line)
        record['memory'] = StepMemory(**record['memory'])
        record['collectives'] = tuple(Collective(**one) for one in record['collectives'])
        step = Step(**record)
        found[step.strategy, step.devices, step.parts] = step
    return found


def sent(step, operation, least=100):
    """Bytes sent by operations whose result has at least so many bytes."""
    return sum(one.sent for one in step.collectives if one.operation == operation and one.result >= least)


def test_the_small_model_has_the_parameters_that_the_formulas_know():
    cfg = scaling.of_model('7B', 'dp', SMALL)
    assert count.parameter_count(cfg) == MATRICES + NORMS + 2 * V * D
    assert transformer.build(cfg.model, V).cfg.embedding.softmax == 'untied'


@pytest.mark.parametrize('n', [2, 8])
def test_dp_sends_every_gradient_twice_around_but_for_one_nth(steps, n):
    step = steps['dp', n, 1]
    assert {one.operation for one in step.collectives} == {'all-reduce'}
    assert sent(step, 'all-reduce') == pytest.approx(2 * (n - 1) / n * 4 * (MATRICES + NORMS + 2 * V * D))
    assert step.sent == pytest.approx(sent(step, 'all-reduce'), rel=1e-2)  # what else there is are a few scalars


def test_fsdp_gathers_matrices_twice_and_scatters_gradients_once(steps):
    n, step, around = 8, steps['fsdp', 8, 1], 7 / 8 * 4
    of_layers = [one for one in step.collectives if one.times == N and one.result * n > 4 * D * n]
    in_layers = dataclasses.replace(step, collectives=tuple(of_layers))
    assert sent(in_layers, 'all-gather') == pytest.approx(2 * around * MATRICES)  # forward and backward
    assert sent(in_layers, 'reduce-scatter') == pytest.approx(around * MATRICES)
    # In float32 the table of the softmax is gathered once and kept. Tokens are gathered, not the table that they are
    # looked up in, and what each device finds in its columns goes to whose tokens they are.
    once = {one.operation: one for one in step.collectives if one.times == 1 and one.result > 4 * D}
    assert once['reduce-scatter'].sent == pytest.approx(around * V * D)
    assert sent(step, 'all-to-all') == pytest.approx(2 * around * B * T * D / n)
    # A device holds 1/n of the state, and of the batch.
    assert step.memory.arguments == pytest.approx(steps['dp', n, 1].memory.arguments / n, rel=0.02)


def test_tp_sums_the_activations_and_holds_its_share_of_the_matrices(steps):
    step, dp = steps['tp', 4, 1], steps['dp', 2, 1]
    # Two in either direction of each layer, whatever reads its input; the looked up tokens, the gradient of the logits.
    assert sent(step, 'all-reduce', B * T * D * 4) == pytest.approx(2 * 3 / 4 * 4 * B * T * D * (4 * N + 2))
    whole = 3 * 4 * (MATRICES + 2 * V * D)  # with two moments
    batch = 4 * B * T
    norms = 3 * 4 * NORMS
    assert step.memory.arguments == pytest.approx(whole / 4 + batch + norms, rel=0.02)
    assert dp.memory.arguments == pytest.approx(whole + batch / 2 + norms, rel=0.02)


def test_each_device_computes_its_share_of_the_products(steps):
    cfg = scaling.of_model('7B', 'dp', SMALL)
    whole = B * flops.training(cfg.model, V, 0, (T,))
    for (_, devices, _), step in steps.items():
        assert step.flops * devices == pytest.approx(whole, rel=1e-6)


def test_parts_of_a_batch_exchange_gradients_each(steps):
    whole, parts = steps['dp', 2, 1], steps['dp', 2, 4]
    assert sent(parts, 'all-reduce') == pytest.approx(4 * sent(whole, 'all-reduce'))
    assert parts.flops == whole.flops


def test_a_batch_is_taken_in_parts_where_a_device_has_too_many_positions():
    cfg = scaling.of_model('7B', 'dp', SMALL | {'train.batch_size': 4096, 'data.buckets': ((24,),)})
    assert scaling.in_parts(cfg, jax.devices()[:1]).train.accumulation == 8  # of 98,304 positions
    fewer = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, batch_size=B))
    assert scaling.in_parts(fewer, jax.devices()[:1]).train.accumulation == 1


NODES = Hardware(peak=1e12, memory=1e10, memory_speed=1e11, link=1e9, node=8, between=1e8)


@pytest.mark.parametrize(
    ('group', 'stride', 'speed'),
    [
        (8, 1, 1e9),  # in a node
        (4, 2, 1e9),
        (16, 1, 8e8),  # through eight cards of each node
        (32, 2, 4e8),  # through four
        (4, 16, 1e8),  # no two in a node
    ],
)
def test_a_ring_leaves_a_node_through_the_cards_of_its_devices(group, stride, speed):
    assert scaling.speed(Collective('all-gather', 'f32', 1, group, stride, 1), NODES) == speed


def step_of(flops, result, temporaries=0, devices=8):
    one = Collective('collective-permute', 'bf16', result, group=devices, stride=1, times=1)
    return Step('base', 'dp', devices, 1, StepMemory(int(2e9), int(2e9), temporaries, int(2e9)), int(flops), (one,))


def test_a_step_takes_as_long_as_the_slowest_part():
    took = scaling.times(step_of(3e11, 2e8, temporaries=int(1e9)), NODES)
    assert (took.compute, took.links) == (pytest.approx(0.3), pytest.approx(0.2))
    assert took.memory == pytest.approx((2 + 2 + 2 * 1) / 100)
    assert (took.step, took.bound) == (took.compute, 'compute')


def test_how_far_a_strategy_pays():
    sizes = (2, 4, 8)
    good, better, talks = step_of(4e11, 1e7), step_of(2e11, 1e7), step_of(1e11, 4e8)
    full = step_of(1e11, 1e7, temporaries=int(1e10))
    say = lambda *steps: scaling.pays(steps, sizes, NODES)  # noqa: E731
    assert say(good, better, step_of(1e11, 1e7)) == 'pays up to 8 devices, the most that were looked at'
    assert say(good, better, talks) == 'pays up to 4 devices; with 8 sending takes 4.0 times as long as computing'
    assert say(good, good, better) == 'pays up to 2 devices; with 4 a step takes 1.00 times as long'
    assert say(full, full, full) == 'may not fit: 2 GB of state, 12 by the bound, of 10'
    assert say(full, better, better).startswith('pays up to 4 devices; with 8 ')  # it has to fit first
    assert say(talks, talks, talks).startswith('does not pay; with 2 sending takes 4.0 ')
    assert say(good, UserError('heads'), good) == 'pays up to 2 devices; 4 cannot be: heads'


def test_the_table_and_the_json_say_the_same():
    found = {('base', 'dp'): [step_of(4e11, 1e7), UserError('heads')]}
    text, content = scaling.as_text(found, (8, 16)), json.loads(json.dumps(scaling.as_json(found, (8, 16))))
    (row,) = [line.split() for line in text.splitlines() if line.split()[:2] == ['8', 'dp']]
    assert row[2:8] == ['1', '2.00', '0.00', '0.01', '1', '0.40']
    (step,) = content['steps']
    assert step['sent'] == 1e7 and step['collectives'][0]['operation'] == 'collective-permute'
    assert float(row[8]) == pytest.approx(
        1000 * max(step['hardware']['v5p'][part] for part in ('compute', 'memory')), abs=0.01
    )
    for line in content['pays']:
        assert f'{line["strategy"]} on {line["hardware"]}: {line["verdict"]}' in text
    assert math.isclose(step['hardware']['H200']['compute'], 4e11 / 989.5e12)


if __name__ == '__main__':
    sys.exit(main())
