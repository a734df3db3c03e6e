"""How long what is left of a grid will take, from the runs that are done. Pure: numbers in, numbers out."""

import dataclasses
from collections.abc import Mapping, Sequence

Span = tuple[float, float]
"""Start and end of a process's work on a run, in seconds of one clock."""


@dataclasses.dataclass(frozen=True)
class Forecast:
    """seconds: of one run of each cell, by id.

    at_once: how many processes were at work, mean over the time in which any was. left: seconds until all is done at
    this pace; None where no run is finished yet, or where a cell that has none was not counted.
    """

    seconds: Mapping[str, float]
    at_once: float | None
    left: float | None


def forecast(
    flops: Mapping[str, int | None],
    done: Sequence[tuple[str, float, Sequence[Span]]],
    open_: Sequence[tuple[str, float]],
) -> Forecast:
    """Takes the mean time of a cell's own finished runs; of a cell without one, that of all scaled by FLOPs.

    Args:
      flops: of one run of each cell, by id.
      done: (cell, seconds that it took, when it was worked on) of each finished run whose times are known.
      open_: (cell, share that is left) of each run that is not finished.
    """
    took: dict[str, list[float]] = {}
    for cell, time, _ in done:
        took.setdefault(cell, []).append(time)
    seconds = {cell: sum(times) / len(times) for cell, times in took.items()}
    counted = [(time, flops[cell] or 0) for cell, times in took.items() for time in times if flops.get(cell)]
    if counted:
        rate = sum(time for time, _ in counted) / sum(count for _, count in counted)
        seconds |= {cell: rate * count for cell, count in flops.items() if count and cell not in seconds}
    busy = _union([span for _, _, spans in done for span in spans])
    at_once = sum(map(sum, took.values())) / busy if busy else None
    if at_once is None or any(cell not in seconds for cell, _ in open_):
        return Forecast(seconds, at_once, None)
    return Forecast(seconds, at_once, sum(share * seconds[cell] for cell, share in open_) / at_once)


def _union(spans: Sequence[Span]) -> float:
    """Seconds that lie in any of the spans."""
    total, reached = 0.0, float('-inf')
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
