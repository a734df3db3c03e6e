"""The console command `jaxformer`: which commands there are, and their flags; what they do is in `commands.py`.

Exit status: 0 done, 1 the run failed, 2 a mistake of the user's, 143 a signal ended a run (or a grid) that is saved and
goes on with the same command, 130 any other command was interrupted.
"""

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from logging import basicConfig
from typing import Any

from absl import flags, logging

import jaxformer
from jaxformer import commands
from jaxformer.errors import RunError, UserError
from jaxformer.views import VIEWS

USAGE = """usage: jaxformer COMMAND [--flag=value …]     jaxformer COMMAND --help     jaxformer --version

  train    --config=FILE --workdir=RUN [--config.a.b=value …]   train, or go on with what is there
  params   --config=FILE [--config.a.b=value …]                 count parameters without allocating any
  eval     --workdir=RUN [--step=N] [--split=test] [--config.data.b=value …]      loss, perplexity and error rates
  eval     --workdir=RUN --against=RUN | --hypotheses=FILE --references=FILE[,FILE]     compare two; BLEU of a file
  decode   --workdir=RUN --input=FILE|- [--output=FILE] [--config.eval.b=value …]       one output line per input line
  decode   --workdir=RUN --split=train --output=FILE            of the sources of its own data, to teach a student by
  plan     --grid=FILE --workdir=GRID [--seeds=N] [--memory] [--config.a.b=value …]     what a grid would run and take
  ablate   --grid=FILE --workdir=GRID [--seeds=N] [--config.a.b=value …]     run what is missing of a grid
  status   --workdir=GRID                                       how far its runs are, who works on them, time left
  report   --workdir=GRID                                       table, curves and page of a grid
  inspect  --workdir=RUN [--step=N] [params | checkpoints | attention | explorer | attribution | heads | prune]
                                                                look into a run; take heads out of it
  compare  RUN RUN … | GRID GRID … | RUN@STEP RUN@STEP          differences of configs and metrics; of parameters
  import   --input=DIR --workdir=RUN                            a model in Hugging Face's layout becomes a run
  average  --workdir=RUN [--last=5] --output=RUN                a run of the mean of its last checkpoints
  export   --workdir=RUN [--step=N] --output=DIR                a checkpoint in Hugging Face's layout
  export   --workdir=RUN [--step=N] --output=RUN --quantize=int8 [--split=dev]     a run with int8 weights
  export   --workdir=RUN [--step=N] --output=DIR --stablehlo    functions that JAX runs without this package
  verify-resume --config=FILE [--steps=N] [--config.a.b=value …]     prove that a stopped run goes on to the bit
"""


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
    'stats': (BOOLEAN, False, 'params: norm, spectral norm, extremes, zeros … of each array, which are read for it'),
    'since': (INTEGER, None, 'params: an earlier step; --stats, and how far each array has moved from there'),
    'split': (
        STRING,
        None,
        {
            'eval': 'train, dev or test; what eval.split says without it',
            'decode': 'train, dev or test: its sources in the place of an --input',
            'export': 'with --quantize: train, dev or test, on which both are judged and timed',
            'inspect': 'train, dev or test; attention, attribution: the means over it in the place of an --input; '
            'heads: its loss',
        },
    ),
    'which': (STRING, None, 'attention: encoder, decoder, cross, or several of them, as in encoder,cross'),
    'layers': (STRING, None, 'attention: numbers from 1, as in 1,3; all without it'),
    'rows': (STRING, None, 'attention: of the queries, numbers from 1; pictures of these alone, without the scores'),
    'heads': (
        STRING,
        None,
        'attention: numbers from 1, as in 1,3; prune: kind.layer.head, as in encoder.1.3,cross.2.1',
    ),
    'keep': (INTEGER, None, 'heads: error rates on test, too, with so many heads left by each order (minutes)'),
    'format': (STRING, 'png', 'attention, heads: png, svg or pdf'),
    'input': (
        STRING,
        None,
        {
            'decode': 'a text file, or - for standard input',
            'inspect': 'attention: a text; explorer: a text or a file of texts; attribution: a file, a text per line',
            'import': 'a directory',
        },
    ),
    'output': (
        STRING,
        None,
        {
            'decode': 'a file; standard output without it',
            'inspect': 'attention, explorer, attribution: a directory; RUN/attention or RUN/attribution without it; '
            'heads: a directory, for a figure; prune: the directory of the run that comes of it',
            'export': 'a directory',
            'average': 'the directory of the run that comes of it',
        },
    ),
    'quantize': (STRING, '', 'int8: weights of eight bits, with a scale for each output channel'),
    'stablehlo': (BOOLEAN, False, 'encode (lm: prefill) and step by jax.export, parameters, and a script that decodes'),
    'last': (INTEGER, 5, 'how many checkpoints, the newest'),
    'against': (STRING, '', 'another run (with --hypotheses: another file of outputs) to compare with'),
    'hypotheses': (STRING, '', 'a file of outputs, detokenised, to be judged without a run'),
    'references': (STRING, '', 'with --hypotheses: a file of references, or several with commas between them'),
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
INSPECT = tuple(flag for flag in FLAGS if any(flag in view.reads for view in VIEWS.values()))
COMMANDS: dict[str, tuple[Callable[..., int], tuple[str, ...]]] = {
    'train': (commands.train, ('config', 'workdir', 'coordinator', 'processes', 'process', 'json')),
    'params': (commands.params, ('config', 'json')),
    'eval': (
        commands.evaluate,
        ('workdir', 'step', 'split', 'against', 'hypotheses', 'references', 'json'),
    ),
    'decode': (commands.decode, ('workdir', 'step', 'input', 'split', 'output')),
    'plan': (commands.plan, ('grid', 'workdir', 'seeds', 'memory', 'json')),
    'ablate': (commands.ablate, ('grid', 'workdir', 'seeds', 'launcher', 'workers', 'slurm', 'retry_failed')),
    'status': (commands.status, ('workdir', 'json')),
    'report': (commands.report, ('workdir',)),
    'inspect': (commands.inspect, INSPECT),
    'compare': (commands.compare, ('json',)),
    'import': (commands.import_, ('input', 'workdir')),
    'average': (commands.average, ('workdir', 'last', 'output')),
    'export': (commands.export, ('workdir', 'step', 'output', 'quantize', 'split', 'stablehlo', 'json')),
    'verify-resume': (commands.verify_resume, ('config', 'steps')),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    status = _command(list(sys.argv[1:] if argv is None else argv))
    processes = sys.modules.get('jaxformer.processes')
    if processes and processes.number() > 1:
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
            view = next((argument for argument in arguments if argument in VIEWS), '') if name == 'inspect' else ''
            print(_explained(name, view, values))
            return 0
        changes, arguments = _split_changes(arguments)
        if changes and name not in ('eval', 'decode') and not {'config', 'grid'} & set(allowed):
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
    except Exception as error:
        processes = sys.modules.get('jaxformer.processes')
        if processes and isinstance(said := processes.explained(error), RunError):  # memory is out, or a process gone
            return _say(said, 1)
        raise


def _explained(name: str, view: str, values: flags.FlagValues) -> str:
    """What --help says of a command, or of a view of `inspect`."""
    function, reads = VIEWS[view] if view else COMMANDS[name]
    usage = [f'jaxformer inspect {view} --workdir=RUN [--flag=value …]'] if view else _usage(name)
    about = []
    for flag in reads:
        default = '' if FLAGS[flag][1] in (None, False, '') else f' (default: {FLAGS[flag][1]})'
        about.append(f'  --{flag:<13} {values[flag].help}{default}')
    return '\n'.join(['usage: ' + '\n       '.join(usage), f'\n{function.__doc__}\n', *about])


def _usage(name: str) -> list[str]:
    """The lines of USAGE about a command, with those that go on with one."""
    found, ours = [], False
    for line in USAGE.splitlines():
        goes_on = line.startswith('   ')
        ours = line.startswith(f'  {name} ') or ours and goes_on
        if ours:
            found.append((' ' * len('jaxformer') if goes_on else 'jaxformer') + line[1:])
    return found


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


def _say(error: BaseException, status: int) -> int:
    print(f'jaxformer: {" ".join(str(error).split())}', file=sys.stderr)
    return status


if __name__ == '__main__':
    sys.exit(main())
