"""The critical path: the chain of work and waiting that a trace's time consists of.

Walked back from the last end. A rank that works was held up by nobody: the path goes on with what
it did before. A rank that waits was held by an operation: the path crosses it, to the rank whose
arrival it began with (the last one of a collective, the sender of a message, the receiver of a
blocking send). So the path leaves out every wait in which another rank was the slower one, and
only shortening something on it can make the whole shorter.

On a modelled trace the path is exact: it has no gaps, and lasts from the first start to the last
end. On a measured or a paced one it follows the same graph by the recorded stamps; where these say
less than the model would (when a message got its link), the time is the message's.

Cost: the walk is as long as the path; preparing it takes about 1 µs a row.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from labkit.trace.events import KINDS, About, Trace
from labkit.trace.graph import Code
from labkit.trace.tables import Table, brief, html, plain, time

__all__ = ["CriticalPath", "Segment", "critical_path"]

OWN = "own work"
UNKNOWN = "nothing was recorded"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the path.

    Parameters
    ----------
    row : of the trace: what was computed, the wait that was held, or a message or collective
        that those of a wait queued behind
    rank : whose row that is
    start, end : in the trace's unit
    reason : in words, why this piece is on the path
    name : what took the time: the name of the work ("backward"), of the call ("all_reduce call")
        or of what was under way ("all_reduce", "message")
    """

    row: int
    rank: int
    start: float
    end: float
    reason: str
    name: str

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, repr=False)
class CriticalPath:
    """The pieces of a critical path, from the first to the last; each begins where one ends."""

    about: About
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the trace, in the order of the path; each stretch of one row once."""
        rows = [s.row for s in self.segments]
        return tuple(row for i, row in enumerate(rows) if not i or rows[i - 1] != row)

    @property
    def length(self) -> float:
        """From the path's first start to its last end."""
        return self.segments[-1].end - self.segments[0].start if self.segments else 0.0

    @property
    def by_name(self) -> Mapping[str, float]:
        """Time by what took it, the longest first; adds up to `length`."""
        return self._shares("name")

    @property
    def by_rank(self) -> Mapping[int, float]:
        """Time by the rank that worked or waited, the longest first."""
        return self._shares("rank")

    @property
    def hops(self) -> tuple[tuple[Segment, Segment], ...]:
        """Neighbours on the path that belong to two ranks."""
        pairs = zip(self.segments, self.segments[1:], strict=False)
        return tuple((a, b) for a, b in pairs if a.rank != b.rank)

    def _shares(self, what: str) -> Mapping[Any, float]:
        found: dict[Any, float] = defaultdict(float)
        for segment in self.segments:
            found[getattr(segment, what)] += segment.duration
        return MappingProxyType(dict(sorted(found.items(), key=lambda it: (-it[1], str(it[0])))))

    @property
    def sentence(self) -> str:
        """What the path consists of, in words."""
        if not self.length:
            return "The critical path is empty: nothing takes any time."
        parts = [f"{seconds / self.length:.0%} {name}" for name, seconds in self.by_name.items()]
        more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
        rank, seconds = next(iter(self.by_rank.items()))
        return (
            f"The critical path lasts {brief(self.length, self.about.unit)}: "
            f"{', '.join(parts[:4])}{more}; "
            f"{seconds / self.length:.0%} of it on rank {rank}, {len(self.hops)} "
            f"hop{'s' if len(self.hops) != 1 else ''} between ranks."
        )

    def __repr__(self) -> str:
        ranks = len(self.by_rank)
        return f"CriticalPath({self.about.clock}, {len(self.segments)} segments, {ranks} ranks)"

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{plain(self._table())}"

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence}</p>{html(self._table())}"

    def _table(self) -> Table:
        unit = self.about.unit
        return Table(
            f"Critical path, {self.about.clock}",
            ("name", "time", "share"),
            [
                (name, time(seconds, unit), f"{seconds / self.length:.1%}" if self.length else "")
                for name, seconds in self.by_name.items()
            ],
        )


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath:
    """The critical path of `trace`, or of one step: back from that step's last end to its start.

    Raises
    ------
    KeyError : there is no such step
    ValueError : the trace could not have happened, or lacks a part, as `graph` says
    """
    walk = _Walk(trace)
    if step is None:
        segments = list(walk.back())
    else:
        window = trace.find_step(step)
        last = max(sorted(window.spans), key=lambda rank: window.spans[rank][1])
        segments = [
            s if s.start >= window.start else replace(s, start=window.start)
            for s in takewhile(lambda s: s.end > window.start, walk.back(last, window.end))
        ]
    return CriticalPath(trace.about, tuple(reversed(segments)))


