"""What each command of `jaxformer` does: reads its flags, calls the package, prints. No logic beyond that.

A command is a function of (flag values, arguments that are no flags, changes of the config) → exit status. It imports
what it needs when it is called: `jaxformer params` must not wait for what only training uses.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxformer.errors import UserError
from jaxformer.views import VIEWS, needed, refuse_unread


def train(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Trains --config in --workdir, or goes on with what is there; the same command after any interruption."""
    _none_left(positional)
    cfg, workdir = _config(values, changes), needed(values, 'workdir')
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
    """Judges a checkpoint by a whole split: loss, perplexity, accuracy, error rates, BLEU; or a file of outputs.

    --config.data.… for other data, --config.eval.… for another search. --against: the difference of two, with the
    interval that resampling the examples gives (1,000 times, pairs of both), and p.
    """
    _none_left(positional)
    if values.hypotheses or values.references:
        refuse_unread(values, 'eval --hypotheses', ('hypotheses', 'references', 'against', 'json'))
        for field in changes:
            raise UserError(f'--config.{field}: eval --hypotheses reads no config; leave it out')
        from jaxformer.decode import text_scores

        references = needed(values, 'references').split(',')
        found = text_scores.of_files(needed(values, 'hypotheses'), references, values.against)
        _print_metrics(found, values.json)
        return 0
    if values.against:
        from jaxformer.train import against

        workdir = needed(values, 'workdir')
        rows = against.compare(workdir, values.against, values.step, values.split, changes)
        print(json.dumps(against.as_json(rows)) if values.json else against.as_text(rows, workdir, values.against))
        return 0
    from jaxformer.train.score import score

    _print_metrics(score(needed(values, 'workdir'), values.step, values.split, changes), values.json)
    return 0


