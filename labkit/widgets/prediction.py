"""A prediction drawn over what happened, and the gap between the two in words.

A predicted trace gives a box a rank and step: from where the rank's step would have begun, counted
from the step's own start, to where it would have ended. A number of seconds gives one line a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.trace.events import Trace
from labkit.trace.gap import gap
from labkit.trace.tables import brief

if TYPE_CHECKING:
    from collections.abc import Mapping

    from labkit.trace.events import About

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
    ValueError : it is of another number of ranks, of another unit or of other steps, or is no time
    """
    if isinstance(prediction, Trace):
        found = gap(prediction, happened)
        boxes = []
        for index, *_ in found.steps:
            ours, theirs = prediction.find_step(index), happened.find_step(index)
            by = theirs.start - ours.start
            boxes += [Box(index, r, start + by, end + by) for r, (start, end) in ours.spans.items()]
        said: dict[int | None, str] = {None: found.sentence}
        for step in found.steps:
            parts = tuple(part for part in found.parts if part.step == step[0])
            said[step[0]] = replace(found, steps=(step,), parts=parts).sentence
        return Predicted(tuple(boxes), said)
    number = not isinstance(prediction, bool) and isinstance(prediction, int | float)
    if not number or not 0 <= prediction < math.inf:
        raise ValueError(f"prediction={prediction!r}: give a Trace or seconds, 0 or more")
    steps = happened.steps
    boxes = [Box(step.index, None, step.start, step.start + prediction) for step in steps]
    said = {step.index: _beside(prediction, step.duration, happened.about) for step in steps}
    if steps:
        mean = sum(step.duration for step in steps) / len(steps)
        each = f"{len(steps)} steps, on average " if len(steps) > 1 else ""
        said[None] = each + _beside(prediction, mean, happened.about)
    return Predicted(tuple(boxes), said)


def _beside(expected: float, happened: float, about: About) -> str:
    """``predicted 144 ms, paced 150 ms: 4 % more.``"""
    unit = about.unit
    told = f"predicted {brief(expected, unit)}, {about.clock} {brief(happened, unit)}"
    if not expected:
        return f"{told}."
    share = happened / expected - 1
    if abs(share) < 0.005:
        return f"{told}: as predicted."
    if share >= 2:
        return f"{told}: {share + 1:.3g} times as much."
    return f"{told}: {abs(share) * 100:.0f} % {'more' if share > 0 else 'less'}."
