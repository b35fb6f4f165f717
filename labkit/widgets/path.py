"""A trace's critical path, laid over its picture: which bars it runs along, and where it hops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit.widgets.picture import COMPUTE

if TYPE_CHECKING:
    from labkit.trace.events import Trace
    from labkit.widgets.picture import Picture

__all__ = ["Path", "Piece", "path_of"]


@dataclass(frozen=True)
class Piece:
    """A stretch of the path, in the lane of a rank."""

    rank: int
    lane: int
    start: float
    end: float
    name: str
    reason: str


@dataclass(frozen=True)
class Path:
    """The pieces from the first to the last, and what they consist of, in words."""

    pieces: tuple[Piece, ...]
    said: str


def path_of(trace: Trace, picture: Picture, step: int | None) -> Path:
    """The critical path of `trace`, or of one step of it.

    Raises
    ------
    ValueError : the trace could not have happened
    """
    found = trace.critical_path(step)
    # What a rank does is in its compute lane; what only its operation does is in that one's.
    bars = picture.bars
    lane_of: dict[int, int] = {}
    beside = bars["lane"] > COMPUTE
    lane_of.update(zip(bars["row"][beside].tolist(), bars["lane"][beside].tolist(), strict=True))
    standing = np.flatnonzero(bars["lane"] == COMPUTE)
    lane_of.update(dict.fromkeys(bars["row"][standing].tolist(), COMPUTE))
    pieces = tuple(
        Piece(s.rank, lane_of.get(s.row, COMPUTE), s.start, s.end, s.name, s.reason)
        for s in found.segments
    )
    return Path(pieces, found.sentence)
