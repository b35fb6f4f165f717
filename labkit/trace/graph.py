"""What has to come before what in a trace: compiled once, evaluated often.

Order within a rank; a message at its two ends; a collective on all ranks of its group; a wait to
its operation. Only where a rank meets another does anything have to be decided. In between, work
adds up: rows between two holds (waits and joins) form a *segment*, and a row stands at the
segment's begin plus the work before it. What remains is a short program in topological order. Its
four instructions are in `Code`; `engine` runs it.

Rows of other threads than a rank's main one stand where the main thread was: an operation that one
of them issues is posted when the main thread has done the same share of its work, and waits of
theirs hold nobody.

Cost: about 4 µs a row to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.arrivals import partners
from labkit.trace.events import BLOCKING, KINDS, OPERATIONS, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Code", "Graph", "compile_graph"]

_COMPUTE, _SPAN, _SEND, _RECV, _COLLECTIVE, _WAIT, _JOIN = (
    KINDS.index(k) for k in ("compute", "span", "send", "recv", "collective", "wait", "join")
)

Instruction = tuple[int, int, int, Any, int]


class Code(IntEnum):
    """An instruction's first number, and what its other four are.

    MESSAGE     slot, segment and operation of its send, slot of the message before it
    COLLECTIVE  slot, nothing, (segment, operation) of each rank, slot of the one before it
    POST        slot, segment, operation, nothing
    HOLD        number of the hold, its segment, slots waited for, nothing
    """

    MESSAGE = 0
    COLLECTIVE = 1
    POST = 2
    HOLD = 3


@dataclass(frozen=True, eq=False)
class Graph:
    """A compiled trace. A slot holds a time: an arrival, a collective's end, a receive's posting.

    Parameters
    ----------
    trace : what was compiled
    main : rows of the main threads that take or may take time, by rank
    edges : where each rank's part of `main` begins, and the end of the last
    ranks : the rank of each part
    segment, first : of each row of `main`: its segment, and where in `main` that begins
    segments : how many there are
    holds : places in `main` of waits and joins
    ops : rows of operations
    at, share : where in `main` each operation is posted, and after what share of that row's work
    sends, receives : operations of each message, by slot; -1 where it is never received
    collectives : operations of each collective, by slot less the number of messages
    slots : how many there are
    program : instructions, in an order in which they can be followed
    spans : rows of the main threads' spans
    span_from, span_to : where in `main` the first and the last row inside each span stand
    passive : (a, b, rows): rows that stand where ``main[a:b]``, their rank's main thread, was
    """

    trace: Trace
    main: NDArray[np.int64]
    edges: tuple[int, ...]
    ranks: tuple[int, ...]
    segment: NDArray[np.int64]
    first: NDArray[np.int64]
    segments: int
    holds: NDArray[np.int64]
    ops: NDArray[np.int64]
    at: NDArray[np.int64]
    share: NDArray[np.float64]
    sends: NDArray[np.int64]
    receives: NDArray[np.int64]
    collectives: tuple[tuple[int, ...], ...]
    slots: int
    program: tuple[Instruction, ...]
    spans: NDArray[np.int64]
    span_from: NDArray[np.int64]
    span_to: NDArray[np.int64]
    passive: tuple[tuple[int, int, NDArray[np.int64]], ...]

    @cached_property
    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of all collectives, one after the other, and where each collective's begin."""
        rows = np.array([op for members in self.collectives for op in members], int)
        first = np.cumsum([0, *(len(members) for members in self.collectives)])[:-1]
        return self.ops[rows], first


def compile_graph(trace: Trace) -> Graph:
    """Compile `trace`.

    Raises
    ------
    ValueError : it could not have happened: a rank without rows, a receive without its send, a
        collective that one rank never enters or that ranks enter as different things, a wait
        without its operation, ranks that wait for each other
    """
    c = trace.columns
    kind, rank = c["kind"], c["rank"]
    present = set(rank.tolist())
    if absent := [r for r in range(trace.about.ranks) if r not in present]:
        raise ValueError(
            f"rank {absent[0]} left no rows: it died, or this is a part of a trace without it"
        )
    timed = np.isin(kind, [_COMPUTE, *(KINDS.index(k) for k in BLOCKING)])
    main = np.flatnonzero(timed & (c["thread"] == 0))
    mine = rank[main]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(mine)) + 1, [len(main)]])
    edges = edges[: 1 if not len(main) else None]
    held = np.isin(kind[main], [_WAIT, _JOIN])
    part = np.zeros(len(main), int)
    part[edges[1:-1]] = 1
    segment = np.cumsum(held) - held + np.cumsum(part)
    begins = np.concatenate([[True], np.diff(segment) > 0]) if len(main) else np.zeros(0, bool)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(main)), 0))
    holds = np.flatnonzero(held)
    ops = np.flatnonzero(np.isin(kind, [KINDS.index(k) for k in OPERATIONS]))
    at, share = _posts(trace, main, edges, ops)
    sends, receives, collectives = _matched(trace, ops)
    builder = _Program(trace, main, segment, holds, ops, at, sends, receives, collectives)
    program, slots = builder.build()
    segments = int(segment[-1]) + 2 if len(main) else 0
    return Graph(
        trace, main, tuple(edges.tolist()), tuple(mine[edges[:-1]].tolist()), segment, first,
        segments, holds, ops, at, share, sends, receives, collectives, slots, program,
        *_spans(trace, main, edges), _passive(trace, main, edges),
    )  # fmt: skip


