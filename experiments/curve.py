"""The learning curve of one run, as a figure and a table.

Question: how do loss and error rates fall over a run?
Command:  python experiments/curve.py RUN FIGURE.svg
Result:   prints the table in Markdown, writes the figure; experiments/g2p.svg is that of configs/g2p.py.
"""

import sys

from etils import epath

from jaxformer.decode.open import run_directory
from jaxformer.errors import UserError
from jaxformer.train.writer import METRICS, read_metrics

COLUMNS = (('loss', 1, '{:.3f}'), ('perplexity', 1, '{:.3f}'), ('per', 100, '{:.2f} %'), ('wer', 100, '{:.2f} %'))


def series(lines: list[dict], name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of one metric."""
    points = [(line['step'], line[name]) for line in lines if name in line]
    return [step for step, _ in points], [value for _, value in points]


def table(lines: list[dict], split: str) -> str:
    """A Markdown table of the evaluations that decoded."""
    rows = ['| updates | loss | perplexity | PER | WER |', '|---:|---:|---:|---:|---:|']
    for line in lines:
        if f'{split}/wer' in line:
            cells = (form.format(line[f'{split}/{name}'] * factor) for name, factor, form in COLUMNS)
            rows.append(f'| {line["step"]:,} | {" | ".join(cells)} |')
    return '\n'.join(rows)


def draw(lines: list[dict], split: str, path: epath.Path) -> None:
    """Losses on the left, error rates on the right, against updates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout='constrained')
    losses, rates = figure.subplots(1, 2)
    losses.plot(*series(lines, 'train/loss'), color='0.75', linewidth=0.8, label='train, smoothed labels')
    losses.plot(*series(lines, f'{split}/loss'), color='C0', marker='o', markersize=3, label=split)
    losses.set(ylabel='nats per symbol', ylim=(0, 2))
    for name, label in (('wer', 'word error rate'), ('per', 'phoneme error rate')):
        steps, values = series(lines, f'{split}/{name}')
        rates.plot(steps, [100 * value for value in values], marker='o', markersize=3, label=f'{split} {label}')
    rates.set(ylabel='percent', ylim=(0, None))
    for axes in (losses, rates):
        axes.set_xlabel('updates')
        axes.legend(frameon=False)
        axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(path, metadata={'Date': None})


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print('usage: python experiments/curve.py RUN FIGURE.svg', file=sys.stderr)
        return 2
    try:
        workdir = run_directory(arguments[0])
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    lines = read_metrics(workdir / METRICS)
    split = next((name.split('/')[0] for line in lines for name in line if name.endswith('/perplexity')), 'dev')
    draw(lines, split, epath.Path(arguments[1]))
    print(table(lines, split))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
