"""Whether viewers can draw a file in Chrome's trace format without dropping any of it.

Knows the format, and nothing of how labkit writes it. What viewers drop in silence is an error
here: bars that overlap in part on one thread, arrows with one end, numbers without a name.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

__all__ = ["check_chrome"]

_Bar = tuple[int, int, int]  # start and end in ns, place in the list
_Edges = tuple[list[int], list[int]]


def check_chrome(data: Any) -> None:
    """Check that viewers can draw `data` without dropping any of it.

    Each X event has a name, pid, tid, ts and dur; on one thread no two overlap in part; each flow
    has one start and one end, each on a bar of its thread; each pid has a name.

    Parameters
    ----------
    data : the parsed JSON, an object with "traceEvents" or the list alone

    Raises
    ------
    ValueError : names the place and what is wrong there
    """
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise ValueError("traceEvents: a list belongs here")
    bars: dict[tuple[int, int], list[_Bar]] = defaultdict(list)
    flows: dict[Any, dict[str, tuple[int, Any]]] = defaultdict(dict)
    pids: dict[int, int] = {}
    named: set[int] = set()
    for i, event in enumerate(events):
        ph = event.get("ph") if isinstance(event, dict) else None
        if ph not in ("X", "M", "C", "s", "f"):
            raise ValueError(f"traceEvents[{i}]: no event of a known kind (ph={ph!r})")
        _need(i, event, "name", lambda v: isinstance(v, str) and v != "")
        _need(i, event, "pid", _is_whole)
        if ph == "M":
            if event["name"] == "process_name":
                _need(i, event, "args", lambda v: isinstance(v, dict) and bool(v.get("name")))
                named.add(event["pid"])
            continue
        _need(i, event, "ts", _is_time)
        pids.setdefault(event["pid"], i)
        if ph == "C":
            _need(i, event, "args", _is_figures)
            continue
        _need(i, event, "tid", _is_whole)
        start = round(event["ts"] * 1000)
        if ph == "X":
            _need(i, event, "dur", lambda v: _is_time(v) and v >= 0)
            end = start + round(event["dur"] * 1000)
            bars[event["pid"], event["tid"]].append((start, end, i))
        else:
            _need(i, event, "id", lambda v: isinstance(v, int | str))
            if ph in flows[event["id"]]:
                raise ValueError(f"traceEvents[{i}]: a second {ph!r} of flow {event['id']!r}")
            flows[event["id"]][ph] = (i, event)
    for pid, i in pids.items():
        if pid not in named:
            raise ValueError(f"traceEvents[{i}]: pid {pid} has no process_name")
    edges = {thread: _check_lane(lane) for thread, lane in bars.items()}
    for number, ends in flows.items():
        for ph, other in (("s", "f"), ("f", "s")):
            if ph not in ends:
                raise ValueError(f"traceEvents[{ends[other][0]}]: flow {number!r} has no {ph!r}")
            i, event = ends[ph]
            if not _touches(edges.get((event["pid"], event["tid"])), round(event["ts"] * 1000)):
                raise ValueError(f"traceEvents[{i}]: flow {number!r} touches no event there")


def _check_lane(bars: list[_Bar]) -> _Edges:
    """The starts of the bars of one thread, in order, and the latest end up to each."""
    open_bars: list[_Bar] = []
    ordered = sorted(bars, key=lambda b: (b[0], -b[1]))
    for bar in ordered:
        while open_bars and open_bars[-1][1] <= bar[0]:
            open_bars.pop()
        if open_bars and bar[1] > open_bars[-1][1]:
            raise ValueError(f"traceEvents[{bar[2]}]: overlaps traceEvents[{open_bars[-1][2]}]")
        open_bars.append(bar)
    return [b[0] for b in ordered], list(accumulate((b[1] for b in ordered), max))


def _touches(edges: _Edges | None, at: int) -> bool:
    if edges is None:
        return False
    before = bisect_right(edges[0], at)
    return before > 0 and edges[1][before - 1] >= at


def _need(i: int, event: Mapping[str, Any], field: str, good: Callable[[Any], bool]) -> None:
    if field not in event or not good(event[field]):
        raise ValueError(f"traceEvents[{i}]: {field}={event.get(field)!r} ({event['ph']} event)")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_time, value.values()))
