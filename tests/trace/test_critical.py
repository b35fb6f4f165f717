"""The critical path: contiguous, as long as the whole, and the only place where speed pays."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.trace import Pick, Trace
from labkit.trace.critical import CriticalPath, Segment
from tests.trace.programs import Program, cluster, pipeline
from tests.trace.test_engine import programs


def told(path: CriticalPath) -> list[tuple[Any, ...]]:
    return [(s.rank, s.start, s.end, s.name, s.reason) for s in path.segments]


def contiguous(segments: tuple[Segment, ...]) -> bool:
    joined = all(a.end == b.start for a, b in pairwise(segments))
    return joined and all(s.duration > 0 for s in segments)


def test_a_late_rank_is_on_the_path_and_those_that_wait_for_it_are_not() -> None:
    p = Program(3)
    for rank in range(3):
        p.compute(rank, 1 + 4 * (rank == 2), "backward")
        p.reduce(rank, 30)
        p.compute(rank, 2 + (rank == 0), "optimizer")
    path = p.trace().retime(cluster(0.5, 10), "cpu").critical_path()
    assert told(path) == [
        (2, 0, 5, "backward", "own work"),
        (0, 5, 11, "all_reduce", "waited for all_reduce #0: rank 2 came last"),
        (0, 11, 14, "optimizer", "own work"),
    ]
    assert path.length == 14
    assert dict(path.by_name) == {"all_reduce": 6, "backward": 5, "optimizer": 3}
    assert dict(path.by_rank) == {0: 9, 2: 5}
    assert [(a.rank, b.rank) for a, b in path.hops] == [(2, 0)]
    assert path.sentence == (
        "The critical path lasts 14.0 s: 43% all_reduce, 36% backward, 21% optimizer; "
        "64% of it on rank 0, 1 hop between ranks."
    )


def test_buckets_queue_behind_each_other() -> None:
    p = Program(2)
    for rank in range(2):
        ops = []
        for _ in range(3):
            p.compute(rank, 1, "backward")
            ops.append(p.collective(rank, 40))
        for op in ops:
            p.wait(rank, op)
    path = p.trace().retime(cluster(0, 10), "cpu").critical_path()
    queued = "it queued behind the group's one before"
    assert told(path) == [
        (0, 0, 1, "backward", "own work"),
        (0, 1, 5, "all_reduce", "waited for all_reduce #0: rank 0 itself came last"),
        (0, 5, 9, "all_reduce", f"waited for all_reduce #1: {queued}"),
        (0, 9, 13, "all_reduce", f"waited for all_reduce #2: {queued}"),
    ]


def test_messages_queue_on_their_link() -> None:
    p = Program(2)
    p.compute(0, 1, "forward")
    p.send(0, 1, 50)
    p.send(0, 1, 20)
    p.receive(1, 0, 50)
    p.receive(1, 0, 20)
    p.compute(1, 1, "forward")
    path = p.trace().retime(cluster(0.5, 10), "cpu").critical_path()
    assert told(path) == [
        (0, 0, 1, "forward", "own work"),
        (0, 1, 6, "message", "the link was busy with the message before"),
        (1, 6, 8.5, "message", "waited for message from rank 0"),
        (1, 8.5, 9.5, "forward", "own work"),
    ]


def test_a_blocking_send_waits_for_its_receiver() -> None:
    p = Program(2)
    p.wait(0, p.send(0, 1, 30))
    p.compute(0, 9)
    p.compute(1, 20, "slow")
    p.receive(1, 0, 30)
    path = p.trace().retime(cluster(0.5, 10), "cpu").critical_path()
    assert [(s.rank, s.start, s.end, s.name) for s in path.segments] == [
        (1, 0, 20, "slow"), (0, 20, 29, "compute"),
    ]  # fmt: skip


def test_calls_and_what_comes_after_a_wait_are_own_work() -> None:
    p = Program(2)
    for rank in range(2):
        op = p.collective(rank, 10)
        p.cpu[rank] += 2
        p.rows[rank][-1]["cpu_end"] = p.cpu[rank]
        p.wait(rank, op)
        p.cpu[rank] += 3
        p.rows[rank][-1]["cpu_end"] = p.cpu[rank]
    path = p.trace().retime(cluster(0, 1), "cpu").critical_path()
    assert [(s.start, s.end, s.name) for s in path.segments] == [
        (0, 10, "all_reduce"), (10, 13, "wait call"),
    ]  # fmt: skip


def test_what_another_thread_issued_is_followed_to_where_the_main_thread_was() -> None:
    p = Program(2)
    for rank in range(2):
        op = p.collective(rank, 20, thread=1, start=0.25, end=0.3)
        p.compute(rank, 8)
        p.rows[rank][-1] |= {"start": 0, "end": 1}
        p.wait(rank, op)
    path = p.trace().retime(cluster(0, 1), "cpu").critical_path()
    assert [(s.start, s.end, s.name) for s in path.segments] == [
        (0, 2, "compute"), (2, 22, "all_reduce"),
    ]  # fmt: skip


def test_a_join_is_held_by_the_last_of_what_it_waits_for() -> None:
    p = Program(2, groups=[(0, 1), (0, 1)])
    for rank in range(2):
        p.collective(rank, 30, group=1)
        p.compute(rank, 1)
        p.row(rank, "join", "join", op=p.collective(rank, 10))
    path = p.trace().retime(cluster(0, 1), "cpu").critical_path()
    assert [(s.start, s.end, s.name) for s in path.segments] == [(0, 30, "all_reduce")]


def test_the_path_of_a_step_begins_and_ends_with_it() -> None:
    p = Program(2)
    for step in range(3):
        for rank in range(2):
            p.compute(rank, 1 + (rank == step % 2), "backward")
            p.reduce(rank, 10)
            p.span(rank, "step", 3, step=step)
    trace = p.trace().retime(cluster(0, 5), "cpu")
    for step in trace.steps:
        path = trace.critical_path(step.index)
        assert (path.segments[0].start, path.segments[-1].end) == (step.start, step.end)
        assert contiguous(path.segments)
        assert path.by_rank[step.index % 2] >= 2
    assert trace.critical_path().length == sum(s.duration for s in trace.steps)
    with pytest.raises(KeyError, match="no step 3"):
        trace.critical_path(3)


def test_a_pipeline_with_a_slow_stage_goes_through_that_stage() -> None:
    trace = pipeline("1F1B", 4, 8, 1, 2).retime(
        cluster(0.1), "cpu", scale={Pick("backward", rank=2): 2, Pick("forward", rank=2): 2}
    )
    assert next(iter(trace.critical_path().by_rank)) == 2


# Laws -----------------------------------------------------------------------------------------


@given(programs(), st.floats(0, 3), st.floats(0.5, 100))
def test_it_is_contiguous_and_as_long_as_the_whole(
    p: Program, latency: float, bandwidth: float
) -> None:
    trace = p.trace().retime(cluster(latency, bandwidth), "cpu")
    path = trace.critical_path()
    makespan = trace.columns["end"].max()
    assert (path.segments[0].start, path.length) == (0, makespan)
    assert contiguous(path.segments)
    assert math.fsum(s.duration for s in path.segments) == pytest.approx(makespan, rel=1e-12)
    assert sum(path.by_name.values()) == pytest.approx(makespan, rel=1e-12)
    for s in path.segments:
        assert trace.columns["rank"][s.row] == s.rank
        if s.reason == "own work":
            assert trace.columns["start"][s.row] <= s.start < s.end <= trace.columns["end"][s.row]


@given(programs(), st.floats(0, 3), st.floats(0.5, 100), st.booleans())
def test_only_what_is_on_it_can_shorten_the_whole(
    p: Program, latency: float, bandwidth: float, known: bool
) -> None:
    on = cluster(latency, bandwidth)
    trace = p.trace().retime(on, "cpu")
    if not known:
        del trace.__dict__["_left"]  # as in a trace that was loaded from a file
    rows = {s.row for s in trace.critical_path().segments}
    for rank in range(p.ranks):
        for row in p.rows[rank]:
            row["cpu_end"] -= row["cpu_start"]
            row["cpu_start"] = 0
    at = 0
    for rank in range(p.ranks):
        clock = 0.0
        for row in p.rows[rank]:
            took = row["cpu_end"] * (1.0 if at in rows else 0.5)
            row |= {"cpu_start": clock, "cpu_end": clock + took}
            clock += took
            at += 1
    faster = p.trace().retime(on, "cpu").columns["end"].max()
    assert faster == pytest.approx(trace.columns["end"].max(), rel=1e-9)


@given(programs(), st.floats(0, 3), st.floats(0.5, 100), st.floats(0, 0.2))
def test_stamps_that_are_off_give_a_path_too(
    p: Program, latency: float, bandwidth: float, off: float
) -> None:
    assume(p.ranks > 1)
    exact = p.trace().retime(cluster(latency, bandwidth), "cpu")
    columns = {name: array.copy() for name, array in exact.columns.items()}
    for name in ("start", "end", "done"):
        columns[name][columns["rank"] == 1] += off  # a clock that goes ahead
    for clock in ("measured", "paced"):
        about = type(exact.about)(p.ranks, clock=clock, error=off)
        path = Trace(columns, exact.strings, exact.groups, exact.tags, about).critical_path()
        assert contiguous(path.segments)
        assert path.segments[-1].end == columns["end"].max()


def test_time_that_no_row_covers_is_told_as_such() -> None:
    p = Program(1)
    p.compute(0, 1, "a")
    p.compute(0, 1, "b")
    p.rows[0][0] |= {"start": 0, "end": 2}
    p.rows[0][1] |= {"start": 5, "end": 6}
    path = p.trace().critical_path()
    assert [(s.start, s.end, s.reason) for s in path.segments] == [
        (0, 2, "own work"), (2, 5, "nothing was recorded"), (5, 6, "own work"),
    ]  # fmt: skip


def test_a_real_message_gets_on_its_way_when_both_ends_are_there() -> None:
    rows = Program(2)
    rows.send(0, 1, 8)
    rows.compute(1, 1, "late")
    rows.receive(1, 0, 8)
    trace = rows.trace()  # stamps 0, 1, 2, 3: the receive is posted at 1
    assert [(s.rank, s.end, s.name) for s in trace.critical_path().segments] == [
        (1, 1, "late"), (1, 3, "message"),
    ]  # fmt: skip


def test_an_empty_trace_has_an_empty_path() -> None:
    p = Program(1)
    p.row(0, "memory", "weights")
    path = p.trace().critical_path()
    assert (path.segments, path.length, path.rows, dict(path.by_name)) == ((), 0, (), {})
    assert "empty" in str(path)


def test_a_trace_that_could_not_have_happened_has_none() -> None:
    p = Program(2)
    p.compute(0, 1)
    p.compute(1, 1)
    p.receive(1, 0)
    with pytest.raises(ValueError, match="rank 0 never sends it"):
        p.trace().critical_path()


def test_it_is_shown_as_text_and_as_a_table() -> None:
    path = pipeline("GPipe", 4, 8, 1, 2).retime(cluster(1), "cpu").critical_path()
    assert repr(path) == "CriticalPath(modelled, 28 segments, 4 ranks)"
    assert str(path).startswith("The critical path lasts 39.0 s")
    assert "<caption>Critical path, modelled</caption>" in path._repr_html_()


def test_the_path_is_the_same_wherever_it_is_asked_for() -> None:
    trace, on = pipeline("1F1B", 4, 8, 1, 2), cluster(1, 10)
    assert told(trace.retime(on, "cpu").critical_path()) == told(
        trace.retime(cluster(), "cpu").retime(on, "cpu").critical_path()
    )
