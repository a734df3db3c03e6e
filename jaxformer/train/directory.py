"""Which run a directory belongs to: one configuration, one live process."""

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from jaxformer import claims, config, files, processes
from jaxformer.data import corpus as corpora
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import RunError, UserError
from jaxformer.schema import Config
from jaxformer.train.writer import read_status

FREE_ON_RESUME = (
    'data.dir',
    *(f'train.{name}' for name in ('log_every', 'log_example_ids', 'inspect_every', 'spike_factor')),
    *(f'train.{name}' for name in ('nan_policy', 'nan_limit', 'checkpoint_every', 'keep_checkpoints', 'keep_best')),
    *('model.attention.kernel', 'model.attention.block', 'model.remat', 'model.scan_unroll', 'train.accumulation'),
    *('eval.', 'mesh.', 'cohort.', 'runtime.'),
)
"""Fields (or groups) that may differ from the config a directory was started with: they change no update."""

AVERAGE, INT8 = 'average.json', 'int8.json'
"""In the directory of parameters alone: of which run `jaxformer average` or `export --quantize=int8` has made them."""

VISIBLE = 15.0
"""Seconds until a file that one machine wrote is seen by the others that share its directory."""

GROWING_SCHEDULES = ('noam', 'constant')
"""Values of optim.schedule under which no step's learning rate depends on train.num_steps: a run can be made longer."""


def finished(cfg: Config, workdir: epath.Path) -> dict[str, float] | None:
    """The metrics of a run that is done, None where there is still something to do. Touches nothing.

    Raises:
      UserError: the directory belongs to another config.
    """
    with _named(workdir):
        status = read_status(workdir)
        if not status or status['status'] != 'done':
            return None
        started = refuse_another_config(cfg, workdir)
        if status['step'] != cfg.train.num_steps:
            return None
        if started and started.eval != cfg.eval:
            raise UserError(
                f'{workdir}: done, and evaluated with another config.eval; '
                'use `jaxformer eval --split=…`, or the same values, or another --workdir'
            )
        return status['metrics']


@contextlib.contextmanager
def claimed(cfg: Config, workdir: epath.Path) -> Iterator[claims.Claim]:
    """Makes the directory and holds the claim on it while the context lasts; `check()` it before each write.

    Of what it made nothing empty stays where a UserError ends the context.

    Raises:
      BusyError: another live process uses it.
      UserError: it cannot be written, or it belongs to another config.
      RunError: the disk is full.
    """
    with contextlib.ExitStack() as held:
        with _named(workdir):
            held.enter_context(_made(workdir))
            claim = held.enter_context(claims.hold(workdir))
            for leftover in workdir.glob('.*.tmp'):  # of `write_atomic` in a killed process
                leftover.unlink(missing_ok=True)
        refuse_another_config(cfg, workdir)
        yield claim


def refuse_unshared(workdir: epath.Path) -> None:
    """Raises UserError, on every process of several, where --workdir is not the same directory to one of them."""
    if processes.number() == 1 or '://' in str(workdir):
        return
    note, nonce = workdir / '.together.tmp', processes.on_first(lambda: uuid.uuid4().hex)

    def look() -> None:
        until = time.monotonic() + VISIBLE
        while not note.exists() or note.read_text() != nonce:
            if time.monotonic() > until:
                raise UserError(f'--workdir={workdir}: not the directory of process 0; give one that all share')
            time.sleep(0.2)
        own = workdir / f'.{processes.index()}.tmp'
        with _named(workdir):
            own.write_text(nonce)
            own.unlink()

    processes.on_first(lambda: note.write_text(nonce))
    try:
        processes.on_each(look)
    finally:
        if processes.index() == 0:
            note.unlink()


def mark(cfg: Config, workdir: epath.Path, vocab: Vocabulary) -> None:
    """Writes what the directory belongs to. Call it once nothing is left that the user may have to correct."""
    with _named(workdir):
        files.write_json(workdir / files.CONFIG, config.to_dict(cfg))
        files.write_json(workdir / files.VOCAB, vocab.to_json())
        files.write_json(workdir / files.DATA, corpora.identity(cfg.data))


