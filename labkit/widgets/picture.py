"""What a timeline shows of a trace: bars in lanes, and arrows between them.

Both drawings, the canvas and the still, read the same `Picture`, so they cannot differ. A rank has
a strip of its outermost spans, a compute lane (compute, and where the rank stood still) and as many
communication lanes as operations were under way at once. Building it costs a few passes over the
columns and two Python loops over the operations: 15 ms for 10,000 bars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.arrivals import arrivals
from labkit.trace.events import KINDS
from labkit.widgets.palette import INDEX, STANDING, STYLES
from labkit.widgets.sketch import Sketch, is_operation, sketch
from labkit.widgets.words import in_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labkit.trace.events import Trace

SPANS, COMPUTE, COMMUNICATION = 0, 1, 2  # lanes; further operations at once take 3, 4, …
MOST_AT_ONCE = 8  # communication lanes a rank; what does not fit shares the last
_SEND, _RECV, _COLLECTIVE = (KINDS.index(k) for k in ("send", "recv", "collective"))


@dataclass(frozen=True)
class Lane:
    """Bars `first` to `stop` lie in lane `number` of `rank`, sorted by start."""

    rank: int
    number: int
    first: int
    stop: int


@dataclass(frozen=True)
class Picture:
    """Bars and arrows.

    Parameters
    ----------
    bars : columns of equal length: ``row`` of the trace, ``rank``, ``lane``, ``style``, ``start``
        and ``end`` in the trace's unit, ``reach`` (the latest end so far in the lane, so that a
        binary search finds the first bar in view even where bars overlap), ``link`` (equal for
        bars that belong together: a message's two ends, a collective's ranks, its waits; or -1),
        ``label`` (index into `words`)
    lanes : by rank and lane number
    arrows : (n, 2), the bar of the send and of its receive, by start of the send
    words : pairs of a long and a short text
    crowded : operations that share a rank's last lane with others, since too many were under way
    """

    bars: Mapping[str, NDArray[Any]]
    lanes: tuple[Lane, ...]
    arrows: NDArray[np.int32]
    words: tuple[tuple[str, str], ...]
    crowded: int = 0

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Per bar, the long and the short text."""
        return tuple(self.words[i] for i in self.bars["label"].tolist())

    @property
    def extent(self) -> tuple[float, float]:
        """First start and last end."""
        if not len(self.bars["start"]):
            return 0.0, 1.0
        return float(self.bars["start"].min()), float(self.bars["end"].max())


def build(trace: Trace, known: Sketch | None = None) -> Picture:
    """Lay out `trace`. Memory and wire marks have no extent in time and are left out.

    Parameters
    ----------
    known : the sketch of a trace of which `trace` is a retiming
    """
    c = trace.columns
    known = known or sketch(trace)
    operations, crowded = _operations(trace)
    spans, compute = (
        _part(rows, lane, known.look[rows], c["start"][rows], c["end"][rows])
        for lane, rows in ((SPANS, known.spans), (COMPUTE, known.compute))
    )
    parts = [spans, compute, *_standing(trace, known), operations]
    row, lane, style, start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    rank = c["rank"][row]
    order = np.lexsort((row, start, lane, rank))
    row, lane, style = row[order], lane[order], style[order]
    rank, start, end = rank[order], start[order], end[order]

    starts = np.flatnonzero(np.diff(rank, prepend=-1) | np.diff(lane, prepend=-1))
    stops = np.append(starts, len(row))[1:]
    reach = end.copy()
    lanes = []
    for first, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        reach[first:stop] = np.maximum.accumulate(end[first:stop])
        lanes.append(Lane(int(rank[first]), int(lane[first]), first, stop))

    words, label = _labels(trace, known, row, style)
    bars = {
        "row": row, "rank": rank, "lane": lane, "style": style, "label": label,
        "start": start, "end": end, "reach": reach, "link": known.link[row],
    }  # fmt: skip
    return Picture(bars, tuple(lanes), _arrows(trace, bars), words, crowded)


# Columns of some bars: row of the trace, lane, style, start, end.
Part = tuple["NDArray[Any]", "NDArray[Any]", "NDArray[Any]", "NDArray[Any]", "NDArray[Any]"]


def _part(
    rows: NDArray[Any], lane: Any, style: Any, start: NDArray[Any], end: NDArray[Any]
) -> Part:
    full = np.zeros(len(rows), np.int32)
    return rows.astype(np.int32), full + lane, full + style, start, end


