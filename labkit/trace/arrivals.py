"""When the last rank arrived at what a rank waits for.

A collective starts when its last rank has issued it, a message when both ends have. Until then a
rank that waits for it waits for another rank (skew); after that it waits for bytes (transfer).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS, OPERATIONS, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["arrivals", "partners"]

_SEND, _RECV, _COLLECTIVE, _WAIT, _JOIN = (
    KINDS.index(kind) for kind in ("send", "recv", "collective", "wait", "join")
)


def partners(trace: Trace) -> list[list[int]]:
    """The rows of one and the same operation on all of its ranks, for each that is complete.

    Collectives match by (group, sequence number), messages by (group, from, to, tag, sequence
    number). Where a number comes again (a group that was destroyed and made anew), first matches
    first. An operation that some rank of its group never issued, or whose group or peer is not
    known, is left out.
    """
    c = trace.columns
    rows = np.flatnonzero(np.isin(c["kind"], [KINDS.index(kind) for kind in OPERATIONS]))
    names = ("kind", "rank", "group", "peer", "tag", "seq")
    uses: dict[Any, int] = defaultdict(int)
    matched: dict[Any, list[int]] = defaultdict(list)
    for row, kind, rank, group, peer, tag, seq in zip(
        rows.tolist(), *(c[name][rows].tolist() for name in names), strict=True
    ):
        if kind == _COLLECTIVE:
            key: tuple[Any, ...] = (group, seq)
            known = group >= 0 and seq >= 0
        else:
            key = (group, rank, peer, tag, seq) if kind == _SEND else (group, peer, rank, tag, seq)
            known = peer >= 0 and seq >= 0
        if known:
            use = uses[rank, kind, key]
            uses[rank, kind, key] += 1
            matched[key, use].append(row)
    return [
        found
        for (key, _), found in matched.items()
        if len(found) == (len(trace.groups[key[0]].ranks) if len(key) == 2 else 2)
    ]


def arrivals(trace: Trace) -> NDArray[np.float64]:
    """For each row, when the last rank had arrived; NaN where that is not known.

    Returns
    -------
    array of float64, one a row, seconds on the trace's clock. Operations have the last start among
    their partners, waits have that of the operation waited for, joins the last one of all that they
    waited for.
    """
    c = trace.columns
    last = np.full(len(trace), np.nan)
    for rows in partners(trace):
        last[rows] = c["start"][rows].max()
    operations = np.isin(c["kind"], [KINDS.index(kind) for kind in OPERATIONS])
    rank, op = c["rank"].tolist(), c["op"].tolist()
    row_of = {(rank[i], op[i]): i for i in np.flatnonzero(operations).tolist() if op[i] >= 0}
    waits = np.flatnonzero(c["kind"] == _WAIT).tolist()
    for i in waits:
        operation = row_of.get((rank[i], op[i]))
        if operation is not None:
            last[i] = last[operation]
    waited = {(rank[i], op[i]) for i in waits}
    for i in np.flatnonzero(c["kind"] == _JOIN).tolist():
        # A join waits for what no wait of Python's asks for and completes inside it, and for the
        # operation that it names.
        inside = (c["done"] >= c["start"][i]) & (c["done"] <= c["end"][i])
        mine = np.flatnonzero(inside & operations & (c["rank"] == rank[i])).tolist()
        joined = [row for row in mine if (rank[i], op[row]) not in waited]
        if (rank[i], op[i]) in row_of:
            joined.append(row_of[rank[i], op[i]])
        if joined:
            last[i] = last[joined].max()  # not known where one of them is not
    return last
