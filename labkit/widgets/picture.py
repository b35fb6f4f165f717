"""What a timeline shows of a trace: bars in lanes, and arrows between them.

Both drawings, the canvas and the still, read the same `Picture`, so they cannot differ. A rank has
a strip of its outermost spans, a compute lane (compute, and where the rank stood still) and as many
communication lanes as operations were under way at once. Building it costs a few passes over the
columns and one Python loop over the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS
from labkit.widgets.palette import INDEX, OTHER, STYLES, of_compute
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
        bars that belong together: a message's two ends, a collective's ranks, its waits; or -1)
    lanes : by rank and lane number
    arrows : (n, 2), the bar of the send and of its receive, by start of the send
    labels : per bar, the long and the short text
    """

    bars: Mapping[str, NDArray[Any]]
    lanes: tuple[Lane, ...]
    arrows: NDArray[np.int32]
    labels: tuple[tuple[str, str], ...]

    @property
    def extent(self) -> tuple[float, float]:
        """First start and last end."""
        if not len(self.bars["start"]):
            return 0.0, 1.0
        return float(self.bars["start"].min()), float(self.bars["end"].max())


def build(trace: Trace) -> Picture:
    """Lay out `trace`. Memory and wire marks have no extent in time and are left out."""
    c = trace.columns
    parts = [_spans(trace), _compute(trace), _still(trace), _calls(trace), _operations(trace)]
    row, lane, style, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    rank, start = c["rank"][row], c["start"][row]
    order = np.lexsort((row, start, lane, rank))
    row, lane, style, end = row[order], lane[order], style[order], end[order]
    rank, start = rank[order], start[order]

    starts = np.flatnonzero(np.diff(rank, prepend=-1) | np.diff(lane, prepend=-1))
    stops = np.append(starts, len(row))[1:]
    reach = end.copy()
    lanes = []
    for first, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        reach[first:stop] = np.maximum.accumulate(end[first:stop])
        lanes.append(Lane(int(rank[first]), int(lane[first]), first, stop))

    link = _links(trace)[row]
    bars = {
        "row": row, "rank": rank, "lane": lane, "style": style,
        "start": start, "end": end, "reach": reach, "link": link,
    }  # fmt: skip
    return Picture(bars, tuple(lanes), _arrows(trace, bars), _labels(trace, row, style))


# Columns of some bars: row of the trace, lane, style, end.
Part = tuple["NDArray[Any]", "NDArray[Any]", "NDArray[Any]", "NDArray[Any]"]


def _part(rows: NDArray[Any], lane: Any, style: Any, end: NDArray[Any]) -> Part:
    full = np.zeros(len(rows), np.int32)
    return rows.astype(np.int32), full + lane, full + style, end


def _style_of_names(trace: Trace) -> NDArray[np.int32]:
    """By index of a string; the last entry is for names that are missing (-1)."""
    return np.array([*map(of_compute, trace.strings), OTHER], np.int32)