def _posts(
    trace: Trace, main: NDArray[np.int64], edges: NDArray[np.int64], ops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Where in `main` each operation is posted, and after what share of that row's work."""
    c = trace.columns
    place = np.full(len(trace), -1)
    place[main] = np.arange(len(main))
    at, share = place[ops], np.zeros(len(ops))
    of_rank = {int(c["rank"][main[a]]): (a, b) for a, b in pairwise(edges.tolist())}
    for i in np.flatnonzero(at < 0).tolist():  # issued by another thread
        row = int(ops[i])
        if (found := of_rank.get(int(c["rank"][row]))) is None:
            raise ValueError(f"{_told(trace, row)}: its rank's main thread left no rows")
        rows = main[found[0] : found[1]]
        starts = np.maximum.accumulate(c["start"][rows])
        when = c["start"][row]
        index = max(int(np.searchsorted(starts, when, "right")) - 1, 0)
        at[i] = found[0] + index
        length = c["end"][rows[index]] - c["start"][rows[index]]
        if c["kind"][rows[index]] == _COMPUTE and length > 0:
            share[i] = min(max((when - c["start"][rows[index]]) / length, 0.0), 1.0)
    return at, share


def _spans(
    trace: Trace, main: NDArray[np.int64], edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the main threads' spans, and the places in `main` of their first and last row."""
    c = trace.columns
    rows = np.flatnonzero((c["kind"] == _SPAN) & (c["thread"] == 0))
    first, last = np.zeros(len(rows), int), np.zeros(len(rows), int)
    kept = np.zeros(len(rows), bool)
    for a, b in pairwise(edges.tolist()):
        its = np.flatnonzero(c["rank"][rows] == c["rank"][main[a]])
        # What came before a span began before it, and what came after it did not.
        first[its] = a + np.searchsorted(c["start"][main[a:b]], c["start"][rows[its]])
        last[its] = np.searchsorted(main[a:b], rows[its]) + a - 1
        kept[its] = last[its] >= a
    return rows[kept], first[kept], last[kept]


def _passive(
    trace: Trace, main: NDArray[np.int64], edges: NDArray[np.int64]
) -> tuple[tuple[int, int, NDArray[np.int64]], ...]:
    """Marks, and what other threads do beside operations, by rank."""
    c = trace.columns
    marks = np.isin(c["kind"], [KINDS.index("memory"), KINDS.index("wire")])
    beside = (c["thread"] != 0) & ~np.isin(c["kind"], [KINDS.index(k) for k in OPERATIONS])
    rows = np.flatnonzero(marks | beside)
    found = []
    for a, b in pairwise(edges.tolist()):
        its = rows[c["rank"][rows] == c["rank"][main[a]]]
        if len(its):
            found.append((a, b, its))
    return tuple(found)


def _matched(
    trace: Trace, ops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[tuple[int, ...], ...]]:
    """Messages in the order of their sends, and collectives in their groups' order."""
    c = trace.columns
    kind, name = c["kind"].tolist(), c["name"].tolist()
    number = {row: i for i, row in enumerate(ops.tolist())}
    receive_of: dict[int, int] = {}
    collectives = []
    lonely = set(number)
    for rows in partners(trace):
        lonely.difference_update(rows)
        if kind[rows[0]] != _COLLECTIVE:
            send, receive = rows if kind[rows[0]] == _SEND else reversed(rows)
            receive_of[send] = receive
            continue
        for row in rows:
            if name[row] != name[rows[0]]:
                raise ValueError(
                    f"{_told(trace, rows[0])}, but {_told(trace, row)}: they can never meet"
                )
        collectives.append(tuple(number[row] for row in rows))
    for row in sorted(lonely):
        if kind[row] != _SEND or c["peer"][row] < 0:
            raise ValueError(_alone(trace, row))
    sent = [row for row in number if kind[row] == _SEND]
    sends = np.array([number[row] for row in sent], int)
    received = [number[receive_of[row]] if row in receive_of else -1 for row in sent]
    return sends, np.array(received, int), tuple(collectives)


class _Program:
    """The instructions of a trace, and the order in which they can be followed."""

    def __init__(
        self,
        trace: Trace,
        main: NDArray[np.int64],
        segment: NDArray[np.int64],
        holds: NDArray[np.int64],
        ops: NDArray[np.int64],
        at: NDArray[np.int64],
        sends: NDArray[np.int64],
        receives: NDArray[np.int64],
        collectives: tuple[tuple[int, ...], ...],
    ) -> None:
        self.trace = trace
        self.hold_rows: list[int] = main[holds].tolist()
        self.hold_segments: list[int] = segment[holds].tolist()
        self.op_rows: list[int] = ops.tolist()
        self.op_segments: list[int] = segment[at].tolist() if len(ops) else []
        self.sends: list[int] = sends.tolist()
        self.receives: list[int] = receives.tolist()
        self.collectives = collectives
        # A segment begins with the hold before it; a rank's first one begins at zero.
        self.begun_by = {s + 1: i for i, s in enumerate(self.hold_segments)}

    def build(self) -> tuple[tuple[Instruction, ...], int]:
        nodes: list[Instruction] = []  # a node a slot, then a node a hold
        needs: list[list[int]] = []  # nodes that come first
        holds_at: list[list[int]] = []  # holds whose segment has to have begun
        before: dict[Any, int] = {}
        rank, peer, group = (self.trace.columns[n].tolist() for n in ("rank", "peer", "group"))

        def after(key: Any) -> tuple[int, list[int]]:
            last = before.get(key, -1)
            before[key] = len(nodes)
            return last, [] if last < 0 else [last]

        for op in self.sends:
            row = self.op_rows[op]
            last, need = after((rank[row], peer[row]))
            nodes.append((Code.MESSAGE, len(nodes), self.op_segments[op], op, last))
            needs.append(need)
            holds_at.append(self._begun([op]))
        for members in self.collectives:
            last, need = after(("group", group[self.op_rows[members[0]]]))
            pairs = tuple((self.op_segments[op], op) for op in members)
            nodes.append((Code.COLLECTIVE, len(nodes), 0, pairs, last))
            needs.append(need)
            holds_at.append(self._begun(members))
        slot_of, posted = self._slots()
        for op in posted:
            nodes.append((Code.POST, len(nodes), self.op_segments[op], op, -1))
            needs.append([])
            holds_at.append(self._begun([op]))
        slots = len(nodes)
        for i, waited in enumerate(self._waited()):
            slots_of = tuple(dict.fromkeys(slot_of[op] for op in waited))
            nodes.append((Code.HOLD, i, self.hold_segments[i], slots_of, -1))
            needs.append(list(slots_of))
            mine = self.begun_by.get(self.hold_segments[i])
            holds_at.append([] if mine is None else [mine])
        for need, held in zip(needs, holds_at, strict=True):
            need.extend(slots + i for i in held)
        order = _topological(needs, lambda left: self._cycle(left, needs, slots))
        return tuple(nodes[i] for i in order), slots

    def _begun(self, members: Iterable[int]) -> list[int]:
        segments = {self.op_segments[op] for op in members}
        return [self.begun_by[s] for s in segments if s in self.begun_by]

    def _slots(self) -> tuple[dict[int, int], list[int]]:
        """The slot that a hold on each operation reads, and receives that need one of their own."""
        slot_of: dict[int, int] = {}
        posted: list[int] = []
        count = len(self.sends) + len(self.collectives)
        for slot, (send, receive) in enumerate(zip(self.sends, self.receives, strict=True)):
            if receive >= 0:
                # The receiver waits for the arrival, the sender for the receive to be posted.
                slot_of[receive] = slot
                slot_of[send] = count + len(posted)
                posted.append(receive)
        for slot, members in enumerate(self.collectives, start=len(self.sends)):
            slot_of.update(dict.fromkeys(members, slot))
        return slot_of, posted

    def _waited(self) -> list[list[int]]:
        """The operations that each hold waits for."""
        c = self.trace.columns
        kind, rank, op = c["kind"].tolist(), c["rank"].tolist(), c["op"].tolist()
        number = {(rank[r], op[r]): i for i, r in enumerate(self.op_rows) if op[r] >= 0}
        never = {i for i, r in zip(self.sends, self.receives, strict=True) if r < 0}
        asked = {
            (rank[r], op[r]) for r in np.flatnonzero(c["kind"] == _WAIT).tolist() if op[r] >= 0
        }
        # What a join waits for: collectives before it that no wait of Python's asks for.
        pending: dict[int, list[int]] = {}
        joins = [r for r in self.hold_rows if kind[r] == _JOIN]
        if joins:
            for i, r in enumerate(self.op_rows):
                if kind[r] == _COLLECTIVE and (rank[r], op[r]) not in asked:
                    pending.setdefault(rank[r], []).append(i)
        found: list[list[int]] = []
        for row in self.hold_rows:
            named = number.get((rank[row], op[row]))
            if kind[row] == _JOIN:
                mine = pending.get(rank[row], [])
                waited = [i for i in mine if self.op_rows[i] < row]
                pending[rank[row]] = mine[len(waited) :]
                if named is not None and named not in waited:
                    waited.append(named)
            elif named is None:
                raise ValueError(
                    f"{_told(self.trace, row)}: the operation it waits for is not in this trace"
                )
            else:
                waited = [named]
            for i in waited:
                if i in never:
                    raise ValueError(_alone(self.trace, self.op_rows[i]))
            found.append(waited)
        return found

    def _cycle(self, left: set[int], needs: list[list[int]], slots: int) -> str:
        """A cycle among the nodes that cannot be followed, in words."""
        seen: dict[int, int] = {}
        node = min(left)
        while node not in seen:
            seen[node] = len(seen)
            node = min(n for n in needs[node] if n in left)
        cycle = [n for n, at in seen.items() if at >= seen[node]]
        rows = sorted({self.hold_rows[n - slots] for n in cycle if n >= slots})
        told = "; ".join(_told(self.trace, row) for row in rows[:4])
        more = f"; and {len(rows) - 4} more" if len(rows) > 4 else ""
        return f"these wait for each other, so none can go on: {told}{more}"


def _topological(needs: list[list[int]], blame: Callable[[set[int]], str]) -> list[int]:
    """Nodes, each after those that it needs."""
    missing = [len(need) for need in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for node, need in enumerate(needs):
        for n in need:
            followers[n].append(node)
    order = [node for node, count in enumerate(missing) if not count]
    for node in order:  # grows as it is read
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                order.append(follower)
    if len(order) < len(needs):
        raise ValueError(blame(set(range(len(needs))).difference(order)))
    return order


def _told(trace: Trace, row: int) -> str:
    """A row in words: rank, operation, place."""
    e = trace.select(np.arange(len(trace)) == row).events[0]
    group = f" of group {e.group.description or e.group.name}" if e.group is not None else ""
    where = f" at {e.where}" if e.where else ""
    if e.kind == "wait":
        rows = trace.columns
        same = (rows["rank"] == e.rank) & (rows["op"] == (-2 if e.op is None else e.op))
        found = np.flatnonzero(same & np.isin(rows["kind"], [_SEND, _RECV, _COLLECTIVE]))
        what = _told(trace, int(found[0])) if len(found) else f"operation {e.op}"
        what = what.removeprefix(f"rank {e.rank}: ").partition(" at ")[0]
        return f"rank {e.rank}: the wait for {what}{where}"
    if e.kind == "collective":
        return f"rank {e.rank}: {e.name} #{e.seq}{group}{where}"
    if e.kind == "join":
        return f"rank {e.rank}: the end of a backward{where}"
    way = "to" if e.kind == "send" else "from"
    other = "any rank" if e.peer is None else f"rank {e.peer}"
    return f"rank {e.rank}: {e.kind} #{e.seq} {way} {other}, tag {e.tag}{group}{where}"


def _alone(trace: Trace, row: int) -> str:
    """Why the operation of `row` can never complete."""
    e = trace.select(np.arange(len(trace)) == row).events[0]
    told = _told(trace, row)
    if e.group is None or e.seq is None:
        return f"{told}: its group or its number is not known, so nothing can be matched to it"
    if e.kind == "collective":
        c = trace.columns
        same = (c["kind"] == _COLLECTIVE) & (c["group"] == c["group"][row])
        entered = {r: int((same & (c["rank"] == r)).sum()) for r in e.group.ranks}
        fewest = min(entered, key=lambda r: entered[r])
        return f"{told}: rank {fewest} never enters it"
    if e.peer is None:
        return f"{told}: who sends it is not known"
    if e.kind == "send":
        return f"{told}: rank {e.peer} never receives it, and rank {e.rank} waits for that"
    return f"{told}: rank {e.peer} never sends it"
