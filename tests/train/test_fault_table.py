"""The table of faults.toml, row by row: no fault loses what was saved, and each says what to do."""

import shutil
import tomllib
from pathlib import Path

import pytest
import small

from jaxformer import checkpoint, main
from jaxformer.train import loop, member, record
from jaxformer.train.program import Program

FAULTS = tomllib.loads(Path(__file__).with_name('faults.toml').read_text())['fault']
HERE = [row for row in FAULTS if 'test' not in row]
CHANGES = {'train.num_steps': 12, 'eval.every': 8, 'data.buckets': ((9, 9),)}


def halve(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def tear(path):
    path.write_bytes(path.read_bytes()[:-7])


def break_line(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(''.join([*lines[:2], lines[2][:9] + '\n', *lines[3:]]))


DAMAGE = {
    'halve': halve,
    'flip': flip,
    'tear': tear,
    'break_line': break_line,
    'remove': Path.unlink,
    'empty': lambda path: path.write_bytes(b''),
    'null': lambda path: path.write_text('null'),
    'list': lambda path: path.write_text('[]'),
    'object': lambda path: path.write_text('{}'),
    'number': lambda path: path.write_text('5'),
}


@pytest.fixture(scope='module')
def program():
    """What all the runs here share, so that it is compiled once."""
    return Program(small.make(CHANGES))


class Outcome:
    """What came of the command on a directory; `briefly`: it is told to go once it knows what to go on from."""

    def __init__(self, workdir, program, capsys, caplog, briefly):
        restore, self.begins = member.checkpoint.restore, 0
        restored_run = member.Member.restored

        def restored(directory, step, target):
            self.begins = step
            return restore(directory, step, target)

        def leave(run):
            restored_run(run)
            raise loop.Preempted('stopped by the test')

        capsys.readouterr()
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, 'Program', lambda cfg: program)
            patch.setattr(member.checkpoint, 'restore', restored)
            if briefly:
                patch.setattr(member.Member, 'restored', leave)
            self.status = main.main([*small.arguments(workdir, CHANGES), '--json'])
        printed = capsys.readouterr()
        self.metrics = printed.out
        self.lines = [line for line in printed.err.splitlines() if line.startswith('jaxformer: ')]
        if briefly and self.status == 143:
            self.status, self.lines = 0, []
        self.said = '\n'.join([*caplog.messages, *self.lines])


@pytest.fixture
def command(program, capsys, caplog):
    return lambda workdir, briefly=False: Outcome(workdir, program, capsys, caplog, briefly)


@pytest.fixture(scope='module')
def straight(program, tmp_path_factory):
    workdir = tmp_path_factory.mktemp('faults') / 'straight'
    loop.train(small.make(CHANGES), workdir, program)
    return workdir


@pytest.fixture(scope='module')
def killed(program, tmp_path_factory):
    """The run as a kill after step 11 leaves it: checkpoints 5 and 10, metrics up to 11."""
    workdir = tmp_path_factory.mktemp('faults') / 'killed'
    look_at = member.Member.look_at

    def kill(self, pending):
        if pending.step == 12:
            raise SystemExit
        return look_at(self, pending)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member.Member, 'look_at', kill)
        patch.setattr(record.Record, 'ended', lambda *args, **more: None)
        with pytest.raises(SystemExit):
            loop.train(small.make(CHANGES), workdir, program)
    assert small.checkpoints(workdir) == [5, 10] and max(small.lines(workdir, 'train/loss')) == 11
    assert small.status(workdir)['status'] == 'running'
    return workdir


def assert_ended_as_if_nothing_had_happened(done, workdir, straight, command, *, new_series=False):
    assert (done.status, done.lines) == (0, []), done.said
    small.assert_bit_equal(small.state(workdir), small.state(straight))
    ours, theirs = small.series(workdir), small.series(straight)
    if new_series:
        theirs = {name: {step: v for step, v in values.items() if step > 10} for name, values in theirs.items()}
        ours = {name: {step: v for step, v in values.items() if step > 10} for name, values in ours.items()}
    assert ours == theirs
    assert done.metrics == command(straight).metrics  # which is done, and says what it said
    assert checkpoint.newest_whole(workdir / 'checkpoints') == 12 and small.status(workdir)['status'] == 'done'


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def put_back(path, whole):
    remove(path)
    (shutil.copytree if whole.is_dir() else shutil.copy)(whole, path)


def arrangements(row, killed):
    """(names of what is damaged or made, function that does it to a directory) of each case of a row."""

    def all_of(workdir):
        for name in row.get('without', ()):
            remove(workdir / name)
        for name in row.get('make', ()):
            (workdir / name).parent.mkdir(parents=True, exist_ok=True)
            (workdir / name).mkdir(parents=True) if name.endswith('/') else (workdir / name).write_text('mine')
        if 'copy' in row:
            shutil.copytree(*(workdir / name for name in row['copy']))

    def damaging(damage, names):
        return lambda workdir: (all_of(workdir), [DAMAGE[damage](workdir / name) for name in names])

    if 'of' not in row:
        yield [*row.get('make', ()), *row.get('copy', ())[1:]], all_of
        return
    names = [
        str(path.relative_to(killed))
        for path in sorted(killed.glob(row['of']))
        if path.is_file() and path.stat().st_size
    ]
    assert names, row['of']
    damages = row['damage'] if isinstance(row['damage'], list) else [row['damage']]
    for damage in damages:
        for group in [names] if row.get('at_once') else [[name] for name in names]:
            yield group, damaging(damage, group)


