"""Where each rank is drawn, in pixels from the top: the same in the canvas and the still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.widgets.picture import COMMUNICATION, COMPUTE, SPANS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labkit.widgets.picture import Picture


@dataclass(frozen=True)
class Row:
    """Where a rank's lanes lie, in pixels from the top."""

    top: float
    compute: float  # height of the compute lane
    each: float  # height of one communication lane
    number: int  # of them; a rank without operations has none

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


def at_once(picture: Picture, ranks: int) -> NDArray[np.int64]:
    """By rank, how many communication lanes are in use."""
    used = np.zeros(ranks, np.int64)
    for lane in picture.lanes:
        used[lane.rank] = max(used[lane.rank], lane.number - COMMUNICATION + 1)
    return used


def rows_of(picture: Picture, ranks: int, least: NDArray[np.int64] | None = None) -> list[Row]:
    """Where each rank is drawn: roomy for a few ranks, tight for many.

    Parameters
    ----------
    least : communication lanes that each rank keeps free, so that nothing jumps while times change
    """
    lanes = at_once(picture, ranks)
    if least is not None:
        lanes = np.maximum(lanes, least)
    compute = 24.0 if ranks <= 8 else 14.0 if ranks <= 32 else 8.0
    rows, top = [], 0.0
    for number in lanes.tolist():
        roomy = 18.0 if number <= 1 else 14.0 if number == 2 else min(12.0, 48.0 / number)
        rows.append(Row(top, compute, roomy if ranks <= 8 else min(roomy, compute / 2), number))
        top = rows[-1].bottom + (12.0 if ranks <= 8 else 5.0)
    return rows
