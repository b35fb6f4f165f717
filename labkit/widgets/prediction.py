"""A prediction drawn over what happened, and the gap between the two in words.

A predicted trace gives a box a rank and step: from where the rank's step would have begun, counted
from the step's own start, to where it would have ended. A number of seconds gives one line a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.trace.events import Trace
from labkit.widgets.words import in_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Box", "Predicted", "predicted"]


@dataclass(frozen=True)
class Box:
    """Where a rank's step was predicted to lie, on the clock of what happened.

    Parameters
    ----------
    rank : None for a prediction of the step alone: a line at `end` through all ranks
    """

    step: int
    rank: int | None
    start: float
    end: float


@dataclass(frozen=True)
class Predicted:
    """Boxes, and the gap in words: of each step by its number, and of all under None."""

    boxes: tuple[Box, ...]
    said: Mapping[int | None, str]


def predicted(prediction: Trace | float, happened: Trace) -> Predicted:
    """`prediction` over `happened`.

    Raises
    ------
    ValueError : it is of another number of ranks or of other steps, or is no time
    """
    boxes: list[Box] = []
    spans: dict[int | None, tuple[float, float]] = {}
    if isinstance(prediction, Trace):
        _check(prediction, happened)
        known = {step.index: step for step in prediction.steps}
        for step in happened.steps:
            if (other := known.get(step.index)) is None:
                continue
            spans[step.index] = other.duration, step.duration
            by = step.start - other.start
            boxes += [
                Box(step.index, rank, start + by, end + by)
                for rank, (start, end) in other.spans.items()
            ]
    else:
        if not 0 <= prediction < float("inf"):
            raise ValueError(f"prediction={prediction}: give a Trace or seconds, 0 or more")
        for step in happened.steps:
            spans[step.index] = float(prediction), step.duration
            end = step.start + prediction
            boxes.append(Box(step.index, None, step.start, end))
    clock, unit = happened.about.clock, happened.about.unit
    said = {index: _gap(*pair, clock, unit) for index, pair in spans.items()}
    if len(spans) > 1:
        mean = [sum(pair[i] for pair in spans.values()) / len(spans) for i in (0, 1)]
        said[None] = f"A step, on average: {_gap(mean[0], mean[1], clock, unit)}"
    elif said:
        said[None] = next(iter(said.values()))
    return Predicted(tuple(boxes), said)


def _check(prediction: Trace, happened: Trace) -> None:
    ranks = prediction.about.ranks, happened.about.ranks
    if ranks[0] != ranks[1]:
        raise ValueError(f"prediction: it is of {ranks[0]} ranks, this trace of {ranks[1]}")
    steps = [[s.index for s in trace.steps] for trace in (prediction, happened)]
    if happened.steps and not set(steps[0]) & set(steps[1]):
        told = (", ".join(map(str, found)) or "none" for found in steps)
        raise ValueError("prediction: its steps ({}) are none of this trace's ({})".format(*told))


def _gap(expected: float, happened: float, clock: str, unit: str) -> str:
    """``predicted 144 ms, paced 150 ms: 4 % more``."""
    both = f"predicted {in_time(expected, unit)}, {clock} {in_time(happened, unit)}"
    if expected <= 0:
        return both
    share = happened / expected - 1
    if abs(share) < 0.005:
        return f"{both}: as predicted"
    if share >= 2:
        return f"{both}: {share + 1:.3g} times as much"
    return f"{both}: {abs(share):.0%} {'more' if share > 0 else 'less'}".replace("%", " %")
