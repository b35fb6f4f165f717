"""Chrome's format: what is written passes the check, and the check finds what viewers drop."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Trace
from labkit.trace.chrome import chrome
from labkit.trace.chrome_check import check_chrome


def op(rank: int, start: float, done: float, **more: Any) -> dict[str, Any]:
    row = {"rank": rank, "kind": "collective", "name": "all_reduce", "group": 0, "done": done}
    return row | {"start": start, "end": start + 0.125} | more


ROWS = [
    {"rank": 0, "kind": "compute", "name": "forward", "start": 0.0, "end": 1.0,
     "cpu_end": 0.5, "flops_end": 99, "tags": {"microbatch": 2}},
    op(0, 1, 4, op=0, seq=0, bytes=64, count=16, dtype="float32", reduction="SUM", where="a.py:3"),
    op(0, 2, 5, op=1, seq=1),
    op(0, 2.5, 3, op=2, seq=2),
    {"rank": 0, "kind": "wait", "name": "all_reduce", "start": 3.0, "end": 4.0, "op": 0},
    {"rank": 0, "kind": "span", "name": "step", "start": 0.0, "end": 5.0, "tags": {"step": 0}},
    {"rank": 0, "kind": "send", "name": "send", "start": 6.0, "end": 6.5, "done": 7.0, "peer": 1,
     "tag": 3, "seq": 0, "group": 0, "bytes": 8},
    {"rank": 0, "kind": "memory", "name": "weights", "start": 6.0, "bytes": 4096},
    {"rank": 1, "kind": "recv", "name": "recv", "start": 5.5, "end": 5.625, "done": 7.0, "peer": 0,
     "tag": 3, "seq": 0, "group": 0, "bytes": 8},
    {"rank": 1, "kind": "span", "name": "background", "start": 5.0, "end": 6.0, "thread": 1},
]  # fmt: skip


@pytest.fixture
def trace(make: Any) -> Trace:
    made = make(ROWS, error=0.5, cores=2, backend="gloo")
    assert isinstance(made, Trace)
    return made


def bars(data: dict[str, Any], rank: int) -> list[tuple[str, str, float, float]]:
    """(thread, name, ts, dur) of the bars of a rank."""
    rows = data["traceEvents"]
    threads = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    return [
        (threads[r["pid"], r["tid"]], r["name"], r["ts"], r["dur"])
        for r in rows
        if r["ph"] == "X" and r["pid"] == rank
    ]


def test_ranks_are_processes_and_overlapping_operations_keep_apart(trace: Trace) -> None:
    data = chrome(trace)
    check_chrome(data)
    assert bars(data, 0) == [
        ("main thread", "step", 0, 5e6),
        ("main thread", "forward", 0, 1e6),
        ("main thread", "all_reduce", 3e6, 1e6),
        ("communication", "all_reduce", 1e6, 3e6),
        ("communication", "send", 6e6, 1e6),
        ("communication 2", "all_reduce", 2e6, 3e6),
        ("communication 3", "all_reduce", 2.5e6, 0.5e6),
    ]
    assert bars(data, 1) == [
        ("communication", "recv", 5.5e6, 1.5e6),
        ("thread 1", "background", 5e6, 1e6),
    ]
    rows = data["traceEvents"]
    names = {r["pid"]: r["args"]["name"] for r in rows if r["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1"}


def test_bars_tell_what_is_known_of_an_event(trace: Trace) -> None:
    args = {(r["cat"], r["ts"]): r["args"] for r in chrome(trace)["traceEvents"] if r["ph"] == "X"}
    assert args["collective", 1e6] == {
        "bytes": 64, "count": 16, "dtype": "float32", "reduction": "SUM", "seq": 0,
        "where": "a.py:3", "group": "default",
    }  # fmt: skip
    assert args["compute", 0] == {"cpu ms": 500.0, "flops": 99, "tag microbatch": 2}


def test_a_message_is_one_arrow_from_send_to_receive(trace: Trace) -> None:
    arrows = [r for r in chrome(trace)["traceEvents"] if r["ph"] in "sf"]
    assert [(r["ph"], r["id"], r["pid"], r["ts"]) for r in arrows] == [
        ("s", 0, 0, 6e6),
        ("f", 0, 1, 7e6 - 0.001),
    ]


def test_marks_are_counters_and_the_file_says_which_clock(trace: Trace) -> None:
    data = chrome(trace)
    counters = [r for r in data["traceEvents"] if r["ph"] == "C"]
    assert [(r["name"], r["ts"], r["args"]) for r in counters] == [
        ("memory weights", 6e6, {"bytes": 4096})
    ]
    assert data["otherData"]["clock"] == "measured"
    assert data["otherData"]["clock error in seconds"] == 0.5


def test_the_file_is_plain_json(trace: Trace, make: Any, tmp_path: Path) -> None:
    trace.to_chrome(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == chrome(trace)
    odd = {"rank": 0, "kind": "compute", "start": 0.0, "tags": {"loss": float("nan")}}
    make([odd]).to_chrome(tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["traceEvents"][-1]["args"]["tag loss"] == "nan"


def test_an_empty_trace_is_an_empty_picture(make: Any) -> None:
    data = chrome(make([]))
    check_chrome(data)
    assert data["traceEvents"] == []


NUMBER = st.integers(0, 40).map(lambda n: n * 1e-9 / 3)  # closer together than a nanosecond


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["compute", "span", "send", "recv", "collective", "wait", "memory"]),
            NUMBER, NUMBER, NUMBER, st.integers(0, 2), st.integers(-1, 2), st.integers(-1, 2),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_whatever_overlaps_in_a_trace_no_viewer_has_to_drop_it(make: Any, rows: Any) -> None:
    made = [
        {"rank": rank, "kind": kind, "start": min(a, b), "end": max(a, b), "done": done,
         "thread": thread, "peer": peer, "seq": seq, "tag": 0, "group": 0}
        for rank, kind, a, b, done, thread, peer, seq in sorted(rows)
    ]  # fmt: skip
    data = chrome(make(made, ranks=3))
    check_chrome(data)
    drawn = sum(r["ph"] == "X" for r in data["traceEvents"])
    assert drawn == sum(kind != "memory" for _, kind, *_ in rows)


# The check, on what it has to refuse.

X = {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 0, "dur": 10}
NAME = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}}
S = {"ph": "s", "name": "m", "id": 1, "pid": 0, "tid": 0, "ts": 1}
F = S | {"ph": "f", "ts": 9}


def without(event: dict[str, Any], field: str) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != field}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [NAME, X],
        [NAME, X, X | {"ts": 10}, X | {"ts": 2, "dur": 3}, X | {"ts": 5, "dur": 5}],
        [NAME, X, X, X | {"dur": 0}, X | {"ts": 10, "dur": 0}],
        [NAME, X, X | {"ts": 5, "tid": 1}],
        [NAME, X, S, F],
        [NAME, {"ph": "C", "name": "c", "pid": 0, "ts": 0, "args": {"bytes": 3}}],
    ],
)
def test_the_check_accepts_what_can_be_drawn(events: list[Any]) -> None:
    check_chrome(events)
    check_chrome({"traceEvents": events})


@pytest.mark.parametrize(
    ("events", "message"),
    [
        *(([NAME, without(X, field)], rf"\[1\]: {field}=None") for field in
          ("name", "pid", "tid", "ts", "dur")),
        ([NAME, X | {"ts": "0"}], r"\[1\]: ts='0'"),
        ([NAME, X | {"ts": float("nan")}], r"\[1\]: ts=nan"),
        ([NAME, X | {"dur": -1}], r"\[1\]: dur=-1"),
        ([NAME, X | {"pid": "rank 0"}], r"\[1\]: pid='rank 0'"),
        ([NAME, X, X | {"ts": 5}], r"\[2\]: overlaps traceEvents\[1\]"),
        ([NAME, X | {"ts": 5}, X], r"\[1\]: overlaps traceEvents\[2\]"),
        ([NAME, X, X | {"ts": 2, "dur": 2}, X | {"ts": 3, "dur": 3}], r"\[3\]: overlaps"),
        ([X], r"\[0\]: pid 0 has no process_name"),
        ([NAME, X | {"pid": 1}], r"\[1\]: pid 1 has no process_name"),
        ([NAME | {"args": {}}], r"\[0\]: args="),
        ([NAME, X, S], r"\[2\]: flow 1 has no 'f'"),
        ([NAME, X, F], r"\[2\]: flow 1 has no 's'"),
        ([NAME, X, S, F, S], r"\[4\]: a second 's' of flow 1"),
        ([NAME, X, S, F, F], r"\[4\]: a second 'f' of flow 1"),
        ([NAME, X, without(S, "id"), F], r"\[2\]: id=None"),
        ([NAME, X, S, F | {"ts": 11}], r"\[3\]: flow 1 touches no event"),
        ([NAME, X, S | {"tid": 4}, F], r"\[2\]: flow 1 touches no event"),
        ([NAME, {"ph": "C", "name": "c", "pid": 0, "ts": 0, "args": {"b": "x"}}], r"\[1\]: args="),
        ([NAME, {"ph": "B"}], r"\[1\]: no event of a known kind \(ph='B'\)"),
        (["x"], r"\[0\]: no event of a known kind"),
        ({"traceEvents": 5}, "a list belongs here"),
        ({}, "a list belongs here"),
        (None, "a list belongs here"),
    ],
)  # fmt: skip
def test_the_check_names_the_place_of_what_cannot(events: Any, message: str) -> None:
    before = copy.deepcopy(events)
    with pytest.raises(ValueError, match=message):
        check_chrome(events)
    assert events == before or "nan" in message
