"""Three byte figures: payload, closed form, on the wire."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from labkit.trace.measures import summarise
from labkit.trace.traffic import Traffic, Wire, closed_form, traffic, wire


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_closed_forms_by_operation(ranks: int) -> None:
    N, S = ranks, 840  # the full size
    part = Fraction(N - 1, N)
    assert closed_form("all_reduce", S, N) == pytest.approx(float(2 * part * S))
    assert closed_form("reduce_scatter", S, N) == pytest.approx(float(part * S))
    assert closed_form("all_to_all", S, N) == pytest.approx(float(part * S))
    # An all-gather's input is a shard: an all-reduce is a reduce-scatter and an all-gather.
    assert closed_form("all_gather", S / N, N) == pytest.approx(float(part * S))
    assert closed_form("scatter", S, N, at_root=True) == pytest.approx(float(part * S))
    assert closed_form("gather", S / N, N, at_root=True) == pytest.approx(float(part * S))
    assert closed_form("send", S, N) == S
    assert closed_form("barrier", 0, N) == closed_form("recv", S, N) == 0


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_operations_with_a_root_are_counted_once_at_the_root(name: str) -> None:
    assert closed_form(name, 100, 4, at_root=False) == 0
    assert closed_form(name, 100, 4, at_root=True) == {"gather": 300, "scatter": 75}.get(name, 100)
    assert closed_form(name, 100, 1, at_root=True) == 0


def test_what_is_not_known_is_not_guessed() -> None:
    assert closed_form("all_shuffle", 100, 4) is None
    assert closed_form("all_reduce", 100, None) is None
    assert closed_form("send", 100, None) == 100


def op(rank: int, name: str, size: int, start: float = 0, **more: Any) -> dict[str, Any]:
    kind = name if name in ("send", "recv") else "collective"
    row = {"rank": rank, "kind": kind, "name": name, "start": start, "bytes": size, "group": 0}
    return row | more


def test_traffic_adds_up_by_operation_and_rank(make: Any) -> None:
    rows = [
        op(0, "all_reduce", 300), op(0, "all_reduce", 600), op(0, "broadcast", 50, peer=0),
        op(0, "send", 9, peer=1), {"rank": 0, "kind": "wait", "start": 1, "bytes": 77},
        op(1, "all_reduce", 300), op(1, "broadcast", 50, peer=0), op(1, "recv", 9, peer=0),
        op(1, "all_reduce", 10, group=1),
    ]  # fmt: skip
    trace = make(rows, ranks=3, groups=[(0, 1, 2), (1,)])
    assert traffic(trace) == (
        Traffic("all_reduce", 0, calls=2, payload=900, closed_form=1200.0),
        Traffic("all_reduce", 1, calls=2, payload=310, closed_form=400.0),
        Traffic("broadcast", 0, calls=1, payload=50, closed_form=50.0),
        Traffic("broadcast", 1, calls=1, payload=50, closed_form=0.0),
        Traffic("recv", 1, calls=1, payload=9, closed_form=0.0),
        Traffic("send", 0, calls=1, payload=9, closed_form=9.0),
    )


def test_one_call_without_a_closed_form_leaves_the_sum_without_one(make: Any) -> None:
    rows = [op(0, "all_reduce", 300), op(0, "all_reduce", 300, group=-1)]
    trace = make(rows)
    assert traffic(trace) == (Traffic("all_reduce", 0, 2, 600, None),)
    assert "unknown" in str(summarise(trace))


def test_payloads_larger_than_any_integer_column_add_up(make: Any) -> None:
    (row,) = traffic(make([op(0, "send", 2**62), op(0, "send", 2**62), op(0, "send", 2**62)]))
    assert row.payload == 3 * 2**62


def marks(rank: int, *counts: tuple[float, int, int]) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "kind": "wire", "name": name, "start": at, "bytes": value}
        for at, sent, received in counts
        for name, value in (("sent", sent), ("received", received))
    ]


def step(rank: int, start: float, end: float, i: int) -> dict[str, Any]:
    span = {"rank": rank, "kind": "span", "name": "step", "tags": {"step": i}}
    return span | {"start": start, "end": end}


def test_the_wire_grows_between_the_first_and_the_last_mark(make: Any) -> None:
    rows = marks(0, (0, 10, 20), (1, 15, 25), (9, 110, 220)) + marks(1, (0, 0, 0), (9, 7, 8))
    assert wire(make(rows)) == (Wire(0, 100, 200), Wire(1, 7, 8))


def test_the_wire_of_a_step_grows_between_the_marks_round_it(make: Any) -> None:
    rows = [
        *marks(0, (0, 0, 0), (1, 5, 6), (3, 25, 36), (4, 26, 37), (9, 99, 99)),
        step(0, 1.1, 2.9, 0), step(0, 4.1, 8.9, 1),
        *marks(1, (0, 0, 0)), step(1, 1, 2, 0),
    ]  # fmt: skip
    trace = make(rows)
    first, second = trace.steps
    assert wire(trace, first) == (Wire(0, 20, 30),)
    assert wire(trace, second) == (Wire(0, 73, 62),)
    assert summarise(trace, step=1).wire == (Wire(0, 73, 62),)


def test_a_wire_that_was_not_recorded_is_none_and_not_zero(make: Any) -> None:
    assert wire(make([op(0, "all_reduce", 300)])) is None
    assert wire(make(marks(0, (0, 5, 5)))) is None
    summary = summarise(make([op(0, "all_reduce", 300)]))
    assert summary.wire is None
    assert "On the wire, all operations: not recorded" in str(summary)
