"""Two tasks of a real `srun` train one run; one is killed, and the same command goes on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small
import test_processes

from jaxformer.train import loop

sys.path.insert(0, str(Path(__file__).parents[1] / 'ablate'))
import local_slurm

CHANGES = {
    'data.buckets': ((9, 9),),
    'train.batch_size': 8,
    'eval.batch_size': 4,
    'train.num_steps': 16,
    'mesh.data': -1,
}
SLOW = (
    'import sys, time; from jaxformer import main, sharding; put = sharding.put_batch\n'
    'sharding.put_batch = lambda *args: (time.sleep(0.3), put(*args))[1]\n'
    'sys.exit(main.main(sys.argv[1:]))'
)


@pytest.fixture(scope='module')
def cluster():
    try:
        with local_slurm.running() as directory:
            yield directory
    except local_slurm.UnavailableError as error:
        pytest.skip(str(error))


def srun(workdir, *program):
    """`srun -n 2` of the training, as a user gives it: no flag says that there are two."""
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'PYTHONPATH': str(small.ROOT)}
    command = ['srun', '-n', '2', '--unbuffered', sys.executable, *program, *small.arguments(workdir, CHANGES)]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    return subprocess.Popen(command, env=environment, **pipes)


def task_pids(workdir):
    """Process ids of the tasks by their number."""
    found = {}
    for entry in Path('/proc').iterdir():
        try:
            environment = (entry / 'environ').read_bytes().split(b'\0')
            arguments = (entry / 'cmdline').read_bytes().split(b'\0')
        except OSError:
            continue
        numbers = [int(each[13:]) for each in environment if each.startswith(b'SLURM_PROCID=')]
        if numbers and f'--workdir={workdir}'.encode() in arguments and arguments[0] != b'srun':
            found[numbers[0]] = int(entry.name)
    return found


@pytest.fixture(scope='module')
def run(cluster, tmp_path_factory):
    """(the run's directory, what srun said when a task was killed and when all went on, the run alone)."""
    root = tmp_path_factory.mktemp('srun')
    first = srun(root / 'run', '-c', SLOW)
    test_processes.wait_for(root / 'run' / 'checkpoints' / '5', [first])
    os.kill(task_pids(root / 'run')[1], 9)
    _, killed = first.communicate(timeout=100)
    failed = small.status(root / 'run')
    second = srun(root / 'run', '-m', 'jaxformer.main')
    out, err = second.communicate(timeout=200)
    assert second.returncode == 0, err[-2000:]
    return root / 'run', (first.returncode, killed, failed), out, loop.train(small.make(CHANGES), root / 'alone')


def test_when_a_task_is_killed_the_others_say_so(run):
    _, (status, text, failed), _, _ = run
    assert status != 0 and failed['status'] == 'failed', text
    assert 'jaxformer: process 1 of 2 has gone or is out of reach; start all processes again' in text
    assert 'process 1 of 2 has gone' in failed['reason']


def test_the_same_command_goes_on_and_gives_the_metrics_of_one_process(run):
    workdir, _, out, metrics = run
    assert out.count('dev/loss') == 1  # one process speaks
    found = small.status(workdir)
    assert found['status'] == 'done' and found['metrics'].keys() == metrics.keys()
    np.testing.assert_allclose(list(found['metrics'].values()), list(metrics.values()), rtol=1e-5)
    assert {'dev/per', 'dev/wer'} <= metrics.keys()  # both decode
    environment = small.files.read_json(small.epath.Path(workdir) / 'environment.json')
    assert [each['processes'] for each in environment] == [2, 2]
    with (
        np.load(workdir / 'examples' / 'dev.npz') as found,
        np.load(workdir.parent / 'alone/examples/dev.npz') as alone,
    ):
        assert found['example_id'].tolist() == alone['example_id'].tolist()
        np.testing.assert_allclose(found['nll'], alone['nll'], rtol=1e-5)
        assert found['errors'].tolist() == alone['errors'].tolist()
