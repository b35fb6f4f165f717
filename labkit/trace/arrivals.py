"""When the last rank arrived at what a rank waits for.

A collective starts when its last rank has issued it, a message when both ends have. Until then a
rank that waits for it waits for another rank (skew); after that it waits for bytes (transfer).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS, OPERATIONS, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Meetings", "arrivals", "meetings", "partners"]

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


@dataclass(frozen=True, eq=False)
class Meetings:
    """Who meets whom: what of `arrivals` times do not change.

    Parameters
    ----------
    rows, first : the rows of `partners`, one after the other, and where each operation's begin
    waits, operations : rows of waits, and of the operations that they wait for
    """

    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    waits: NDArray[np.int64]
    operations: NDArray[np.int64]


def meetings(trace: Trace) -> Meetings:
    """The same for a trace and all its retimings."""
    c = trace.columns
    met = partners(trace)
    first = np.cumsum([0, *map(len, met)])[:-1]
    operations = np.isin(c["kind"], [KINDS.index(kind) for kind in OPERATIONS])
    rank, op = c["rank"].tolist(), c["op"].tolist()
    row_of = {(rank[i], op[i]): i for i in np.flatnonzero(operations).tolist() if op[i] >= 0}
    pairs = [
        (i, row_of[rank[i], op[i]])
        for i in np.flatnonzero(c["kind"] == _WAIT).tolist()
        if (rank[i], op[i]) in row_of
    ]
    waits, waited = np.array(pairs, int).reshape(-1, 2).T
    return Meetings(np.array([row for rows in met for row in rows], int), first, waits, waited)


def arrivals(trace: Trace, known: Meetings | None = None) -> NDArray[np.float64]:
    """For each row, when the last rank had arrived; NaN where that is not known.

    Parameters
    ----------
    known : the meetings of a trace of which `trace` is a retiming

    Returns
    -------
    array of float64, one a row, seconds on the trace's clock. Operations have the last start among
    their partners, waits have that of the operation waited for, joins the last one of all that they
    waited for.
    """
    c = trace.columns
    known = known or meetings(trace)
    last = np.full(len(trace), np.nan)
    if len(known.first):
        latest = np.maximum.reduceat(c["start"][known.rows], known.first)
        many = np.diff([*known.first.tolist(), len(known.rows)])
        last[known.rows] = np.repeat(latest, many)
    last[known.waits] = last[known.operations]
    joins = np.flatnonzero(c["kind"] == _JOIN).tolist()
    if not joins:
        return last
    operations = np.isin(c["kind"], [KINDS.index(kind) for kind in OPERATIONS])
    unasked = operations.copy()  # of no wait of Python's
    waits = set(zip(*(c[n][c["kind"] == _WAIT].tolist() for n in ("rank", "op")), strict=True))
    rows = np.flatnonzero(operations)
    owners = list(zip(c["rank"][rows].tolist(), c["op"][rows].tolist(), strict=True))
    unasked[rows] = [owner not in waits for owner in owners]
    row_of = {owner: row for owner, row in zip(owners, rows.tolist(), strict=True) if owner[1] >= 0}
    for i in joins:
        # A join waits for what no wait of Python's asks for and completes inside it, and for the
        # operation that it names.
        rank = int(c["rank"][i])
        inside = (c["done"] >= c["start"][i]) & (c["done"] <= c["end"][i])
        joined = np.flatnonzero(inside & unasked & (c["rank"] == rank)).tolist()
        if (rank, int(c["op"][i])) in row_of:
            joined.append(row_of[rank, int(c["op"][i])])
        if joined:
            last[i] = last[joined].max()  # not known where one of them is not
    return last
