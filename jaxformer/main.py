"""The console command `jaxformer`: parses flags, calls the package, prints. No logic beyond that.

Exit status: 0 done, 1 the run failed, 2 a mistake of the user's, 143 a signal ended a run (or a grid) that is saved and
goes on with the same command, 130 any other command was interrupted.
"""

import difflib
import json
import os
import sys
from collections.abc import Callable, Sequence
from logging import basicConfig
from typing import Any

from absl import flags, logging

import jaxformer
from jaxformer.errors import RunError, UserError

USAGE = """usage: jaxformer COMMAND [--flag=value …]     jaxformer COMMAND --help     jaxformer --version

  train    --config=FILE --workdir=RUN [--config.a.b=value …]   train, or go on with what is there
  params   --config=FILE [--config.a.b=value …]                 count parameters without allocating any
  eval     --workdir=RUN [--step=N] [--split=test] [--config.data.b=value …]      loss, perplexity and error rates
  decode   --workdir=RUN --input=FILE|- [--output=FILE]         one output line per input line
  plan     --grid=FILE --workdir=GRID [--seeds=N] [--memory] [--config.a.b=value …]     what a grid would run and take
  ablate   --grid=FILE --workdir=GRID [--seeds=N] [--config.a.b=value …]     run what is missing of a grid
  status   --workdir=GRID                                       how far its runs are, who works on them, time left
  report   --workdir=GRID                                       table, curves and page of a grid
  inspect  --workdir=RUN [--step=N] [params | attention]        look into a checkpoint
  compare  RUN RUN … | GRID GRID …                              differences of configs, environments and metrics
  import   --input=DIR --workdir=RUN                            a model in Hugging Face's layout becomes a run
  export   --workdir=RUN [--step=N] --output=DIR                a checkpoint in Hugging Face's layout
  verify-resume --config=FILE [--steps=N] [--config.a.b=value …]     prove that a stopped run goes on to the bit
"""


