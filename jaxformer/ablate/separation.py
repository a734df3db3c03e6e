"""What a grid's numbers separate from its baseline, in words; pure functions of its results.

Runs of the same seed are compared (they share the order of the data, and where shapes agree the initial weights), by
the t test of paired differences on the metric that the grid is judged by, with Holm's correction over the cells.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxformer.ablate import collect, metrics, stats
from jaxformer.ablate.shown import row_name

ALPHA = 0.05
"""Share of grids without any real difference in which at least one would be called separated."""

SEPARATED, NOT_SEPARATED, NOTHING = 'separated', 'not separated', 'nothing to say'


@dataclasses.dataclass(frozen=True)
class Verdict:
    """About the cell with this index: its difference from the baseline, and its p after correction.

    `state` is 'nothing to say' and `p` None where the difference has no p of its own (see `stats.Difference`).
    """

    index: int
    difference: stats.Difference
    p: float | None
    state: str


def judge(results: collect.Results) -> list[Verdict]:
    """A verdict on every cell but the baseline, in the order of the table."""
    return verdicts([by_seed(cell, results.ledger.metric) for cell in results.cells])


def verdicts(cells: Sequence[Mapping[int, float]]) -> list[Verdict]:
    """A verdict on every cell but the first, which is the baseline; of each its values by seed."""
    differences = [stats.difference(values, cells[0]) for values in cells[1:]]
    tested = [index for index, found in enumerate(differences) if found.p is not None]
    adjusted = dict(zip(tested, stats.holm([differences[index].p or 0.0 for index in tested]), strict=True))
    judged = []
    for index, found in enumerate(differences):
        p = adjusted.get(index)
        state = NOTHING if p is None else SEPARATED if p < ALPHA else NOT_SEPARATED
        judged.append(Verdict(index + 1, found, p, state))
    return judged


def sentences(results: collect.Results) -> list[str]:
    """What the report says about the differences: how they were judged, then one sentence per cell."""
    judged = judge(results)
    title = metrics.title(results.ledger.metric)
    if not judged:
        return []
    if not any(by_seed(cell, results.ledger.metric) for cell in results.cells):
        return [f'Nothing can be said: no finished run has {title}.']
    if all(verdict.difference.n < 2 for verdict in judged):
        return [
            f'Nothing can be said about any difference in {title}: no cell shares two finished seeds with the base. '
            'Two seeds (--seeds=2) give an interval, three one of about a quarter of its width.'
        ]
    compared = sum(verdict.p is not None for verdict in judged)
    unit = ' in %' if metrics.lookup(results.ledger.metric).percent else ''
    plural = '' if compared == 1 else 's'
    head = (
        f'Differences from the base in {title}{unit}, paired by seed: mean ± half width of the 95 % t interval, and '
        f"p of the paired t test after Holm's correction for {compared} comparison{plural}. Separated: p < {ALPHA}. "
        'What is not separated need not be equal: its interval holds what remains possible.'
    )
    order = (SEPARATED, NOT_SEPARATED, NOTHING)
    return [head, *(_sentence(results, verdict) for verdict in sorted(judged, key=lambda v: order.index(v.state)))]


def _sentence(results: collect.Results, verdict: Verdict) -> str:
    metric = metrics.lookup(results.ledger.metric)
    found = verdict.difference
    name = row_name(verdict.index, results.cells[verdict.index].entry.label)
    if verdict.p is None:
        return f'Nothing can be said: {name}: {_reason(metric, found)}.'
    assert found.mean is not None and found.half_width is not None
    interval = f'± {metric.number(found.half_width)} (n = {found.n}, {_p(verdict.p)})'
    if verdict.state == SEPARATED:
        way = 'better' if (found.mean < 0) == (metric.better == 'lower') else 'worse'
        return f'Separated: {name} is {way} by {metric.number(abs(found.mean))} {interval}.'
    alone = '; its interval alone leaves 0 out, the correction does not' if found.half_width < abs(found.mean) else ''
    return f'Not separated: {name} differs by {metric.number(found.mean)} {interval}{alone}.'


def _reason(metric: metrics.Metric, found: stats.Difference) -> str:
    if found.n == 0 or found.mean is None:
        return 'no finished seed in common with the base'
    if found.n == 1:
        return 'one seed in common with the base'
    if found.mean == 0:
        return 'the same numbers as the base in every seed'
    return f'the same difference in every seed, {metric.number(found.mean)}: no spread'


def by_seed(cell: collect.CellResult, key: str) -> dict[int, float]:
    """The final value of a metric by seed, of the finished runs where it is finite."""
    finals = {result.run.seed: result.final[key][1] for result in cell.done if key in result.final}
    return {seed: value for seed, value in finals.items() if value is not None}


def probability(p: float) -> str:
    """'0.031', '< 0.001'."""
    return '< 0.001' if p < 0.001 else f'{p:.3f}'


def _p(p: float) -> str:
    return f'p {probability(p)}' if p < 0.001 else f'p = {probability(p)}'
