"""What each view of `jaxformer inspect` does: as a command (see `commands.py`), of (flag values, --workdir)."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from absl import flags

from jaxformer.errors import UserError


def params(values: flags.FlagValues, workdir: str) -> None:
    """Arrays of a checkpoint from its metadata; with --stats, or --since, what is in them."""
    from jaxformer.inspection import parameters, statistics

    if values.stats or values.since is not None:
        numbers = statistics.of_checkpoint(workdir, values.step, values.since)
        print(json.dumps(statistics.as_json(numbers)) if values.json else statistics.as_text(numbers))
    else:
        rows = parameters.from_checkpoint(workdir, values.step)
        print(json.dumps(parameters.as_json(rows)) if values.json else parameters.as_text(rows))


def checkpoints(values: flags.FlagValues, workdir: str) -> None:
    """Which checkpoints there are, and what is wrong with them."""
    from jaxformer.inspection import checkpoints

    entries = checkpoints.of_run(workdir)
    print(json.dumps(checkpoints.as_json(entries)) if values.json else checkpoints.as_text(entries))


def attribution(values: flags.FlagValues, workdir: str) -> None:
    """What the outputs for each line of --input depend on, by gradients and deletion, and whether attention agrees.

    With --split whether it agrees over examples of it."""
    from jaxformer.data import text as texts
    from jaxformer.inspection import attribution_report

    if values.split:
        refuse_unread(values, 'inspect attribution --split', ('workdir', 'step', 'split', 'json'))
        from jaxformer.data import corpus
        from jaxformer.decode.open import open_run

        run = open_run(workdir, values.step)
        over = attribution_report.of_split(run, corpus.load_for(run.cfg.data, values.split).split(values.split))
        print(json.dumps(attribution_report.as_json(over)) if values.json else attribution_report.as_text(over))
        return
    shown = attribution_report.of_lines(workdir, texts.read_lines(needed(values, 'input')), values.step)
    drawn = [str(path) for path in attribution_report.draw(shown, values.output or f'{workdir}/attribution')]
    if values.json:
        print(json.dumps({**attribution_report.as_json(shown), 'figures': drawn}))
    else:
        print('\n'.join([attribution_report.as_text(shown), '', *drawn]))


def attention(values: flags.FlagValues, workdir: str) -> None:
    """What each head looks at, in numbers and in pictures, for --input, or the means over --split.

    Of chosen --rows pictures alone: the numbers are means over all rows."""
    from jaxformer.decode.open import open_run
    from jaxformer.inspection import attention, choice, scores

    chosen = choice.parse(values.which, values.layers, values.heads, values.rows)
    paths: list[str] = []
    if values.split and values.rows:
        raise UserError(f'--rows={values.rows}: of one text; not with --split')
    if values.split:
        reads = ('workdir', 'step', 'split', 'which', 'layers', 'heads', 'json')
        refuse_unread(values, 'inspect attention --split', reads)
        from jaxformer.data import corpus

        run = open_run(workdir, values.step)
        found = scores.of_split(run, corpus.load_for(run.cfg.data, values.split).split(values.split), chosen)
    else:
        text = needed(values, 'input')
        run = open_run(workdir, values.step)
        maps = attention.of_run(run, text, choice=chosen)
        found = scores.of_maps(run, maps, chosen) if chosen.rows is None else []
        output = values.output or os.path.join(workdir, 'attention')
        paths = [str(path) for path in attention.draw(maps, output, values.format)]
    print(
        json.dumps({'figures': paths, 'heads': scores.as_json(found)})
        if values.json
        else '\n'.join([*([scores.as_text(found)] if found else []), *paths])
    )


def explorer(values: flags.FlagValues, workdir: str) -> None:
    """One page of the attention to --input, a text or a file of texts, a line each."""
    from jaxformer.data import text as texts
    from jaxformer.decode.open import open_run
    from jaxformer.inspection import choice, explorer

    given = needed(values, 'input')
    lines = [line for line in texts.read_lines(given) if line.strip()] if os.path.isfile(given) else [given]
    chosen = choice.parse(values.which, values.layers, values.heads)
    run, output = open_run(workdir, values.step), values.output or os.path.join(workdir, 'attention')
    print(explorer.write(run, lines, output, chosen))


def heads(values: flags.FlagValues, workdir: str) -> None:
    """Which heads matter on --split, by masking and by gradient, and the loss without more and more of them.

    With --keep error rates, too."""
    if not values.output:
        refuse_unread(values, 'inspect heads without --output', ('workdir', 'step', 'split', 'keep', 'json'))
    from jaxformer.ablate import heads
    from jaxformer.data import corpus
    from jaxformer.decode.open import open_run

    run = open_run(workdir, values.step)
    by = values.split or run.cfg.eval.split
    there = corpus.load_for(run.cfg.data, by)
    judged = there.split('test') if values.keep is not None else None
    study = heads.Study(run, there.split(by))
    if judged is not None:
        study.refuse_left(values.keep, judged)
    importance = study.importance()
    curves = study.curves(importance)
    decoded = {}
    if judged is not None:
        orders = {'in turn': study.in_turn(len(study.heads) - values.keep), **study.orders(importance)}
        decoded = study.decoded(orders, values.keep, judged)
    if values.json:
        print(json.dumps(heads.as_json(importance, curves) | ({'decoded': decoded} if decoded else {})))
    else:
        print(heads.as_text(importance, curves))
        if decoded:
            print('', heads.decoded_text(decoded, values.keep), sep='\n')
    if values.output:
        path = heads.draw(curves, values.output, values.format)
        print(path, file=sys.stderr if values.json else sys.stdout)


def prune(values: flags.FlagValues, workdir: str) -> None:
    """Writes to --output a run without --heads."""
    from jaxformer.decode.open import open_run
    from jaxformer.inspection import prune

    run, output = open_run(workdir, values.step), needed(values, 'output')
    print(prune.write(run, prune.parse(needed(values, 'heads'), run.cfg.model), output))


class View(NamedTuple):
    """show: of (flag values, --workdir). reads: the flags that mean something to it, --workdir first."""

    show: Callable[[flags.FlagValues, str], None]
    reads: tuple[str, ...]


_CHOICE = ('which', 'layers', 'heads')
VIEWS = {
    'params': View(params, ('workdir', 'step', 'stats', 'since', 'json')),
    'checkpoints': View(checkpoints, ('workdir', 'json')),
    'attention': View(attention, ('workdir', 'step', 'input', 'split', *_CHOICE, 'rows', 'output', 'format', 'json')),
    'explorer': View(explorer, ('workdir', 'step', 'input', *_CHOICE, 'output')),
    'attribution': View(attribution, ('workdir', 'step', 'input', 'split', 'output', 'json')),
    'heads': View(heads, ('workdir', 'step', 'split', 'keep', 'output', 'format', 'json')),
    'prune': View(prune, ('workdir', 'step', 'heads', 'output')),
}


def refuse_unread(values: flags.FlagValues, what: str, reads: Iterable[str]) -> None:
    """Raises UserError where a flag was given that `what` does not read."""
    for name in values:
        flag = values[name]
        if flag.present and name not in reads and not (flag.value in (None, '') or flag.value is False):
            names = ', '.join(f'--{read}' for read in reads)
            raise UserError(f'{flag.serialize()}: {what} does not read it; it reads {names}')


def needed(values: flags.FlagValues, name: str) -> Any:
    """The value of a flag. Raises UserError where it was not given."""
    if (value := values[name].value) in (None, ''):
        raise UserError(f'--{name} is missing: {values[name].help}')
    return value
