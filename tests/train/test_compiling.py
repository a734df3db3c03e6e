"""What a start costs: a stack of any depth is one compiled block, and a second start reads what the first compiled."""

import json
import subprocess
import sys

import small

from jaxformer import hyperparameters
from jaxformer.data import pipeline
from jaxformer.train.program import Program

CHILD = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import jax, test_compiling
lowered = test_compiling.lowered(2, sys.argv[2])
begun = time.perf_counter()
lowered.compile()
print(json.dumps(time.perf_counter() - begun))
"""


def lowered(layers, cache=''):
    """The update of a model of so many layers, for its one bucket."""
    cfg = small.make({**small.QUICK, 'model.num_layers': layers, 'runtime.compilation_cache': cache})
    program = Program(cfg)
    batch = next(pipeline.train_iterator(cfg, program.corpus))
    return program.update.lower(program.target, batch, hyperparameters.of(cfg))


def test_24_layers_are_as_large_a_program_as_2():
    lines = [len(lowered(layers).as_text().splitlines()) for layers in (2, 24)]
    assert lines[1] <= 1.05 * lines[0]


def test_a_second_start_takes_less_than_a_third_of_the_first_ones_compilation(tmp_path):
    here = str(small.ROOT / 'tests' / 'train')
    command = [sys.executable, '-c', CHILD, here, str(tmp_path / 'cache')]
    first, second = (json.loads(subprocess.check_output(command, text=True).splitlines()[-1]) for _ in range(2))
    assert second < 0.3 * first, (first, second)
