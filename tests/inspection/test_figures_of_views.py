"""Figures hold the numbers of what they are drawn from, each beside its name."""

import shutil

from jaxformer.inspection import checkpoints, compare, difference, figures, parameters


def bars(axes):
    names = [label.get_text() for label in axes.get_yticklabels()]
    return dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True))


def test_parameters_and_their_distance(trained):
    rows = parameters.from_checkpoint(trained)
    assert bars(figures.of_parameters(rows).axes[0]) == parameters.groups(rows)
    apart = difference.between(f'{trained}@30', f'{trained}@60')
    drawn = bars(figures.of_difference(apart).axes[0])
    assert drawn == {path: entry.relative for path, entry in apart.apart.items()}
    assert list(drawn.values()) == sorted(drawn.values(), reverse=True) and len(set(drawn.values())) > 3


def test_checkpoints_and_those_that_are_not_whole(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / 'run')
    (run / 'checkpoints' / '30' / 'manifest.json').unlink()
    entries = checkpoints.of_run(run)
    lines = {line.get_label(): line for line in figures.of_checkpoints(entries).axes[0].lines}
    steps, losses = lines['dev/loss'].get_data()
    assert dict(zip(steps, losses, strict=True)) == {
        entry.step: entry.metrics['dev/loss'] for entry in entries if 'dev/loss' in entry.metrics
    }
    assert lines['not whole'].get_xdata().tolist() == [30]


def test_runs_side_by_side(trained, tmp_path):
    other = shutil.copytree(trained, tmp_path / 'other')
    found = compare.compare([trained, other])
    drawn = figures.of_comparison(found)
    panels = {panel.get_title(): panel for panel in drawn.axes if panel.patches}
    assert len(panels) > 3
    for name, panel in panels.items():
        assert tuple(bar.get_width() for bar in panel.patches) == found.metrics[name].values
