"""What one rank writes down while it runs, and how the ranks' logs become one `Trace`.

A `Log` only appends: an entry costs a few microseconds and no torch call. Every entry carries three
stamps: wall clock (`perf_counter_ns`, one base for all processes of a machine), CPU time of the
rank's thread, FLOPs so far. Compute is never written: it is what lies between two entries.
"""

from __future__ import annotations

import itertools
import numbers
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from labkit.trace.events import COLUMNS, KINDS, OPERATIONS, About, Group, Trace

Stamp = tuple[int, int, int]  # wall ns, CPU ns of the thread, FLOPs

_OPEN, _CLOSE, _EVENT = 0, 1, 2


class Pacer(Protocol):
    """Who makes spans last what they say: called before each end of a span is stamped."""

    def open(self, name: str, tags: Mapping[str, Any]) -> None: ...
    def close(self, name: str) -> None: ...
    def rest(self, name: str) -> None:
        """Sleep now what span `name`, the innermost that says `seconds`, would at its end."""


class Log:
    """The record of one rank.

    Parameters
    ----------
    rank : global rank of the process that writes
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.flops = 0
        self.entries: list[tuple[Any, ...]] = []
        self.done: dict[int, int] = {}  # operation -> wall ns; written by other threads
        self.groups: list[Group] = []
        self.main = threading.get_ident()
        self.at_step: Callable[[], None] | None = None  # called at both ends of a span "step"
        self.at_arrival: Callable[[], None] | None = None  # see `arrive`
        self.pacer: Pacer | None = None
        self._threads: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._operations = 0
        self.first = self.stamp()

    def stamp(self) -> Stamp:
        return (time.perf_counter_ns(), time.thread_time_ns(), self.flops)

    def arrive(self) -> Stamp:
        """The stamp at which an event of this thread begins, and the compute before it has ended.

        What stretches a rank's compute does it here, in `at_arrival`.
        """
        if self.at_arrival is not None and self.thread() == 0:
            self.at_arrival()
        return self.stamp()

    def thread(self) -> int:
        """0 for the thread that made the log, else a number of its own a thread."""
        ident = threading.get_ident()
        if ident == self.main:
            return 0
        number = self._threads.get(ident)
        if number is None:
            number = self._threads[ident] = next(self._numbers)
        return number

    def group(self, group: Group) -> int:
        """The index of `group` in this log."""
        if group not in self.groups:
            self.groups.append(group)
        return self.groups.index(group)

    def next_operation(self) -> int:
        self._operations += 1
        return self._operations - 1

    def begin(self) -> None:
        """Forget what was written so far (setting up a group is not part of the run)."""
        self.entries.clear()
        self.first = self.stamp()

    def complete(self, op: int) -> None:
        """Note that operation `op` is complete; any thread may call."""
        self.done[op] = time.perf_counter_ns()

    def open(self, name: str, tags: Mapping[str, Any]) -> None:
        if name == "step" and self.at_step is not None:
            self.at_step()
        # Plain at once: a tensor given as a tag must not be kept alive, nor told as it is later.
        tags = {key: _plain(value) for key, value in tags.items()}
        if self.pacer is not None:
            self.pacer.open(name, tags)
        self.entries.append((_OPEN, self.thread(), self.arrive(), name, tags))

    def close(self, name: str) -> None:
        if self.pacer is not None:
            self.pacer.close(name)
        self.entries.append((_CLOSE, self.thread(), self.arrive(), name))
        if name == "step" and self.at_step is not None:
            self.at_step()

    def event(
        self, kind: str, name: str, start: Stamp, end: Stamp, **fields: Any
    ) -> dict[str, Any]:
        """Append an event; `fields` are columns of the trace, strings as strings.

        Returns the fields, so that what turns out later (who sent a message) can be filled in.
        """
        self.entries.append((_EVENT, self.thread(), start, end, kind, name, fields))
        return fields

    def mark(self, kind: str, name: str, value: int) -> None:
        """Append a memory or wire mark of `value` bytes."""
        now = self.stamp()
        self.event(kind, name, now, now, bytes=value)

    def finish(self) -> RankRecord:
        """Close the log: plain data that can leave the process."""
        return RankRecord(
            self.rank, self.first, self.stamp(), tuple(self.entries), dict(self.done),
            tuple(self.groups),
        )  # fmt: skip


@dataclass(frozen=True)
class RankRecord:
    """A finished log, as plain data."""

    rank: int
    first: Stamp
    last: Stamp
    entries: tuple[tuple[Any, ...], ...]
    done: Mapping[int, int]
    groups: tuple[Group, ...]

    def on_clock(self, wall: Callable[[Any], int]) -> RankRecord:
        """This record with every wall-clock stamp, completions too, put through `wall`."""

        def told(stamp: Stamp) -> Stamp:
            return (wall(stamp[0]), stamp[1], stamp[2])

        entries: list[tuple[Any, ...]] = []
        for kind, thread, start, *rest in self.entries:
            if kind == _EVENT:
                rest[0] = told(rest[0])
            entries.append((kind, thread, told(start), *rest))
        done = {op: wall(at) for op, at in self.done.items()}
        return replace(
            self, first=told(self.first), last=told(self.last), entries=tuple(entries), done=done
        )


@dataclass
class _Table:
    """Rows and string tables under construction."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    strings: dict[str, int] = field(default_factory=dict)
    groups: dict[Group, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    tag_values: list[Mapping[str, Any]] = field(default_factory=list)

    def text(self, value: str | None) -> int:
        return -1 if value is None else self.strings.setdefault(value, len(self.strings))

    def tag(self, value: Mapping[str, Any]) -> int:
        if not value:
            return -1
        key = repr(sorted(value.items()))
        if key not in self.tags:
            self.tags[key] = len(self.tag_values)
            self.tag_values.append(value)
        return self.tags[key]

    def row(
        self, record: RankRecord, zero: int, kind: str, name: str, start: Stamp, end: Stamp,
        thread: int = 0, tags: int = -1, done: float = float("nan"), **fields: Any,
    ) -> None:  # fmt: skip
        group = fields.get("group", -1)
        if group >= 0:
            group = self.groups.setdefault(record.groups[group], len(self.groups))
        self.rows.append((
            record.rank, KINDS.index(kind), self.text(name),
            (start[0] - zero) * 1e-9, (max(end[0], start[0]) - zero) * 1e-9, done,
            start[1] * 1e-9, end[1] * 1e-9, start[2], end[2], thread,
            fields.get("op", -1), group, fields.get("seq", -1), fields.get("peer", -1),
            fields.get("tag", -1), fields.get("bytes", 0), fields.get("count", 0),
            self.text(fields.get("dtype")), self.text(fields.get("reduction")),
            self.text(fields.get("where")), tags,
        ))  # fmt: skip


def merge(records: Sequence[RankRecord], about: About) -> Trace:
    """One trace of all ranks' logs, on one clock whose zero is the earliest stamp.

    Parameters
    ----------
    records : one a rank, in any order; ranks may be missing (a rank that died left nothing)
    about : what is to be said of the run
    """
    table = _Table()
    if len({r.rank for r in records}) < len(records):
        raise ValueError(f"two logs of one rank: {sorted(r.rank for r in records)}")
    zero = min((r.first[0] for r in records), default=0)
    for record in sorted(records, key=lambda r: r.rank):
        _rows_of_rank(table, record, zero)
    rows = table.rows
    columns = {
        name: np.array([r[i] for r in rows], dtype=kind)
        for i, (name, kind) in enumerate(COLUMNS.items())
    }
    return Trace(columns, tuple(table.strings), tuple(table.groups), table.tag_values, about)


def _rows_of_rank(table: _Table, record: RankRecord, zero: int) -> None:
    waits: dict[int, int] = {}  # operation -> end of its first wait, ns
    for entry in record.entries:
        if entry[0] == _EVENT and entry[4] in ("wait", "join"):
            fields = entry[6]
            for op in fields.get("ops", (fields.get("op", -1),)):
                waits.setdefault(op, entry[3][0])
    # Open spans by thread.
    stacks: defaultdict[int, list[tuple[Stamp, str, int]]] = defaultdict(list)
    cursor = record.first

    def compute(until: Stamp) -> None:
        if until[0] > cursor[0]:
            name, tags = (stacks[0][-1][1:]) if stacks[0] else ("compute", -1)
            table.row(record, zero, "compute", name, cursor, until, tags=tags)

    for entry in record.entries:
        thread = entry[1]
        if entry[0] == _OPEN:
            if thread == 0:
                compute(entry[2])
                cursor = entry[2]
            stacks[thread].append((entry[2], entry[3], table.tag(entry[4])))
        elif entry[0] == _CLOSE:
            if thread == 0:
                compute(entry[2])
                cursor = entry[2]
            open_spans = stacks[thread]
            # Spans may cross (two generators, say): the innermost of that name is the one meant.
            at = next((i for i, s in enumerate(reversed(open_spans)) if s[1] == entry[3]), None)
            if at is not None:
                start, name, tags = open_spans.pop(len(open_spans) - 1 - at)
                table.row(record, zero, "span", name, start, entry[2], thread=thread, tags=tags)
        else:
            _, _, start, end, kind, name, fields = entry
            if thread == 0 and kind not in ("memory", "wire"):
                compute(start)
                cursor = max(cursor, end)  # one event may lie inside another
            done = float("nan")
            if "op" in fields and kind in OPERATIONS:
                # A future's callback may come late (it needs the GIL), never after the wait's end.
                seen = record.done.get(fields["op"])
                ended = waits.get(fields["op"])
                both = [t for t in (seen, ended) if t is not None]
                if both:
                    done = (max(min(both), start[0]) - zero) * 1e-9
            table.row(record, zero, kind, name, start, end, thread=thread, done=done, **fields)
    compute(record.last)
    for thread, stack in stacks.items():  # spans that an error left open end with the log
        while stack:
            start, name, tags = stack.pop()
            table.row(record, zero, "span", name, start, record.last, thread=thread, tags=tags)


def _plain(value: Any) -> bool | int | float | str | None:
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    if isinstance(value, numbers.Integral):  # NumPy's, for one
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    try:
        return str(value)
    except Exception:  # a tag must not break the program that it describes
        return f"a {type(value).__name__}"
