from __future__ import annotations

from typing import Any

from labkit.widgets.picture import build
from labkit.widgets.window import window
from tests.widgets.traces import trace_of


def compute(name: str, start: float, end: float) -> dict[str, Any]:
    return {"rank": 0, "kind": "compute", "name": name, "start": start, "end": end}


def test_all_steps_leave_out_what_came_before_the_first() -> None:
    rows = [compute("compute", 0, 100)]
    for i in range(2):
        rows.append({"rank": 0, "kind": "span", "name": "step", "start": 100 + i, "end": 101 + i,
                     "tags": {"step": i}})  # fmt: skip
        rows.append(compute("forward", 100 + i, 101 + i))
    trace = trace_of(rows)
    picture = build(trace)
    shown = window(trace, picture)
    assert (shown.start, shown.end, shown.step, shown.origin) == (100, 102, 0, 100)
    assert not shown.spans
    one = window(trace, picture, 1)
    assert (one.start, one.end, one.step) == (101, 102, 1)
    assert one.spans == {0: (101, 102)}


def test_without_steps_all_is_shown_on_the_traces_own_clock() -> None:
    trace = trace_of([compute("forward", 3, 9)])
    shown = window(trace, build(trace))
    assert (shown.start, shown.end, shown.origin) == (3, 9, 0)