def saved(workdir):
    """Whatever a failure must leave alone: all but the status, what says who works here, and metrics after step 10."""
    return {
        name: content.splitlines()[:10] if name.endswith('metrics.jsonl') else content
        for name, (_, content) in small.snapshot(workdir).items()
        if Path(name).name not in ('status.json', 'environment.json') and '.claim' not in name and '/events' not in name
    }


@pytest.mark.parametrize('row', HERE, ids=[row['fault'].replace(' ', '-') for row in HERE])
def test_the_outcome_is_that_of_the_table(row, tmp_path, killed, straight, command):
    for number, (names, arrange) in enumerate(arrangements(row, killed)):
        workdir = tmp_path / str(number)
        shutil.copytree(killed, workdir, symlinks=True)
        arrange(workdir)
        before = saved(workdir)
        briefly = number > 0  # the first of its kind is followed to the end
        done = command(workdir, briefly)
        file = names[0] if names else ''
        assert done.status == row['exit'], (names, done.said)
        for text in row.get('says', ()):
            assert text.format(file=file, name='/'.join(file.split('/')[2:])) in done.said, (names, done.said)
        assert all((workdir / name).exists() for name in row.get('keeps', ()))
        if done.status:
            assert len(done.lines) == 1, (names, done.said)
            after = saved(workdir)
            assert {name: after.get(name) for name in before} == before, names
            for name in names:
                remove(workdir / name) if row['mend'] == 'remove' else put_back(workdir / name, killed / name)
            done = command(workdir, briefly)
        assert done.begins == row['from'], (names, done.said)
        assert not any((workdir / name).exists() for name in row.get('gone', ()))
        if not briefly:
            assert_ended_as_if_nothing_had_happened(done, workdir, straight, command, new_series='series' in row)
        assert done.status == 0
        shutil.rmtree(workdir)


def test_every_other_row_names_a_test():
    for row in FAULTS:
        if 'test' in row:
            path, name = row['test'].split('::')
            assert f'def {name}(' in (Path(__file__).parents[1] / path).read_text() and row['outcome'], row


@pytest.mark.parametrize('begun', [False, True], ids=['new', 'killed'])
def test_a_disk_that_is_full_at_any_moment(begun, tmp_path, killed, straight, command):
    """So many bytes fit, and no more: the first file is refused, or a later one, or one of a checkpoint."""
    with small.disk(tmp_path / 'disk') as set_:
        ended = set()
        for number, free in enumerate([0, 4, 8, 16, 28, 48, 80, 160]):
            workdir = tmp_path / 'disk' / str(number)
            if begun:
                shutil.copytree(killed, workdir)
            before = saved(workdir)
            used = shutil.disk_usage(tmp_path / 'disk').used
            set_(f'size={used + free * 1024 or 4096}')
            done = command(workdir)
            assert done.status == 1 and len(done.lines) == 1, (free, done.said)
            assert str(workdir) in done.said and 'free space' in done.said, (free, done.said)
            after = saved(workdir)
            assert {name: after.get(name) for name in before} == before, free
            ended.add(done.lines[0].split('; ')[0].split('/')[-1])
            set_('size=64m')
            assert_ended_as_if_nothing_had_happened(command(workdir), workdir, straight, command)
            assert not list(workdir.glob('.*.tmp'))
            remove(workdir)
        assert len(ended) > 2, ended  # it was not always the same file


def test_a_run_on_a_disk_that_became_read_only(tmp_path, killed, straight, command):
    with small.disk(tmp_path / 'disk') as set_:
        workdir = tmp_path / 'disk' / 'run'
        shutil.copytree(killed, workdir)
        before = small.snapshot(workdir)
        set_('ro')
        done = command(workdir)
        assert done.status == 2 and len(done.lines) == 1, done.said
        assert f'--workdir={workdir}: Read-only file system; choose a directory that can be written' in done.said
        assert small.snapshot(workdir) == before
        set_('rw')
        assert_ended_as_if_nothing_had_happened(command(workdir), workdir, straight, command)


def test_of_two_that_start_at_once_one_runs(tmp_path, straight):
    workdir = tmp_path / 'run'
    both = [small.process('-m', 'jaxformer.main', *small.arguments(workdir, CHANGES)) for _ in range(2)]
    said = [process.communicate(timeout=240)[1] for process in both]
    assert sorted(process.returncode for process in both) in ([0, 2], [0, 0]), said  # the second may come after the end
    for process, text in zip(both, said, strict=True):
        assert 'Traceback' not in text
        assert process.returncode == 0 or 'another live process' in text and str(workdir) in text
    small.assert_bit_equal(small.state(workdir), small.state(straight))
    assert small.series(workdir) == small.series(straight)
