"""What each rank held in memory: four parts, read from a trace's memory marks.

A mark says how many bytes a rank holds of one part from that moment on. A run that is launched with
``memory=`` writes the four together at every check (`labkit.runtime.budget`); a schedule or a model
may write them too. Cost of reading: one pass over the marks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from labkit.trace.events import Trace
    from labkit.trace.log import Log

__all__ = ["PARTS", "Held", "held", "write"]

PARTS = ("weights", "gradients", "optimizer", "activations")


@dataclass(frozen=True)
class Held:
    """What one rank holds at one moment, in bytes.

    Parameters
    ----------
    rank : its global rank
    weights : parameters and buffers
    gradients : what lies in the parameters' ``.grad``
    optimizer : the optimizer's state, and masters that belong to no module
    activations : what the forward has saved for the backward
    """

    rank: int
    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if value < 0:
                raise ValueError(f"{part.name}={value}: use 0 or more")

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part, in the order in which they are drawn."""
        return {name: getattr(self, name) for name in PARTS}


def write(log: Log, now: Held) -> None:
    """Note in a rank's log what it holds from now on: four marks with one stamp."""
    at = log.stamp()
    for name, size in now.parts.items():
        log.event("memory", name, at, at, bytes=size)


def held(trace: Trace, step: int | None = None) -> tuple[Held, ...]:
    """What each rank held when it held most: the four parts at that one moment.

    The largest of each part alone, at moments of their own, would add up to what was never there.

    Parameters
    ----------
    step : look at this step alone, with what was held when it began; None: at the whole trace

    Returns
    -------
    tuple : one a rank that has memory marks, by rank; the first of equal peaks

    Raises
    ------
    KeyError : the trace has no such step
    """
    windows = None
    if step is not None:
        windows = next((s.spans for s in trace.steps if s.index == step), None)
        if windows is None:
            known = ", ".join(str(s.index) for s in trace.steps) or "none"
            raise KeyError(f"no step {step} in this trace (steps: {known})")
    c = trace.columns
    rows = np.flatnonzero(trace.where("memory"))
    # By rank and time; marks of one moment stay in the order in which they were written.
    rows = rows[np.lexsort((c["start"][rows], c["rank"][rows]))]
    now: dict[int, dict[str, int]] = {}
    peaks: dict[int, Held] = {}
    moments = list(
        zip(c["rank"][rows].tolist(), c["start"][rows].tolist(), rows.tolist(), strict=True)
    )
    for i, (rank, at, row) in enumerate(moments):
        name = trace.strings[c["name"][row]]
        if name not in PARTS:
            continue
        now.setdefault(rank, {})[name] = int(c["bytes"][row])
        until = float("inf")  # how long this is held
        if i + 1 < len(moments) and moments[i + 1][0] == rank:
            until = moments[i + 1][1]
            if until == at:
                continue  # marks of one moment are one statement
        if windows is not None:
            if rank not in windows:
                continue
            start, end = windows[rank]
            if at >= end or until <= start:
                continue
        found = Held(rank, **now[rank])
        if rank not in peaks or found.total > peaks[rank].total:
            peaks[rank] = found
    return tuple(peaks[rank] for rank in sorted(peaks))