def refuse_another_config(cfg: Config, workdir: epath.Path) -> Config | None:
    """The config that the directory was started with, None where it is new.

    Raises:
      UserError: it trains otherwise than cfg, or not at all, or the directory is that of a grid.
    """
    path = workdir / files.CONFIG
    if (workdir / files.GRID).exists():
        raise UserError(f'{workdir}: the directory of a grid; choose another --workdir for a run')
    if not path.exists():
        return None
    _refuse_parameters_alone(workdir)
    values = files.read_json(path)
    if not isinstance(values, dict):
        raise UserError(f'{path}: not a configuration; put back a copy of it')
    try:
        started = config.from_record(values)
    except UserError as error:
        raise UserError(f'{path}: {error}') from error
    for field, (before, now) in config.diff(started, cfg).items():
        grows = field == 'train.num_steps' and cfg.optim.schedule in GROWING_SCHEDULES
        if not grows and not field.startswith(FREE_ON_RESUME):
            raise UserError(
                f'{path}: config.{field} is {before!r} there and {now!r} here; use the same value '
                f'(--config={path} has it), or another --workdir for another '
                'run (config.train.start_from can begin it with the parameters of this one)'
            )
    return started


def _refuse_parameters_alone(workdir: epath.Path) -> None:
    """Raises UserError where a command has made the directory of another run, without what training goes on from."""
    for name in (AVERAGE, INT8):
        if not (workdir / name).exists():
            continue
        try:
            note = files.read_json(workdir / name)
            if name == AVERAGE:
                made, begin = f'the mean of steps {", ".join(map(str, note["steps"]))} of {note["run"]}', workdir
            else:
                made, begin = f'step {note["step"]} of {note["run"]} in int8', note['run']
        except (KeyError, TypeError):
            raise UserError(f'{workdir / name}: not what was noted of the run; put back a copy of it') from None
        raise UserError(
            f'{workdir}: {made} ({name}), in which no training goes on; '
            f'use --workdir={note["run"]}, or --config.train.start_from={begin} in a new directory'
        )


def refuse_another_vocabulary(workdir: epath.Path, vocab: Vocabulary, other: bool = False) -> None:
    """Raises UserError where the data's symbols are not those that the checkpoints of the run were trained on.

    other: whether they are of data that the user gave in the place of the run's own.
    """
    path = workdir / files.VOCAB
    if not path.exists():
        return
    there, here = files.read_json(path), vocab.to_json()
    if isinstance(there, dict) and there.get('classes') != here.get('classes'):
        raise UserError(
            f'{path}: classes {_names(there)}, and the data has the classes {_names(here)}; '
            'put back the file, or give data with the same classes'
        )
    if there != here and other:
        raise UserError(
            f'{path}: not the symbols of the data that is given, which makes its own of its train; `jaxformer decode` '
            'reads any text in those of the run, and `jaxformer eval --hypotheses` judges what it writes'
        )
    if there != here:
        raise UserError(
            f'{path}: not the symbols of the data; put back the file, or the data that the run started with'
        )


def _names(vocab: Mapping[str, Any]) -> str:
    return ', '.join(map(str, vocab.get('classes') or ())) or 'none'


def refuse_other_data(cfg: Config, workdir: epath.Path) -> None:
    """Raises UserError where files or packages of the data are not as they were when the run began."""
    if difference := other_data(cfg, workdir):
        raise UserError(
            f'{workdir}: the data of data.name={cfg.data.name} changed since the run began ({difference}); '
            'put it back as it was, or use another --workdir'
        )


def other_data(cfg: Config, workdir: epath.Path, split: str = 'train') -> str:
    """What of the data of a split is not as a run noted it, '' for nothing (or where nothing is noted)."""
    path = workdir / files.DATA
    before = files.read_json(path) if path.exists() else {}
    if not isinstance(before, dict):
        raise UserError(f'{path}: not what a run notes of its data; put back a copy of it')
    data = cfg.data
    if split != 'train':  # data.targets is of train alone
        before, data = {name: value for name, value in before.items() if name != 'targets'}, corpora.untaught(data)
    now = corpora.identity(data)
    return ', '.join(
        sorted(name for name in before.keys() | now.keys() if before and before.get(name) != now.get(name))
    )


@contextlib.contextmanager
def _made(workdir: epath.Path) -> Iterator[None]:
    """Makes the directory and those above it; a mistake takes along those that are empty again."""
    bucket = '://' in str(workdir)  # which has no directories
    absent = [] if bucket else [path for path in (workdir, *workdir.parents) if not path.exists()]
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        yield
    except (UserError, OSError):
        for path in absent:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise


@contextlib.contextmanager
def _named(workdir: epath.Path) -> Iterator[None]:
    """Says what the file system refused as a mistake in --workdir (a full disk is none)."""
    try:
        yield
    except OSError as error:
        reason = f'--workdir={workdir}: {error.strerror or error}'
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f'{reason}; free space and run the same command again') from error
        raise UserError(f'{reason}; choose a directory that can be written') from error