def _outermost(trace: Trace, keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Those of the spans `keep` that lie in no other of them, by rank and start."""
    c = trace.columns
    rows = np.flatnonzero(keep)
    rows = rows[np.lexsort((-c["end"][rows], c["start"][rows], c["rank"][rows]))]
    outer = np.ones(len(rows), bool)
    for rank in np.unique(c["rank"][rows]):
        mine = np.flatnonzero(c["rank"][rows] == rank)
        ends = np.maximum.accumulate(c["end"][rows[mine]])
        outer[mine[1:]] = c["start"][rows[mine[1:]]] >= ends[:-1]
    return rows[outer]


def _spans(trace: Trace) -> Part:
    c = trace.columns
    names = np.array([s == "step" for s in trace.strings] + [False])
    keep = trace.where("span") & (c["thread"] == 0) & ~names[c["name"]]
    rows = _outermost(trace, keep)
    return _part(rows, SPANS, _style_of_names(trace)[c["name"][rows]], c["end"][rows])


def _compute(trace: Trace) -> Part:
    """Compute, coloured by its span's name, or by the span around that whose name is known."""
    c = trace.columns
    known = _style_of_names(trace)
    rows = np.flatnonzero(trace.where("compute"))
    style = known[c["name"][rows]]
    around = _outermost(trace, trace.where("span") & (known[c["name"]] != OTHER))
    for rank in np.unique(c["rank"][around]):
        spans = around[c["rank"][around] == rank]
        unknown = np.flatnonzero((style == OTHER) & (c["rank"][rows] == rank))
        at = np.searchsorted(c["start"][spans], c["start"][rows[unknown]], side="right") - 1
        inside = (at >= 0) & (c["end"][spans[at]] >= c["end"][rows[unknown]])
        style[unknown[inside]] = known[c["name"][spans[at[inside]]]]
    return _part(rows, COMPUTE, style, c["end"][rows])


def _still(trace: Trace) -> Part:
    """Waits and joins of the main thread."""
    c = trace.columns
    wait, join = trace.where("wait"), trace.where("join")
    rows = np.flatnonzero((wait | join) & (c["thread"] == 0))
    style = np.where(wait[rows], INDEX["wait"], INDEX["join"])
    return _part(rows, COMPUTE, style, c["end"][rows])


def _is_operation(trace: Trace) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.isin(trace.columns["kind"], (_SEND, _RECV, _COLLECTIVE))
    return mask


def _finish(trace: Trace) -> NDArray[np.float64]:
    """When an operation was done; the end of the call where that was never seen."""
    c = trace.columns
    finish = np.where(np.isnan(c["done"]), c["end"], c["done"])
    late: NDArray[np.float64] = np.maximum(finish, c["start"])
    return late


def _calls(trace: Trace) -> Part:
    """The calls of operations: until they return, the main thread stands in them."""
    c = trace.columns
    held = c["end"] > c["start"]
    rows = np.flatnonzero(_is_operation(trace) & (c["thread"] == 0) & held)
    return _part(rows, COMPUTE, INDEX["call"], c["end"][rows])


def _operations(trace: Trace) -> Part:
    c = trace.columns
    rows = np.flatnonzero(_is_operation(trace))
    rows = rows[np.lexsort((c["start"][rows], c["rank"][rows]))]
    end = _finish(trace)[rows]
    lane = np.zeros(len(rows), np.int32)
    bounds = zip(c["rank"][rows].tolist(), c["start"][rows].tolist(), end.tolist(), strict=True)
    rank, free = -1, [0.0]
    for i, (at, start, stop) in enumerate(bounds):
        if at != rank:  # when each of this rank's communication lanes is free again
            rank, free = at, [-np.inf] * MOST_AT_ONCE
        # Below the lowest busy lane, so that buckets under way make a staircase on every rank;
        # at the bottom any free lane will do.
        number = 1 + max((n for n, ready in enumerate(free) if ready > start), default=-1)
        if number == MOST_AT_ONCE:
            number = next((n for n, ready in enumerate(free) if ready <= start), number - 1)
        free[number] = max(free[number], stop)
        lane[i] = COMMUNICATION + number
    style = np.full(len(KINDS), INDEX["collective"])
    style[_SEND], style[_RECV] = INDEX["send"], INDEX["receive"]
    return _part(rows, lane, style[c["kind"][rows]], end)


def _message_keys(trace: Trace, rows: NDArray[Any]) -> NDArray[Any]:
    """(group, from, to, tag, seq) of the sends and receives `rows`."""
    c = trace.columns
    sends = c["kind"][rows] == _SEND
    source = np.where(sends, c["rank"][rows], c["peer"][rows])
    target = np.where(sends, c["peer"][rows], c["rank"][rows])
    return np.stack([c["group"][rows], source, target, c["tag"][rows], c["seq"][rows]], axis=1)


def _links(trace: Trace) -> NDArray[np.int32]:
    """By row of the trace: a number that the rows of one operation share, or -1."""
    c = trace.columns
    link = np.full(len(trace), -1, np.int32)
    numbered = c["seq"] >= 0
    messages = np.flatnonzero((trace.where("send") | trace.where("recv")) & numbered)
    if len(messages):
        _, link[messages] = np.unique(_message_keys(trace, messages), axis=0, return_inverse=True)
    collectives = np.flatnonzero(trace.where("collective") & numbered)
    if len(collectives):
        keys = np.stack([c["group"][collectives], c["seq"][collectives]], axis=1)
        _, inverse = np.unique(keys, axis=0, return_inverse=True)
        link[collectives] = inverse + link.max() + 1
    # A wait belongs to the operation of its own rank that it waits for.
    operation = c["rank"].astype(np.int64) << 32 | c["op"].astype(np.int64) & 0xFFFFFFFF
    owners = np.flatnonzero(_is_operation(trace) & (c["op"] >= 0))
    owners = owners[np.argsort(operation[owners], kind="stable")]
    waits = np.flatnonzero(trace.where("wait") & (c["op"] >= 0))
    if len(owners) and len(waits):
        at = np.searchsorted(operation[owners], operation[waits]).clip(max=len(owners) - 1)
        found = operation[owners[at]] == operation[waits]
        link[waits[found]] = link[owners[at[found]]]
    return link


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


def _labels(trace: Trace, rows: NDArray[Any], styles: NDArray[Any]) -> tuple[tuple[str, str], ...]:
    c = trace.columns
    columns = (c["kind"][rows], c["name"][rows], c["bytes"][rows], c["tags"][rows], styles)
    made: dict[tuple[int, ...], tuple[str, str]] = {}
    labels = []
    for key in zip(*(column.tolist() for column in columns), strict=True):
        if key not in made:
            made[key] = _label(trace, *key)
        labels.append(made[key])
    return tuple(labels)


def _label(trace: Trace, kind: int, name: int, size: int, tags: int, style: int) -> tuple[str, str]:
    text = trace.strings[name] if name >= 0 else KINDS[kind]
    letter = STYLES[style].letter
    if kind in (_SEND, _RECV, _COLLECTIVE):
        if STYLES[style].key == "call":
            return f"in {text}", ""
        return f"{text} {in_bytes(size)}" if size else text, letter
    if KINDS[kind] in ("wait", "join"):
        return KINDS[kind], letter
    micro = trace.tags[tags].get("microbatch") if tags >= 0 else None
    if micro is not None:
        apart = "" if len(text) == 1 else " "
        return f"{text}{apart}{micro}", f"{letter}{micro}"
    return text, letter
