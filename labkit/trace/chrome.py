"""Chrome's trace format: what Perfetto and chrome://tracing draw.

A rank is a process. Its first thread holds what the main thread did (spans, compute and waits, one
inside the other); communication lies on threads of its own, from issue to completion. Viewers drop
bars that overlap on one thread without one lying inside the other, so whatever would overlap goes
to a further thread. Messages are arrows, memory and wire marks are counters. Stamps are whole
nanoseconds, written in microseconds; a unit other than seconds is drawn as seconds.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.trace.arrivals import partners
from labkit.trace.events import KINDS, OPERATIONS, Event, Trace
from labkit.trace.files import write_whole

__all__ = ["chrome", "to_chrome"]

_FIELDS = ("bytes", "count", "dtype", "reduction", "seq", "peer", "tag", "where")


def to_chrome(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write `trace` in Chrome's trace format (JSON) to `path`.

    Raises
    ------
    OSError : the file cannot be written
    """
    write_whole(path, json.dumps(chrome(trace), allow_nan=False).encode("ascii"))


def chrome(trace: Trace) -> dict[str, Any]:
    """`trace` in Chrome's trace format, as plain data; `chrome_check.check_chrome` accepts it."""
    rows: list[dict[str, Any]] = []
    bars: dict[int, dict[str, Any]] = {}
    by_rank: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    for index, event in enumerate(trace.events):
        by_rank[event.rank].append((index, event))
    for rank, events in sorted(by_rank.items()):
        rows.append(_name("process_name", rank, 0, name=f"rank {rank}"))
        rows.append(_name("process_sort_index", rank, 0, sort_index=rank))
        lanes = _lanes(events)
        for tid, (name, lane) in enumerate(lanes):
            rows.append(_name("thread_name", rank, tid, name=name))
            rows.append(_name("thread_sort_index", rank, tid, sort_index=tid))
            for index, event in lane:
                bars[index] = _bar(event, tid)
                rows.append(bars[index])
        rows += [_counter(event) for _, event in events if event.kind in ("memory", "wire")]
    rows += _arrows(trace, bars)
    about = trace.about
    return {
        "traceEvents": rows,
        "displayTimeUnit": "ns",
        "otherData": {
            "clock": about.clock,
            "clock error in seconds": about.error,
            "unit of time": about.unit,
            "ranks": about.ranks,
            "cores": about.cores,
            "backend": about.backend,
            "note": about.note,
        },
    }


def _end(event: Event) -> float:
    """Of an operation its completion, where that was seen."""
    if event.kind in OPERATIONS and event.done is not None:
        return max(event.end, event.done)
    return event.end


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _lanes(events: Iterable[tuple[int, Event]]) -> list[tuple[str, list[tuple[int, Event]]]]:
    """Threads of one rank, each with its name and events that do not overlap in part."""
    parts: dict[str, list[tuple[int, Event]]] = {"main thread": [], "communication": []}
    for index, event in events:
        if event.kind in ("memory", "wire"):
            continue
        if event.kind in OPERATIONS:
            parts["communication"].append((index, event))
        else:
            name = f"thread {event.thread}" if event.thread else "main thread"
            parts.setdefault(name, []).append((index, event))
    found = []
    for name, members in parts.items():
        members.sort(key=lambda member: (_ns(member[1].start), -_ns(_end(member[1]))))
        lanes: list[_Lane] = []
        for index, event in members:
            start, end = _ns(event.start), _ns(_end(event))
            # Operations never nest: one inside another ran beside it, not as a part of it.
            nests = name != "communication"
            lane = next((lane for lane in lanes if lane.has_room(start, end, nests)), None)
            if lane is None:
                lane = _Lane()
                lanes.append(lane)
            lane.events.append((index, event))
            lane.open_ends.append(end)
        found += [(f"{name} {i + 1}" if i else name, lane.events) for i, lane in enumerate(lanes)]
    return found


@dataclass
class _Lane:
    """A thread under construction; bars come in order of their starts."""

    events: list[tuple[int, Event]] = field(default_factory=list)
    open_ends: list[int] = field(default_factory=list)

    def has_room(self, start: int, end: int, nests: bool) -> bool:
        while self.open_ends and self.open_ends[-1] <= start:
            self.open_ends.pop()
        return not self.open_ends or (nests and end <= self.open_ends[-1])


def _bar(event: Event, tid: int) -> dict[str, Any]:
    start, end = _ns(event.start), _ns(_end(event))
    args = {name: value for name in _FIELDS if (value := getattr(event, name)) is not None}
    if event.kind not in OPERATIONS:
        args = {name: args[name] for name in ("seq", "where") if name in args}
        args["cpu ms"] = event.cpu * 1e3
        args["flops"] = event.flops
    if event.group is not None:
        args["group"] = event.group.description or event.group.name
    return {
        "ph": "X", "name": event.name or event.kind, "cat": event.kind, "pid": event.rank,
        "tid": tid, "ts": start / 1000, "dur": (end - start) / 1000,
        "args": {**args, **{f"tag {key}": _json(value) for key, value in event.tags.items()}},
    }  # fmt: skip


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _counter(event: Event) -> dict[str, Any]:
    return {
        "ph": "C", "name": f"{event.kind} {event.name}", "pid": event.rank, "tid": 0,
        "ts": _ns(event.start) / 1000, "args": {"bytes": event.bytes},
    }  # fmt: skip


def _name(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _arrows(trace: Trace, bars: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """From the start of a send to the end of its receive, for each message seen at both ends."""
    arrows: list[dict[str, Any]] = []
    kinds = trace.columns["kind"]
    for rows in partners(trace):
        ends = {KINDS[kinds[row]]: bars[row] for row in rows}
        if set(ends) != {"send", "recv"}:
            continue
        number = len(arrows) // 2
        for ph, bar, ts, more in (
            ("s", ends["send"], ends["send"]["ts"], {}),
            ("f", ends["recv"], _last(ends["recv"]), {"bp": "e"}),
        ):
            what = {"ph": ph, "name": "message", "cat": "message", "id": number}
            arrows.append({**what, "pid": bar["pid"], "tid": bar["tid"], "ts": ts, **more})
    return arrows


def _last(bar: Mapping[str, Any]) -> float:
    """The last nanosecond of a bar: at its very end a viewer has closed it."""
    start, length = round(bar["ts"] * 1000), round(bar["dur"] * 1000)
    return float(start + max(length - 1, 0)) / 1000