def decode(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Decodes --input line by line to --output (standard output without it); --config.eval.… for another search.

    --split in the place of --input: the sources of that split of the run's own data, in its order; what is written
    so of train, config.data.targets takes for the targets of a student.
    """
    _none_left(positional)
    if values.split and values.input:
        raise UserError(f'--split={values.split}: with --input={values.input} there is no split to read; give one')
    from jaxformer import files
    from jaxformer.data import text
    from jaxformer.decode.lines import Writer, sources

    workdir = needed(values, 'workdir')
    opened = sources(workdir, values.split) if values.split else text.opened(needed(values, 'input'))
    if values.output:
        _refuse_unwritable(values.output)
        if values.input and all(map(os.path.isfile, both := (values.input, values.output))) and os.path.samefile(*both):
            raise UserError(f'--output={values.output}: is the --input, which it would replace; choose another file')
    with opened as (source, num_bytes):
        writer = Writer(workdir, values.step, changes)
        if values.output:
            with files.writing(values.output) as file:
                writer.stream(source, file.write, num_bytes)
        else:
            writer.stream(source, _to_standard_output, num_bytes)
    return 0


def plan(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Prints the cells of a grid, their sizes, and what of it is there already; runs nothing."""
    _none_left(positional)
    from jaxformer.ablate import plan as plans

    resolved = plans.resolve(plans.read(needed(values, 'grid'), changes))
    workdir = needed(values, 'workdir')
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
    grid, workdir = needed(values, 'grid'), needed(values, 'workdir')
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

    found = state.read(needed(values, 'workdir'))
    print(json.dumps(state.as_json(found)) if values.json else state.as_text(found))
    return 0


def report(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Writes report.md, report.csv and report.html of a grid and prints the first."""
    _none_left(positional)
    from jaxformer.ablate import report as reports

    written = reports.write(needed(values, 'workdir'))
    print(written['md'].read_text())
    for path in written.values():
        print(path)
    return 0


def inspect(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Looks into a run: params, checkpoints, attention (explorer: on a page), attribution, heads; or prunes them.

    `jaxformer inspect VIEW --help` says more of each, and which flags it reads.
    """
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # looking must not take an accelerator that a run wants
    view, *rest = positional or ['params']
    _none_left(rest)
    if view not in VIEWS:
        raise UserError(f'inspect {view}: no such view; choose one of {", ".join(VIEWS)}')
    refuse_unread(values, f'inspect {view}', VIEWS[view].reads)
    VIEWS[view].show(values, needed(values, 'workdir'))
    return 0


def compare(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Differences of configuration, environment and final metrics of two or more runs, or of two or more grids; of the
    parameters of two checkpoints, each RUN@STEP."""
    if len(positional) < 2:
        noun = 'directory' if len(positional) == 1 else 'directories'
        raise UserError(f'compare: {len(positional)} run {noun} given; name two or more')
    from jaxformer.ablate import compare as grids
    from jaxformer.inspection import compare as runs
    from jaxformer.inspection import difference

    if any(map(difference.place, positional)):
        os.environ.setdefault('JAX_PLATFORMS', 'cpu')
        if len(positional) > 2:
            raise UserError(f'compare: {len(positional)} checkpoints given; name two')
        apart = difference.between(*positional)
        print(json.dumps(difference.as_json(apart)) if values.json else difference.as_text(apart))
    elif grids.are_grids(positional):
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

    workdir = needed(values, 'workdir')
    print(importing.advice(importing.run(needed(values, 'input'), workdir), workdir))
    return 0


def export(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Writes a checkpoint to the directory --output, in the layout of transformers, with its tokenizer.json.

    --quantize=int8: a run in its place, with weights in a quarter of the bytes; --split says what that changes.
    --stablehlo: functions in its place that JAX runs without this package, on CPUs, CUDA GPUs and TPUs, for any
    number of rows and any lengths (up to model.max_length where tables by position end there); OUTPUT/signature.json
    says how they are called, and OUTPUT/decode.py calls them.
    """
    _none_left(positional)
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    from jaxformer.inspection import export as exporting
    from jaxformer.inspection import quantize

    workdir, output = needed(values, 'workdir'), needed(values, 'output')
    if values.stablehlo:
        if values.quantize:
            raise UserError(
                f'--quantize={values.quantize}: not with --stablehlo, whose weights are numbers; leave one out'
            )
        if values.split:
            raise UserError(f'--split={values.split}: not with --stablehlo; leave it out')
        from jaxformer.inspection import export_stablehlo

        written = sorted(path.name for path in export_stablehlo.run(workdir, values.step, output).iterdir())
        usage = f'python {os.path.join(output, export_stablehlo.EXAMPLE)} < LINES, of ids'
        print(json.dumps({'files': written}) if values.json else f'{output}: {", ".join(written)}; {usage}')
    elif values.quantize:
        quantize.refuse_unknown(values.quantize)
        _print_metrics(quantize.run(workdir, values.step, output, values.split), values.json)
    else:
        refuse_unread(values, 'export without --quantize or --stablehlo', ('workdir', 'step', 'output'))
        exporting.run(workdir, values.step, output)
    return 0


def average(values: flags.FlagValues, positional: Sequence[str], changes: dict[str, str]) -> int:
    """Makes --output a run whose parameters are the mean of the --last newest checkpoints of --workdir."""
    _none_left(positional)
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    from jaxformer.inspection import average as averaging

    output = needed(values, 'output')
    steps = averaging.run(needed(values, 'workdir'), values.last, output)
    print(f'{output}: the mean of steps {", ".join(map(str, steps))}')
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


def _config(values: flags.FlagValues, changes: dict[str, str]) -> Any:
    from jaxformer import config

    loaded = config.load(needed(values, 'config'))
    config.override(loaded, changes)
    return config.resolve(loaded)


def _refuse_unwritable(path: str) -> None:
    """Before the work is done, not after it."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        raise UserError(f'--output={path}: not a file in a directory that can be written; choose another one')


def _to_standard_output(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _none_left(positional: Sequence[str]) -> None:
    if positional:
        raise UserError(f'{positional[0]}: not expected here; flags are written --name=value')


def _print_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    """A line for each; the ends of an interval stand behind what they are of."""
    if as_json:
        print(json.dumps(metrics))
        return
    ends = {f'{name}{end}' for name in metrics for end in ('_low', '_high')}
    for name, value in metrics.items():
        if name not in ends:
            both = [_number(metrics[end]) for end in (f'{name}_low', f'{name}_high') if end in metrics]
            print(f'{name:<18} {_number(value)}' + (f' ({both[0]} to {both[1]})' if both else ''))


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    grouped = (float(value).is_integer() or abs(value) >= 1e5) and abs(value) < 1e15
    return f'{value:{",.0f" if grouped else ".6g"}}'