def train(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Trains --config in --workdir, or goes on with what is there; the same command after any interruption."""
    _none_left(positional)
    cfg, workdir = _config(values, changes), _needed(values, 'workdir')
    from jaxformer import processes
    from jaxformer.train import loop

    with processes.joined(values.coordinator, values.processes, values.process):
        processes.agree(cfg)
        metrics = loop.train(cfg, workdir)
    if processes.index() == 0:
        _print_metrics(metrics, values.json)
    return 0


def params(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Lists and counts the parameters of --config without allocating any."""
    _none_left(positional)
    cfg = _config(values, changes)
    from jaxformer.ablate.count import data_sizes
    from jaxformer.inspection import parameters

    rows = parameters.from_config(cfg, *data_sizes(cfg))
    print(json.dumps(parameters.as_json(rows)) if values.json else parameters.as_text(rows))
    return 0


def evaluate(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Loss, perplexity, accuracy and error rates of a checkpoint on a whole split; --config.data.… for other data."""
    _none_left(positional)
    from jaxformer.train.score import score

    result = score(_needed(values, 'workdir'), values.step, values.split, changes)
    _print_metrics(result, values.json)
    return 0


def decode(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Decodes --input line by line, greedily, to --output (standard output without it)."""
    _none_left(positional)
    from jaxformer.data import text
    from jaxformer.decode.lines import decode_lines
    from jaxformer.files import write_atomic

    lines = text.read_lines(_needed(values, 'input'))
    if values.output:
        _refuse_unwritable(values.output)
    outputs = ''.join(f'{line}\n' for line in decode_lines(_needed(values, 'workdir'), values.step, lines))
    if values.output:
        write_atomic(values.output, outputs)
    else:
        sys.stdout.write(outputs)
    return 0


def plan(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Prints the cells of a grid, their sizes, and what of it is there already; runs nothing."""
    _none_left(positional)
    from jaxformer.ablate import plan as plans

    resolved = plans.resolve(plans.read(_needed(values, 'grid'), changes))
    workdir = _needed(values, 'workdir')
    content = plans.as_json(resolved, workdir, values.seeds)
    text = '' if values.json else plans.as_text(resolved, workdir, values.seeds)
    if values.memory:
        from jaxformer.ablate import footprint  # late: it starts a backend, and compiles

        content['memory'] = footprint.of_cells(resolved.cells)
        text += f'\n\n{footprint.as_text(content["memory"])}'
    print(json.dumps(content) if values.json else text)
    return 0


def ablate(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Runs what is missing of a grid, every cell with --seeds seeds, and writes the report."""
    _none_left(positional)
    from jaxformer.ablate import launch, launchers, workers
    from jaxformer.ablate import plan as plans
    from jaxformer.ablate import report as reports

    workers.leave_with_parent()
    grid, workdir = _needed(values, 'grid'), _needed(values, 'workdir')
    resolved = plans.resolve(plans.read(grid, changes))
    arguments = ['ablate', f'--grid={grid}', f'--workdir={workdir}', f'--seeds={values.seeds}']
    status = launchers.start(
        resolved,
        workdir,
        values.seeds,
        [*arguments, *(f'--config.{field}={value}' for field, value in changes.items())],
        launcher=values.launcher,
        number=values.workers,
        slurm=values.slurm,
        retry_failed=values.retry_failed,
    )
    if launch.WORKER not in os.environ:  # whoever started several workers writes it
        for path in reports.write(workdir).values():
            print(path)
    return status


def status(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """How far a grid is: every run with its state, its worker and the time left; changes nothing."""
    _none_left(positional)
    from jaxformer.ablate import status as state

    found = state.read(_needed(values, 'workdir'))
    print(json.dumps(state.as_json(found)) if values.json else state.as_text(found))
    return 0


def report(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Writes report.md, report.csv and report.html of a grid and prints the first."""
    _none_left(positional)
    from jaxformer.ablate import report as reports

    written = reports.write(_needed(values, 'workdir'))
    print(written['md'].read_text())
    for path in written.values():
        print(path)
    return 0


def inspect(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Looks into a checkpoint: `params` (the default) from its metadata, `attention` maps of --input as pictures."""
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # looking must not take an accelerator that a run wants
    view, *rest = positional or ['params']
    _none_left(rest)
    workdir = _needed(values, 'workdir')
    if view == 'params':
        from jaxformer.inspection import parameters

        rows = parameters.from_checkpoint(workdir, values.step)
        print(json.dumps(parameters.as_json(rows)) if values.json else parameters.as_text(rows))
    elif view == 'attention':
        from jaxformer.inspection import attention

        maps = attention.maps(workdir, _needed(values, 'input'), values.step)
        paths = [str(path) for path in attention.draw(maps, values.output or os.path.join(workdir, 'attention'))]
        print(json.dumps(paths) if values.json else '\n'.join(paths))
    else:
        raise UserError(f'inspect {view}: no such view; choose params or attention')
    return 0


def compare(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Differences of configuration, environment and final metrics of two or more runs, or of two or more grids."""
    if len(positional) < 2:
        noun = 'directory' if len(positional) == 1 else 'directories'
        raise UserError(f'compare: {len(positional)} run {noun} given; name two or more')
    from jaxformer.ablate import compare as grids
    from jaxformer.inspection import compare as runs

    if grids.are_grids(positional):
        compared = grids.compare(positional)
        print(json.dumps(grids.as_json(compared)) if values.json else grids.as_text(compared))
    else:
        result = runs.compare(positional)
        print(json.dumps(runs.as_json(result)) if values.json else runs.as_text(result))
    return 0


def import_(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Makes --workdir a run, at step 0, of the GPT-2, Llama, BERT, T5 or Marian model in the directory --input."""
    _none_left(positional)
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    from jaxformer.inspection import import_ as importing

    workdir = _needed(values, 'workdir')
    print(importing.advice(importing.run(_needed(values, 'input'), workdir), workdir))
    return 0


def export(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Writes a checkpoint to the directory --output, in the layout of transformers, with its tokenizer.json."""
    _none_left(positional)
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    from jaxformer.inspection import export as exporting

    exporting.run(_needed(values, 'workdir'), values.step, _needed(values, 'output'))
    return 0


def verify_resume(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Trains --config straight, and stopped in the middle and gone on with; fails where anything differs."""
    _none_left(positional)
    from jaxformer.train import verify

    if values.steps < verify.LEAST_STEPS:
        raise UserError(f'--steps={values.steps}: at least {verify.LEAST_STEPS}')
    print(verify.resume(_config(values, changes), values.steps))
    print('resume is exact')
    return 0


STRING, INTEGER, BOOLEAN = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_boolean
FLAGS: dict[str, tuple[Callable[..., Any], Any, str | dict[str, str]]] = {  # what it means, or means by command
    'config': (STRING, None, 'a configuration file, e.g. configs/g2p.py; --config.a.b=value changes a field of it'),
    'workdir': (STRING, None, 'the directory of the run (or of the grid)'),
    'coordinator': (
        STRING,
        '',
        'HOST:PORT of process 0, where several processes train one run; auto: as a Slurm step, a TPU pod or Open MPI '
        'says; none: this process alone; without it: auto in a Slurm step of several tasks',
    ),
    'processes': (INTEGER, 0, 'with --coordinator=HOST:PORT: how many there are'),
    'process': (INTEGER, -1, 'with --coordinator=HOST:PORT: the number of this one, from 0'),
    'step': (INTEGER, None, 'a checkpoint by its step; the newest whole one without it'),
    'steps': (INTEGER, 20, 'steps of the straight run, in the place of train.num_steps'),
    'split': (STRING, None, 'train, dev or test; what eval.split says without it'),
    'input': (
        STRING,
        None,
        {
            'decode': 'a text file, or - for standard input',
            'inspect': 'attention: a text',
            'import': 'a directory',
        },
    ),
    'output': (
        STRING,
        None,
        {
            'decode': 'a file; standard output without it',
            'inspect': 'attention: a directory; RUN/attention without it',
            'export': 'a directory',
        },
    ),
    'grid': (STRING, None, 'a grid file, e.g. experiments/heads.py'),
    'seeds': (INTEGER, 1, 'runs of each cell, with seeds seed, seed + 1 …'),
    'launcher': (
        STRING,
        'auto',
        'inline: in this process; processes: several, each with its cores or its GPU; slurm: an array of jobs; '
        'auto: processes where there are cores or GPUs, and programs to compile, to share out',
    ),
    'workers': (
        INTEGER,
        0,
        'number of processes (of jobs) at work; 0: as many as there are programs, and cores or GPUs (on Slurm: runs)',
    ),
    'slurm': (STRING, '', 'options of the jobs, partition=gpu,timeout_min=60,…; see jaxformer/ablate/slurm.py'),
    'retry_failed': (BOOLEAN, False, 'take up again the runs that failed before'),
    'memory': (BOOLEAN, False, 'compile a step of each cell, and say what it takes of the memory of each device'),
    'json': (BOOLEAN, False, 'print JSON'),
}
COMMANDS: dict[str, tuple[Callable[..., int], tuple[str, ...]]] = {
    'train': (train, ('config', 'workdir', 'coordinator', 'processes', 'process', 'json')),
    'params': (params, ('config', 'json')),
    'eval': (evaluate, ('workdir', 'step', 'split', 'json')),
    'decode': (decode, ('workdir', 'step', 'input', 'output')),
    'plan': (plan, ('grid', 'workdir', 'seeds', 'memory', 'json')),
    'ablate': (ablate, ('grid', 'workdir', 'seeds', 'launcher', 'workers', 'slurm', 'retry_failed')),
    'status': (status, ('workdir', 'json')),
    'report': (report, ('workdir',)),
    'inspect': (inspect, ('workdir', 'step', 'input', 'output', 'json')),
    'compare': (compare, ('json',)),
    'import': (import_, ('input', 'workdir')),
    'export': (export, ('workdir', 'step', 'output')),
    'verify-resume': (verify_resume, ('config', 'steps')),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    status = _command(list(sys.argv[1:] if argv is None else argv))
    processes = sys.modules.get('jaxformer.processes')
    if status and processes and processes.number() > 1:
        processes.leave(status)
    return status


def _command(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ('help', '--help', '-h'):
        print(USAGE, end='')
        return 0 if arguments else 2
    if arguments[0] == '--version':
        print(f'jaxformer {jaxformer.__version__}')
        return 0
    name, *arguments = arguments
    logging.set_verbosity(logging.WARNING)
    basicConfig(format='%(levelname)s: %(message)s')
    try:
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = f'did you mean {near[0]}?' if near else 'jaxformer --help lists them'
            raise UserError(f'{name}: no such command; {meant}')
        function, allowed = COMMANDS[name]
        values = flags.FlagValues()
        for flag in allowed:
            define, default, text = FLAGS[flag]
            define(flag, default, text if isinstance(text, str) else text[name], flag_values=values)
        if '--help' in arguments or '-h' in arguments:
            print(
                'usage: jaxformer', next(line.strip() for line in USAGE.splitlines() if line.startswith(f'  {name} '))
            )
            print(f'\n{function.__doc__}\n')
            for flag in allowed:
                default = '' if FLAGS[flag][1] in (None, False, '') else f' (default: {FLAGS[flag][1]})'
                print(f'  --{flag:<13} {values[flag].help}{default}')
            return 0
        changes, arguments = _split_changes(arguments)
        if changes and name != 'eval' and not {'config', 'grid'} & set(allowed):
            raise UserError(f'--config.{next(iter(changes))}: {name} takes no changes of a config')
        try:
            positional = values([name, *arguments])[1:]
        except flags.Error as error:
            raise UserError(f'{error}; see jaxformer {name} --help') from None
        status = function(values, positional, changes)
        sys.stdout.flush()  # here, where a reader that has gone is no traceback
        return status
    except UserError as error:
        return _say(error, 2)
    except RunError as error:
        return _say(error, getattr(error, 'exit_status', 1))
    except KeyboardInterrupt:
        return _say(KeyboardInterrupt('interrupted; what was saved before is whole'), 130)
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`): nothing is left to say, and Python must not try again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _split_changes(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """({dotted field: text} of --config.field=text or --config.field text, the other arguments)."""
    changes: dict[str, str] = {}
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith('--config.'):
            others.append(argument)
            continue
        path, equals, value = argument.removeprefix('--config.').partition('=')
        if not equals and (value := next(rest, '')) == '':
            raise UserError(f'--config.{path}: has no value; write --config.{path}=value')
        changes[path] = value
    return changes, others


def _config(values: flags.FlagValues, changes: dict[str, str]) -> Any:
    from jaxformer import config

    loaded = config.load(_needed(values, 'config'))
    config.override(loaded, changes)
    return config.resolve(loaded)


def _needed(values: flags.FlagValues, name: str) -> Any:
    if (value := values[name].value) in (None, ''):
        raise UserError(f'--{name} is missing: {values[name].help}')
    return value


def _refuse_unwritable(path: str) -> None:
    """Before the work is done, not after it."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        raise UserError(f'--output={path}: not a file in a directory that can be written; choose another one')


def _none_left(positional: Sequence[str]) -> None:
    if positional:
        raise UserError(f'{positional[0]}: not expected here; flags are written --name=value')


def _print_metrics(metrics: dict[str, float], as_json: bool) -> None:
    if as_json:
        print(json.dumps(metrics))
        return
    for name, value in metrics.items():
        grouped = (float(value).is_integer() or abs(value) >= 1e5) and abs(value) < 1e15
        print(f'{name:<18} {value:{",.0f" if grouped else ".6g"}}')


def _say(error: BaseException, status: int) -> int:
    print(f'jaxformer: {" ".join(str(error).split())}', file=sys.stderr)
    return status


if __name__ == '__main__':
    sys.exit(main())