class _Walk:
    """A trace and its graph, prepared for walking back. A *place* is an index into `Graph.main`."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.graph = trace, trace._graph
        g, c = self.graph, trace.columns
        self.main: list[int] = g.main.tolist()
        self.start: list[float] = c["start"][g.main].tolist()
        self.end: list[float] = c["end"][g.main].tolist()
        self.rank: list[int] = c["rank"][g.main].tolist()
        self.hold_at = {place: i for i, place in enumerate(g.holds.tolist())}
        self.ops: list[int] = g.ops.tolist()
        self.posted: list[float] = c["start"][g.ops].tolist()
        self.done: list[float] = c["done"][g.ops].tolist()
        self.op_rank: list[int] = c["rank"][g.ops].tolist()
        self.at: list[int] = g.at.tolist()
        self.sends: list[int] = g.sends.tolist()
        self.receives: list[int] = g.receives.tolist()
        queued = (Code.MESSAGE, Code.COLLECTIVE)
        self.before = {slot: last for code, slot, _, _, last in g.program if code in queued}
        self.waits = {i: slots for code, i, _, slots, _ in g.program if code == Code.HOLD}
        message = {op: slot for slot, op in enumerate(self.receives)}
        self.rendezvous = {
            slot: message[op] for code, slot, _, op, _ in g.program if code == Code.POST
        }
        left = trace.__dict__.get("_left")  # what the engine knows and the columns do not hold
        sent = [self.posted[op] for op in self.sends]
        self.left: list[float] = sent if left is None else left.tolist()

    def back(self, rank: int | None = None, until: float = math.inf) -> Iterator[Segment]:
        """Segments, the last one first: from the last end, or from where `rank` was at `until`."""
        places = [
            place
            for place, start in enumerate(self.start)
            if start < until and rank in (None, self.rank[place])
        ]
        if not places:
            return
        place = places[-1] if rank is not None else max(places, key=self.end.__getitem__)
        t = self.end[place] if rank is None else until
        across = False  # whether the path came here over an operation
        while True:
            if self.end[place] < t and not across:
                yield self._piece(place, self.end[place], t, UNKNOWN, "not recorded")
                t = self.end[place]
            held = None if across else self._held(place, t)
            if held is not None:
                slot, since = held
                if since < t:
                    yield self._piece(place, since, t, OWN)
                place, t = yield from self._cross(slot, place, since)
                across = True
                continue
            across = False
            if self.start[place] < t:
                yield self._piece(place, self.start[place], t, OWN)
                t = self.start[place]
            if not place or self.rank[place - 1] != self.rank[place]:
                return
            place -= 1

    def _piece(
        self, place: int, start: float, end: float, reason: str, name: str | None = None
    ) -> Segment:
        row = self.main[place]
        if name is None:
            c = self.trace.columns
            text = self.trace.strings[c["name"][row]] if c["name"][row] >= 0 else ""
            kind = KINDS[c["kind"][row]]
            name = (text or kind) if kind == "compute" else f"{text or kind} call"
        return Segment(row, self.rank[place], start, end, reason, name)

    def _held(self, place: int, t: float) -> tuple[int, float] | None:
        """What held a wait longest, a slot, and until when; None: nothing did."""
        found, latest = None, self.start[place]
        for slot in self.waits[self.hold_at[place]] if place in self.hold_at else ():
            done = self.done[self._mine(slot, self.rank[place])]
            done = t if math.isnan(done) else min(done, t)
            if done > latest:
                found, latest = slot, done
        return None if found is None else (found, latest)

    def _mine(self, slot: int, rank: int) -> int:
        """The operation by which `rank` takes part in what a slot stands for."""
        if slot in self.rendezvous:
            return self.sends[self.rendezvous[slot]]
        if slot < len(self.sends):
            return self.receives[slot]
        members = self.graph.collectives[slot - len(self.sends)]
        return next(op for op in members if self.op_rank[op] == rank)

    def _cross(
        self, slot: int, place: int, t: float
    ) -> Generator[Segment, None, tuple[int, float]]:
        """What was under way until `t`; returns the place and the time at which it was begun."""
        if slot in self.rendezvous:
            message = self.rendezvous[slot]
            send, receive = self.sends[message], self.receives[message]
            op = receive if self.posted[receive] >= self.posted[send] else send
            began, reason = self.posted[op], f"waited until rank {self.op_rank[receive]} received"
        elif slot < len(self.sends):
            op, began = self.sends[slot], self.left[slot]
            reason = f"waited for message from rank {self.op_rank[op]}"
            receive = self.receives[slot]
            if self.trace.about.clock == "measured" and self.posted[receive] > began:
                # A real message gets on its way when both ends are there.
                op, began = receive, self.posted[receive]
        else:
            return (yield from self._cross_collective(slot, place, t))
        began = min(began, t)
        if began < t:
            yield self._piece(place, began, t, reason, "message")
        t = began
        if slot < len(self.sends) and op == self.sends[slot]:
            # On its link it may have queued behind others; the first of these began it.
            while self.left[slot] > self.posted[self.sends[slot]]:
                slot = self.before[slot]
                op, began = self.sends[slot], min(self.left[slot], t)
                if began < t:
                    yield Segment(
                        self.ops[op], self.op_rank[op], began, t,
                        "the link was busy with the message before", "message",
                    )  # fmt: skip
                t = began
        return self.at[op], min(self.posted[op], t)

    def _cross_collective(
        self, slot: int, place: int, t: float
    ) -> Generator[Segment, None, tuple[int, float]]:
        strings, c = self.trace.strings, self.trace.columns
        row, rank = self.main[place], self.rank[place]
        while True:
            members = self.graph.collectives[slot - len(self.sends)]
            mine = self.ops[self._mine(slot, rank)]
            last = max(members, key=self.posted.__getitem__)
            began, before = self.posted[last], self.before[slot]
            earlier = math.nan if before < 0 else self.done[self._mine(before, rank)]
            queued = earlier > began  # never, where it is not known
            name, number = strings[c["name"][mine]], c["seq"][mine]
            if queued:
                began = earlier
                reason = f"waited for {name} #{number}: it queued behind the group's one before"
            else:
                came = self.op_rank[last]
                who = f"rank {came}" + (" itself" if came == rank else "")
                reason = f"waited for {name} #{number}: {who} came last"
            began = min(began, t)
            if began < t:
                yield Segment(row, rank, began, t, reason, name)
            t = began
            if not queued:
                return self.at[last], min(self.posted[last], t)
            slot, row = before, self.ops[self._mine(before, rank)]
