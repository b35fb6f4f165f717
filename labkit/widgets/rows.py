"""Where each rank is drawn, in pixels from the top: the same in the canvas and the still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.widgets.picture import COMMUNICATION, COMPUTE, SPANS

if TYPE_CHECKING:
    from labkit.widgets.picture import Picture


@dataclass(frozen=True)
class Row:
    """Where a rank's lanes lie, in pixels from the top."""

    top: float
    compute: float  # height of the compute lane
    each: float  # height of one communication lane
    number: int  # of them

    def lane(self, number: int) -> tuple[float, float]:
        """Top and height of a lane."""
        if number == SPANS:
            return self.top, 4.0
        if number == COMPUTE:
            return self.top + 6.0, self.compute
        below = self.top + 9.0 + self.compute
        gap = 1.0 if self.each > 4 else 0.0  # to the next lane
        return below + (number - COMMUNICATION) * self.each, self.each - gap

    @property
    def bottom(self) -> float:
        return self.lane(COMMUNICATION + self.number)[0]


def rows_of(picture: Picture, ranks: int) -> list[Row]:
    """Where each rank is drawn: roomy for a few ranks, tight for many."""
    at_once = np.ones(ranks, int)
    for lane in picture.lanes:
        at_once[lane.rank] = max(at_once[lane.rank], lane.number - COMMUNICATION + 1)
    compute = 24.0 if ranks <= 8 else 14.0 if ranks <= 32 else 8.0
    rows, top = [], 0.0
    for number in at_once.tolist():
        roomy = 18.0 if number == 1 else 14.0 if number == 2 else 12.0
        rows.append(Row(top, compute, roomy if ranks <= 8 else min(roomy, compute / 2), number))
        top = rows[-1].bottom + (12.0 if ranks <= 8 else 5.0)
    return rows
