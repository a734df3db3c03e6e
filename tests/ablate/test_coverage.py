"""How often the report's intervals and verdicts are right, on data made up so that the truth is known."""

import numpy as np

from jaxformer.ablate import resample, separation, stats

REPETITIONS = 2000


def test_the_interval_over_seeds_covers_the_mean(seeds=5):
    rng = np.random.default_rng(1)
    covered = 0
    for row in 0.25 + 0.03 * rng.standard_normal((REPETITIONS, seeds)):
        found = stats.summarise(row)
        covered += abs(found.mean - 0.25) <= found.half_width
    assert 0.93 <= covered / REPETITIONS <= 0.97


def test_the_interval_of_a_paired_difference_covers_it(seeds=4):
    """The seeds differ by ten times what the cells do."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(REPETITIONS):
        base = rng.normal(1.0, 0.5, seeds)
        cell = base + rng.normal(0.05, 0.02, seeds)
        found = stats.difference(dict(enumerate(cell)), dict(enumerate(base)))
        covered += abs(found.mean - 0.05) <= found.half_width
    assert 0.93 <= covered / REPETITIONS <= 0.97


def test_without_any_difference_few_grids_have_a_separated_cell(cells=5, seeds=5):
    rng = np.random.default_rng(3)
    wrong = uncorrected = 0
    for values in rng.normal(0.25, 0.03, (REPETITIONS, cells + 1, seeds)):
        judged = separation.verdicts([dict(enumerate(row)) for row in values])
        wrong += any(one.state == separation.SEPARATED for one in judged)
        uncorrected += any(one.difference.p < separation.ALPHA for one in judged)
    assert wrong / REPETITIONS <= 0.06
    assert uncorrected / REPETITIONS > 0.12  # without the correction it would be many


def test_the_interval_over_examples_covers_the_rate_of_all_there_could_be(examples=120):
    """Edits over symbols, whose true rate is that of endlessly many examples; a difference of pairs beside it."""
    rng = np.random.default_rng(4)
    combine = np.array([[1.0, 0.0], [-1.0, 1.0]])
    covered = np.zeros(2)
    for _ in range(REPETITIONS):
        symbols = rng.integers(3, 12, examples)
        hard = rng.random(examples) < 0.4  # for both cells, so that pairs matter
        base = rng.binomial(symbols, np.where(hard, 0.5, 0.05))
        cell = np.maximum(base - (rng.random(examples) < 0.3), 0)
        found = resample.intervals(
            np.stack([base, cell]),
            np.stack([symbols, symbols]),
            combine,
            resamples=400,
            seed=int(rng.integers(1 << 30)),
        )
        truth = (0.4 * 0.5 + 0.6 * 0.05, -0.3 * (1 - 0.4 * _none(0.5) - 0.6 * _none(0.05)) / 7)
        covered += (found.low <= truth) & (truth <= found.high)
    assert ((covered / REPETITIONS >= 0.93) & (covered / REPETITIONS <= 0.97)).all(), covered


def _none(rate):
    """Share of examples of 3 to 11 symbols without an edit."""
    return np.mean((1 - rate) ** np.arange(3, 12))