def _standing(trace: Trace, known: Sketch) -> list[Part]:
    """Where the main thread stands still: in waits, in joins, and in calls until they return.

    Until the last rank has arrived it waits for that rank (skew), then for bytes (transfer): a bar
    each. Where the trace does not say when the others arrived, one bar for both.
    """
    c = trace.columns
    held = is_operation(trace) & (c["end"] > c["start"])
    rows = np.flatnonzero((trace.where("wait") | trace.where("join") | held) & (c["thread"] == 0))
    start, end, last = c["start"][rows], c["end"][rows], arrivals(trace, known.meetings)[rows]
    told = ~np.isnan(last)
    split = np.clip(np.where(told, last, start), start, end)
    skew = told & (split > start)
    transfer = told & ((split < end) | ~skew)
    return [
        _part(rows[which], COMPUTE, INDEX[key], first[which], stop[which])
        for key, which, first, stop in (
            ("skew", skew, start, split),
            ("transfer", transfer, split, end),
            ("unsplit", ~told, start, end),
        )
    ]


def _finish(trace: Trace) -> NDArray[np.float64]:
    """When an operation was done; the end of the call where that was never seen."""
    c = trace.columns
    finish = np.where(np.isnan(c["done"]), c["end"], c["done"])
    late: NDArray[np.float64] = np.maximum(finish, c["start"])
    return late


def _operations(trace: Trace) -> tuple[Part, int]:
    """Operations in lanes, and how many share one because all were busy."""
    c = trace.columns
    rows = np.flatnonzero(is_operation(trace))
    rows = rows[np.lexsort((c["start"][rows], c["rank"][rows]))]
    end = _finish(trace)[rows]
    lane = np.zeros(len(rows), np.int32)
    bounds = zip(c["rank"][rows].tolist(), c["start"][rows].tolist(), end.tolist(), strict=True)
    rank, free, top, crowded = -1, [0.0], -1, 0
    for i, (at, start, stop) in enumerate(bounds):
        if at != rank:  # when each of this rank's communication lanes is free again
            rank, free, top = at, [-math.inf] * MOST_AT_ONCE, -1
        # Below the lowest busy lane, so that buckets under way make a staircase on every rank;
        # at the bottom any free lane will do.
        while top >= 0 and free[top] <= start:
            top -= 1
        number = top + 1
        if number == MOST_AT_ONCE:
            number = next((n for n, ready in enumerate(free) if ready <= start), number - 1)
            crowded += free[number] > start
        top = max(top, number)
        free[number] = max(free[number], stop)
        lane[i] = COMMUNICATION + number
    style = np.full(len(KINDS), INDEX["collective"])
    style[_SEND], style[_RECV] = INDEX["send"], INDEX["receive"]
    return _part(rows, lane, style[c["kind"][rows]], c["start"][rows], end), int(crowded)


def _arrows(trace: Trace, bars: Mapping[str, NDArray[Any]]) -> NDArray[np.int32]:
    """Pairs of bars, from a send to the receive with the same (group, from, to, tag, seq)."""
    in_lane = bars["lane"] >= COMMUNICATION
    kind = trace.columns["kind"][bars["row"]]
    ends = []
    for wanted in (_SEND, _RECV):
        at = np.flatnonzero(in_lane & (kind == wanted) & (bars["link"] >= 0))
        links, first = np.unique(bars["link"][at], return_index=True)
        ends.append((links, at[first]))
    (sent, send), (received, recv) = ends
    _, i, j = np.intersect1d(sent, received, assume_unique=True, return_indices=True)
    pairs = np.stack([send[i], recv[j]], axis=1).astype(np.int32)
    return pairs[np.argsort(bars["start"][pairs[:, 0]], kind="stable")]


def _labels(
    trace: Trace, known: Sketch, rows: NDArray[Any], styles: NDArray[Any]
) -> tuple[tuple[tuple[str, str], ...], NDArray[np.int32]]:
    """All pairs of texts, and the index of each bar's."""
    c = trace.columns
    keys, first, label = np.unique(
        known.text[rows] * len(STYLES) + styles, return_index=True, return_inverse=True
    )
    columns = (c[name][rows[first]].tolist() for name in ("kind", "name", "bytes", "tags"))
    looks = (keys % len(STYLES)).tolist()
    words = tuple(_label(trace, *each) for each in zip(*columns, looks, strict=True))
    return words, label.ravel().astype(np.int32)


def _label(trace: Trace, kind: int, name: int, size: int, tags: int, style: int) -> tuple[str, str]:
    text = trace.strings[name] if name >= 0 else KINDS[kind]
    letter, key = STYLES[style].letter, STYLES[style].key
    operation = kind in (_SEND, _RECV, _COLLECTIVE)
    if key in STANDING:
        within = f"in {text}" if operation else KINDS[kind]
        return (within, "") if key == "unsplit" else (f"{within}: {key}", key)
    if operation:
        return f"{text} {in_bytes(size)}" if size else text, letter
    micro = trace.tags[tags].get("microbatch") if tags >= 0 else None
    if micro is not None:
        apart = "" if len(text) == 1 else " "
        return f"{text}{apart}{micro}", f"{letter}{micro}"
    return text, letter
