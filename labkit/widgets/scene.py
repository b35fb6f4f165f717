"""A trace as it is shown: its picture, and what lies over it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.trace.events import Trace
from labkit.widgets.buffer import pack_bars, remarks
from labkit.widgets.panel import Panel
from labkit.widgets.path import Path, path_of
from labkit.widgets.picture import Picture, build
from labkit.widgets.prediction import Predicted, predicted
from labkit.widgets.window import window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from labkit.widgets.sketch import Sketch

__all__ = ["Scene"]


@dataclass(frozen=True, eq=False)
class Scene:
    """A trace with its picture; perhaps a prediction and a critical path."""

    trace: Trace
    picture: Picture
    predicted: Predicted | None = None
    path: Path | None = None

    @classmethod
    def of(
        cls,
        trace: Trace,
        known: Sketch,
        prediction: Trace | float | None = None,
        path: bool = False,
        step: int | None = None,
    ) -> Scene:
        """`trace`, with what is to lie over it.

        Parameters
        ----------
        known : the sketch of the trace, or of that of which it is a retiming
        step : of which the critical path is to be; None: of the whole trace
        """
        picture = build(trace, known)
        over = None if prediction is None else predicted(prediction, trace)
        return cls(trace, picture, over, path_of(trace, picture, step) if path else None)

    def packed(self, least: NDArray[np.int64] | None = None) -> bytes:
        """What the browser needs of it; `least` as `rows_of` takes it."""
        over, path = self.predicted, self.path
        return pack_bars(
            self.trace,
            self.picture,
            least,
            boxes=[[b.step, b.rank, b.start, b.end] for b in over.boxes] if over else [],
            gaps={"" if step is None else str(step): s for step, s in over.said.items()}
            if over else {},
            path=[[p.rank, p.lane, p.start, p.end, p.name, p.reason] for p in path.pieces]
            if path else [],
            path_said=path.said if path else "",
        )  # fmt: skip

    def panel(self, step: int | None, title: str, aligned: bool = False) -> Panel:
        """What a still shows of it: the step, or all where there is none such.

        Parameters
        ----------
        aligned : count from the first step's start, as the run beside this one does
        """
        steps = self.trace.steps
        known = step if step in {s.index for s in steps} else None
        shown = window(self.trace, self.picture, known)
        if aligned and steps and shown.step is None:
            shown = replace(shown, start=steps[0].start, step=steps[0].index)
        return Panel(
            self.picture, self.trace.about, title, shown, self.trace.steps, self.predicted,
            self.path, remarks(self.picture),
        )  # fmt: skip
