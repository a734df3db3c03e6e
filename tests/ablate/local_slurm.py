"""A real Slurm of one node on the loopback device, in a directory of its own, for as long as a test wants it.

It needs no systemd and no root, touches no configuration of the machine, and takes ports that are free. The node claims
more processors than there are, so that every task of an array starts at once.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch', 'srun', 'scontrol', 'scancel', 'squeue')
INSTALL = 'apt-get install slurmctld slurmd slurm-client munge'
PATH = f'{os.environ["PATH"]}:/usr/sbin'  # where Debian puts the daemons, whoever looks

CONFIGURATION = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its old credentials have expired: 120 s by default, and less than 5 is not taken.
AuthInfo=socket={directory}/munge/socket,cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait=20
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 RealMemory=65536 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class UnavailableError(Exception):
    """There is no Slurm here, or it does not start; the text says what is missing."""


@contextlib.contextmanager
def running(seconds: float = 30) -> Iterator[Path]:
    """Starts a Slurm, points SLURM_CONF and PATH at it, yields its directory (of logs), and stops it.

    Raises:
      UnavailableError: a program is not installed, or no node is idle after `seconds`.
    """
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        raise UnavailableError(f'no Slurm here: {", ".join(missing)} not found; {INSTALL}')
    directory = Path(tempfile.mkdtemp(prefix='slurm-'))  # short, as the name of a socket has to be
    before = {name: os.environ.get(name) for name in ('PATH', 'SLURM_CONF')}
    daemons: list[subprocess.Popen] = []
    try:
        _write_configuration(directory)
        os.environ.update(PATH=PATH, SLURM_CONF=str(directory / 'slurm.conf'))
        munge = directory / 'munge'
        names = {'key-file': 'key', 'socket': 'socket', 'pid-file': 'pid', 'log-file': 'log', 'seed-file': 'seed'}
        files = [f'--{flag}={munge / name}' for flag, name in names.items()]
        for command in (['munged', '--foreground', '--force', *files], ['slurmctld', '-D'], ['slurmd', '-D']):
            daemons.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            _wait_for_answer(directory, daemons, seconds)
        yield directory
    finally:
        if len(daemons) == 3:
            _cancel_jobs()
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(directory, ignore_errors=True)


def _cancel_jobs(seconds: float = 15) -> None:
    """Ends what is still in the queue, and waits for it: without the daemons its processes would live on."""
    end = time.monotonic() + seconds
    user = f'--user={getpass.getuser()}'
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(['scancel', '--quiet', user], timeout=seconds, capture_output=True)
        while subprocess.run(['squeue', '-h', user], timeout=seconds, capture_output=True).stdout:
            if time.monotonic() > end:
                subprocess.run(['scancel', '--quiet', '--signal=KILL', user], timeout=seconds, capture_output=True)
                break
            time.sleep(0.2)


def _write_configuration(directory: Path) -> None:
    for name in ('munge', 'state', 'spool'):
        (directory / name).mkdir(mode=0o755)
    key = directory / 'munge' / 'key'
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    values = {'host': socket.gethostname().split('.')[0], 'user': getpass.getuser(), 'directory': directory}
    controller_port, node_port = _free_ports(2)
    text = CONFIGURATION.format(**values, controller_port=controller_port, node_port=node_port)
    (directory / 'slurm.conf').write_text(text)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(('127.0.0.1', 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_for_answer(directory: Path, daemons: list[subprocess.Popen], seconds: float) -> None:
    """Until the daemon that was started last does its work."""
    command = (['munge', '-n', f'--socket={directory}/munge/socket'], ['scontrol', 'ping'], ['sinfo', '-h', '-o', '%T'])
    expected = ('MUNGE:', 'is UP', 'idle')[len(daemons) - 1]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done = subprocess.run(command[len(daemons) - 1], capture_output=True, text=True, timeout=seconds)
        if expected in done.stdout:
            return
        if daemons[-1].poll() is not None:
            break
        time.sleep(0.1)
    logs = [*sorted(directory.glob('*.log')), directory / 'munge' / 'log']
    texts = [path.read_text().strip() for path in logs if path.exists()]
    last = ' / '.join(text.splitlines()[-1] for text in texts if text)
    raise UnavailableError(f'{daemons[-1].args[0]} does not start here: {last or done.stderr.strip()}')
