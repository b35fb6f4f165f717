"""How many bytes moved: three figures that are never mixed.

*Payload* is the size of this rank's input. The *closed form* is what the usual algorithm has to
send for it. *On the wire* is what the kernel counted on the sockets of the rank's process, for all
operations together, if that was recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from labkit.trace.events import KINDS, OPERATIONS, Step, Trace

__all__ = ["Traffic", "Wire", "closed_form", "traffic", "wire"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class Traffic:
    """What one rank moved by one operation. Bytes; `closed_form` is None where none is known."""

    operation: str
    rank: int
    calls: int
    payload: int
    closed_form: float | None


@dataclass(frozen=True)
class Wire:
    """What the kernel counted on the sockets of one rank's process. Bytes."""

    rank: int
    sent: int
    received: int


def traffic(trace: Trace) -> tuple[Traffic, ...]:
    """Calls, payload and closed form, by operation and rank."""
    c = trace.columns
    sums: dict[tuple[str, int], tuple[int, int, float | None]] = {}
    rows = np.flatnonzero(np.isin(c["kind"], [KINDS.index(kind) for kind in OPERATIONS]))
    names = ("kind", "name", "rank", "group", "peer", "bytes")
    for kind, name, rank, group, peer, payload in zip(
        *(c[n][rows].tolist() for n in names), strict=True
    ):
        operation = trace.strings[name] if KINDS[kind] == "collective" else KINDS[kind]
        ranks = len(trace.groups[group].ranks) if group >= 0 else None
        form = closed_form(operation, payload, ranks, at_root=peer == rank)
        calls, total, moved = sums.get((operation, rank), (0, 0, 0.0))
        both = None if form is None or moved is None else moved + form
        sums[operation, rank] = (calls + 1, total + payload, both)
    return tuple(
        Traffic(operation, rank, *sums[operation, rank]) for operation, rank in sorted(sums)
    )


def closed_form(
    operation: str, payload: float, ranks: int | None, at_root: bool = False
) -> float | None:
    """Bytes that one rank has to send for an operation, by the usual algorithm.

    ==================== ======================= ==============================================
    operation            bytes                   where S is
    ==================== ======================= ==============================================
    all_reduce           2(N−1)/N · S            the payload (a ring's two passes)
    reduce_scatter       (N−1)/N · S             the payload: the full input
    all_to_all           (N−1)/N · S             the payload, split evenly
    all_gather           (N−1)/N · S             N times the payload: the full output
    broadcast, reduce    S                       the payload; the root counts it, sent or received
    gather               (N−1) · S               the payload; the root counts it, received
    scatter              (N−1)/N · S             the root's payload: the full input; the root counts
    send                 S                       the payload; its receiver counts nothing
    barrier              0
    ==================== ======================= ==============================================

    Parameters
    ----------
    payload : bytes of this rank's input
    ranks : N, the size of the group; None where it is not known
    at_root : whether this rank is the operation's root

    Returns
    -------
    None where the operation or N is not known.
    """
    if operation == "send":
        return float(payload)
    if operation in ("recv", "barrier"):
        return 0.0
    if ranks is None:
        return None
    others = ranks - 1
    shares = {
        "all_reduce": 2 * others / ranks,
        "reduce_scatter": others / ranks,
        "all_to_all": others / ranks,
        "all_gather": float(others),
        "broadcast": float(at_root and ranks > 1),
        "reduce": float(at_root and ranks > 1),
        "gather": float(others * at_root),
        "scatter": others / ranks * at_root,
    }
    return shares[operation] * payload if operation in shares else None


def wire(trace: Trace, step: Step | None = None) -> tuple[Wire, ...] | None:
    """By how much the kernel's counters grew between the first and the last mark of each rank.

    For a step: between the last mark before it and the first one after it. None where no rank has
    two marks.
    """
    marks: Mapping[int, dict[str, list[tuple[float, int]]]]
    marks = defaultdict(lambda: {"sent": [], "received": []})
    c = trace.columns
    for row in np.flatnonzero(trace.where("wire")).tolist():
        name = trace.strings[c["name"][row]]
        if name in ("sent", "received"):
            mark = (float(c["start"][row]), int(c["bytes"][row]))
            marks[int(c["rank"][row])][name].append(mark)
    grown = []
    for rank, ways in sorted(marks.items()):
        if step is not None and rank not in step.spans:
            continue
        window = None if step is None else step.spans[rank]
        sent, received = (_growth(ways[way], window) for way in ("sent", "received"))
        if sent is not None and received is not None:
            grown.append(Wire(rank, sent, received))
    return tuple(grown) or None


def _growth(marks: Iterable[tuple[float, int]], window: Interval | None) -> int | None:
    marks = sorted(marks)
    if window is not None:
        before = [mark for mark in marks if mark[0] <= window[0]]
        after = [mark for mark in marks if mark[0] >= window[1]]
        marks = [*before[-1:], *after[:1]] if before and after else []
    return marks[-1][1] - marks[0][1] if len(marks) > 1 else None
