"""What of a picture times do not change: computed once for a trace and all its retimings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.arrivals import Meetings, meetings
from labkit.trace.events import KINDS, OPERATIONS
from labkit.widgets.palette import OTHER, of_compute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labkit.trace.events import Trace

_SEND = KINDS.index("send")


@dataclass(frozen=True, eq=False)
class Sketch:
    """What of a picture times do not change: the same for a trace and all its retimings.

    Parameters
    ----------
    spans, compute : rows of the outermost spans, and of compute
    look : by row, the style of spans and compute
    link : by row, a number that the rows of one operation share, or -1
    text : by row, equal where kind, name, bytes and tags are
    meetings : who meets whom
    """

    spans: NDArray[np.int64]
    compute: NDArray[np.int64]
    look: NDArray[np.int32]
    link: NDArray[np.int32]
    text: NDArray[np.int64]
    meetings: Meetings


def sketch(trace: Trace) -> Sketch:
    """What `build` needs of `trace` and of each of its retimings."""
    c = trace.columns
    known = _style_of_names(trace)
    steps = np.array([s == "step" for s in trace.strings] + [False])
    main = c["thread"] == 0
    spans = _outermost(trace, trace.where("span") & main & ~steps[c["name"]])
    compute = np.flatnonzero(trace.where("compute"))
    look = known[c["name"]]
    look[compute] = _compute_styles(trace, compute, known)
    said = np.stack([c["kind"], c["name"], c["bytes"], c["tags"]], axis=1)
    text = np.unique(said, axis=0, return_inverse=True)[1] if len(trace) else np.zeros(0, int)
    return Sketch(spans, compute, look, _links(trace), text.ravel(), meetings(trace))


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


def _compute_styles(
    trace: Trace, rows: NDArray[np.int64], known: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Compute, coloured by its span's name, or by the span around that whose name is known."""
    c = trace.columns
    style: NDArray[np.int32] = known[c["name"][rows]]
    around = _outermost(trace, trace.where("span") & (known[c["name"]] != OTHER))
    for rank in np.unique(c["rank"][around]):
        spans = around[c["rank"][around] == rank]
        unknown = np.flatnonzero((style == OTHER) & (c["rank"][rows] == rank))
        at = np.searchsorted(c["start"][spans], c["start"][rows[unknown]], side="right") - 1
        inside = (at >= 0) & (c["end"][spans[at]] >= c["end"][rows[unknown]])
        style[unknown[inside]] = known[c["name"][spans[at[inside]]]]
    return style


def is_operation(trace: Trace) -> NDArray[np.bool_]:
    """A mask of the rows of operations."""
    mask: NDArray[np.bool_] = np.isin(
        trace.columns["kind"], [KINDS.index(kind) for kind in OPERATIONS]
    )
    return mask


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
    owners = np.flatnonzero(is_operation(trace) & (c["op"] >= 0))
    owners = owners[np.argsort(operation[owners], kind="stable")]
    waits = np.flatnonzero(trace.where("wait") & (c["op"] >= 0))
    if len(owners) and len(waits):
        at = np.searchsorted(operation[owners], operation[waits]).clip(max=len(owners) - 1)
        found = operation[owners[at]] == operation[waits]
        link[waits[found]] = link[owners[at[found]]]
    return link
