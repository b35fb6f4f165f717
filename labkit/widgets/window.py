"""The stretch of time that a timeline shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.trace.events import Trace
    from labkit.widgets.picture import Picture


@dataclass(frozen=True)
class Window:
    """The stretch of time that a picture shows at first, and the time that its axis calls zero.

    Parameters
    ----------
    step : the step whose start is the axis's zero; None: the trace's own zero
    spans : start and end by rank of the one step that is shown; what lies outside is paled
    """

    start: float
    end: float
    step: int | None = None
    spans: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def origin(self) -> float:
        return 0.0 if self.step is None else self.start


def window(trace: Trace, picture: Picture, step: int | None = None) -> Window:
    """Step `step`, or all steps; the whole trace where steps are not marked or fill it.

    What a run does before its first step often takes longer than all its steps.
    """
    start, end = picture.extent
    if step is not None:
        chosen = next(s for s in trace.steps if s.index == step)
        return Window(chosen.start, chosen.end, step, chosen.spans)
    if trace.steps:
        first, last = trace.steps[0].start, max(s.end for s in trace.steps)
        if last - first < 0.98 * (end - start):
            return Window(first, last, trace.steps[0].index)
    return Window(start, end)
