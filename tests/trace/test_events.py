"""The trace as data: what it holds, what it refuses, steps."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from labkit.trace import About, Group, Trace
from labkit.trace.events import COLUMNS


def test_views_tell_names_and_leave_out_what_does_not_apply(make: Any) -> None:
    trace = make(
        [
            {"rank": 0, "kind": "compute", "name": "forward", "start": 0.0, "end": 1.5,
             "cpu_end": 1.25, "flops_end": 7, "tags": {"microbatch": 3}},
            {"rank": 1, "kind": "send", "name": "send", "start": 1.0, "op": 0, "group": 0, "seq": 0,
             "peer": 0, "tag": 5, "bytes": 8, "count": 2, "dtype": "float32", "where": "a.py:3"},
        ]
    )  # fmt: skip
    compute, send = trace.events
    assert (compute.kind, compute.name, compute.duration) == ("compute", "forward", 1.5)
    assert (compute.cpu, compute.flops, compute.tags) == (1.25, 7, {"microbatch": 3})
    nothing = (compute.done, compute.op, compute.group, compute.seq, compute.peer, compute.dtype)
    assert nothing == (None,) * 6
    assert (send.peer, send.tag, send.bytes, send.dtype) == (0, 5, 8, "float32")
    assert send.group == Group("0", "default", (0, 1))
    assert (send.where, send.reduction, send.tags) == ("a.py:3", None, {})


def test_nothing_in_a_trace_can_be_changed(make: Any) -> None:
    trace = make([{"rank": 0, "kind": "compute", "start": 0.0, "tags": {"a": 1}}])
    with pytest.raises(ValueError, match="read-only"):
        trace.columns["start"][0] = 9.0
    with pytest.raises(TypeError):
        trace.columns["start"] = np.zeros(1)
    with pytest.raises(TypeError):
        trace.tags[0]["a"] = 2
    with pytest.raises(FrozenInstanceError):
        trace.events[0].start = 1.0


def test_the_arrays_that_it_was_made_of_may_change_later() -> None:
    columns = {name: np.zeros(1, kind) for name, kind in COLUMNS.items()}
    columns["tags"][:] = -1
    trace = Trace(columns, ["x"], [Group("0", "", (0,))], [], About(1))
    columns["start"][0] = 5.0
    assert trace.events[0].start == 0.0


def test_a_trace_travels(make: Any) -> None:
    trace = make([{"rank": 0, "kind": "compute", "name": "a", "start": 0.0, "tags": {"step": 1}}])
    for other in (pickle.loads(pickle.dumps(trace)), copy.deepcopy(trace)):
        assert other.events == trace.events
        assert other.about == trace.about


def _broken(**changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {name: np.zeros(3, kind) for name, kind in COLUMNS.items()}
    for name in ("name", "dtype", "reduction", "where", "group", "peer", "tags"):
        columns[name] -= 1
    columns.update(changes)
    return {name: value for name, value in columns.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": None}, "needs the column 'bytes'"),
        ({"colour": np.zeros(3)}, "no column 'colour'"),
        ({"end": np.zeros(2)}, "'end' has 2 rows, 'rank' has 3"),
        ({"op": np.zeros(3)}, "'op' holds fractions"),
        ({"op": np.array(["a", "b", "c"])}, "'op' is not one row of numbers"),
        ({"start": np.zeros((3, 1))}, "'start' is not one row of numbers"),
        ({"rank": np.array([0, 0, 2])}, "'rank' holds 2, outside its table"),
        ({"kind": np.array([0, 99, 0])}, "'kind' holds 99"),
        ({"name": np.array([0, 0, 0])}, "'name' holds 0"),
        ({"peer": np.array([-2, 0, 0])}, "'peer' holds -2"),
        ({"tag": np.array([0, 2**40, 0])}, r"'tag' holds 1099511627776, too large for its type i4"),
        ({"start": np.array([0, np.nan, 0])}, "'start' holds a time that is not finite"),
        ({"done": np.array([0, np.inf, 0])}, "'done' holds a time that is not finite"),
        ({"end": np.array([0.0, -1.0, 0.0])}, "event 1 ends before it starts"),
        ({"rank": np.array([0, 1, 0])}, "rows of a rank do not stand together"),
    ],
)
def test_what_no_trace_can_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trace(_broken(**changes), [], [], [], About(2))


def test_a_group_of_ranks_that_are_not_there_is_refused() -> None:
    for ranks in ((), (0, 2), (-1,)):
        with pytest.raises(ValueError, match="group 'g' has ranks"):
            Trace(_broken(), [], [Group("g", "", ranks)], [], About(2))


def test_about_refuses_another_clock_and_no_ranks() -> None:
    with pytest.raises(ValueError, match="clock='guessed': use one of measured, paced, modelled"):
        About(2, clock="guessed")
    with pytest.raises(ValueError, match="ranks=0"):
        About(0)


STEPS = [
    {"rank": 0, "kind": "compute", "name": "a", "start": 0.0, "end": 1.0},
    {"rank": 0, "kind": "compute", "name": "b", "start": 1.0, "end": 2.0},
    {"rank": 0, "kind": "span", "name": "step", "start": 1.0, "end": 2.0, "tags": {"step": 7}},
    {"rank": 0, "kind": "compute", "name": "c", "start": 2.0, "end": 3.0},
    {"rank": 0, "kind": "compute", "name": "d", "start": 3.0, "end": 5.0},
    {"rank": 0, "kind": "span", "name": "step", "start": 3.0, "end": 5.0, "tags": {"step": 8}},
    {"rank": 1, "kind": "compute", "name": "e", "start": 1.5, "end": 2.5},
    {"rank": 1, "kind": "span", "name": "step", "start": 1.5, "end": 2.5, "tags": {"step": 7}},
]


def test_steps_are_marked_by_spans(make: Any) -> None:
    trace = make(STEPS)
    first, second = trace.steps
    assert (first.index, first.spans) == (7, {0: (1.0, 2.0), 1: (1.5, 2.5)})
    assert (first.start, first.end, first.duration) == (1.0, 2.5, 1.5)
    assert (second.index, second.spans) == (8, {0: (3.0, 5.0)})
    assert repr(trace) == "Trace(ranks=2, measured, 2 steps)"


def test_a_step_holds_what_started_inside_it_and_not_what_follows(make: Any) -> None:
    trace = make(STEPS)
    assert [e.name for e in trace.step(7).events] == ["b", "step", "e", "step"]
    assert [e.name for e in trace.step(8).events] == ["d", "step"]
    with pytest.raises(KeyError, match=r"no step 9 in this trace \(steps: 7, 8\)"):
        trace.step(9)


def test_without_marks_the_whole_trace_is_one_step(make: Any) -> None:
    rows = [
        {"rank": 0, "kind": "span", "name": "step", "start": 0.0, "end": 9.0},
        {"rank": 0, "kind": "span", "name": "other", "start": 1.0, "end": 2.0, "tags": {"step": 3}},
        {"rank": 1, "kind": "span", "name": "step", "start": 2.0, "end": 3.0,
         "tags": {"step": "x"}},
    ]  # fmt: skip
    trace = make(rows)
    assert [(s.index, s.spans) for s in trace.steps] == [(0, {0: (0.0, 9.0), 1: (2.0, 3.0)})]
    assert len(trace.step(0)) == 3


def test_a_step_number_used_twice_means_its_first_use(make: Any) -> None:
    again = {"rank": 0, "kind": "span", "name": "step", "tags": {"step": 0}}
    trace = make([{**again, "start": 0.0, "end": 1.0}, {**again, "start": 5.0, "end": 6.0}])
    assert trace.steps[0].spans == {0: (0.0, 1.0)}


def test_an_empty_trace_has_no_steps(make: Any) -> None:
    trace = make([], ranks=4)
    assert (len(trace), trace.events, trace.steps) == (0, (), ())
    with pytest.raises(KeyError, match=r"steps: none"):
        trace.step(0)
    assert repr(trace) == "Trace(ranks=4, measured, 0 steps)"
