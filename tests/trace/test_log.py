"""What ranks write down, and the one trace that comes of it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from labkit.trace import About, Group
from labkit.trace.log import Log, RankRecord, Stamp, merge

MS = 1_000_000


class Clock:
    """A log whose stamps the test sets: wall in ms; CPU runs at half its pace, FLOPs with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> None:
        self.now = 0.0
        monkeypatch.setattr(Log, "stamp", lambda _: self.at(self.now))
        self.log = Log(rank)

    @staticmethod
    def at(ms: float) -> Stamp:
        return (int(ms * MS), int(ms * MS / 2), int(ms * 10))

    def open(self, ms: float, name: str, **tags: Any) -> None:
        self.now = ms
        self.log.open(name, tags)

    def close(self, ms: float, name: str = "") -> None:
        self.now = ms
        self.log.close(name)

    def event(self, start: float, end: float, kind: str, name: str, **fields: Any) -> None:
        self.log.event(kind, name, self.at(start), self.at(end), **fields)

    def finish(self, ms: float) -> RankRecord:
        self.now = ms
        return self.log.finish()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def told(*records: RankRecord, ranks: int = 1) -> list[tuple[Any, ...]]:
    """(rank, kind, name, start ms, end ms) of every row."""
    return [
        (e.rank, e.kind, e.name, round(e.start * 1e3, 6), round(e.end * 1e3, 6))
        for e in merge(records, About(ranks)).events
    ]


def test_what_lies_between_events_is_compute_of_the_innermost_span(clock: Clock) -> None:
    clock.open(1, "step", step=0)
    clock.open(2, "forward")
    clock.event(3, 4, "collective", "all_reduce", op=0)
    clock.close(6, "forward")
    clock.close(7, "step")
    assert told(clock.finish(9)) == [
        (0, "compute", "compute", 0, 1),
        (0, "compute", "step", 1, 2),
        (0, "compute", "forward", 2, 3),
        (0, "collective", "all_reduce", 3, 4),
        (0, "compute", "forward", 4, 6),
        (0, "span", "forward", 2, 6),
        (0, "compute", "step", 6, 7),
        (0, "span", "step", 1, 7),
        (0, "compute", "compute", 7, 9),
    ]


def test_every_row_carries_three_stamps(clock: Clock) -> None:
    clock.event(4, 6, "wait", "all_reduce", op=0)
    compute, wait = merge([clock.finish(6)], About(1)).events
    assert (compute.cpu_start, compute.cpu_end) == (0.0, pytest.approx(0.002))
    assert (compute.flops_start, compute.flops_end) == (0, 40)
    assert (wait.cpu, wait.flops) == (pytest.approx(0.001), 20)


def test_compute_carries_the_tags_of_its_span(clock: Clock) -> None:
    clock.open(0, "forward", microbatch=3)
    clock.close(2, "forward")
    compute, span = merge([clock.finish(2)], About(1)).events
    assert compute.tags == span.tags == {"microbatch": 3}


def test_tags_become_numbers_and_words_at_once(clock: Clock) -> None:
    changing = [1]
    tags = {"step": np.int64(3), "x": np.float32(0.5), "b": True, "n": None, "o": changing}
    clock.open(0, "step", **tags)
    changing.append(2)
    clock.close(1, "step")
    trace = merge([clock.finish(1)], About(1))
    assert dict(trace.tags[0]) == {"step": 3, "x": 0.5, "b": True, "n": None, "o": "[1]"}
    assert [type(v) for v in trace.tags[0].values()] == [int, float, bool, type(None), str]
    assert [s.index for s in trace.steps] == [3]


def test_a_completion_that_is_told_late_is_clipped_to_the_end_of_the_wait(clock: Clock) -> None:
    for op in range(4):
        clock.event(op, op + 0.5, "collective", "all_reduce", op=op)
    clock.event(4, 6, "wait", "all_reduce", op=0)
    clock.event(6, 7, "wait", "all_reduce", op=1)
    clock.event(8, 9, "wait", "all_reduce", op=1)
    clock.event(9, 11, "join", "join", op=3, ops=(2, 3))
    clock.log.done.update({0: 8 * MS, 2: 10 * MS, 3: 14 * MS})
    done = [e.done for e in merge([clock.finish(15)], About(1)).events if e.kind == "collective"]
    # Told at 8 and clipped; not told, so the first wait tells; told in time; clipped by the join.
    assert done == pytest.approx([0.006, 0.007, 0.010, 0.011])


def test_an_operation_that_nobody_saw_complete_has_no_completion(clock: Clock) -> None:
    clock.event(0, 1, "collective", "all_reduce", op=0)
    assert merge([clock.finish(2)], About(1)).events[0].done is None


def test_a_completion_is_never_before_the_issue(clock: Clock) -> None:
    clock.event(3, 4, "send", "send", op=0)
    clock.log.done[0] = 1 * MS
    assert merge([clock.finish(5)], About(1)).events[1].done == pytest.approx(0.003)


def test_spans_that_an_error_left_open_end_with_the_log(clock: Clock) -> None:
    clock.open(1, "step", step=0)
    clock.open(2, "forward")
    assert told(clock.finish(5))[-3:] == [
        (0, "compute", "forward", 2, 5),
        (0, "span", "forward", 2, 5),
        (0, "span", "step", 1, 5),
    ]


def test_marks_do_not_interrupt_compute(clock: Clock) -> None:
    clock.now = 2
    clock.log.mark("memory", "weights", 64)
    assert told(clock.finish(5)) == [
        (0, "memory", "weights", 2, 2),
        (0, "compute", "compute", 0, 5),
    ]


def test_an_event_inside_another_does_not_turn_the_clock_back(clock: Clock) -> None:
    clock.event(1, 6, "join", "join", op=-1)
    clock.event(2, 3, "wait", "all_reduce", op=0)
    rows = [row for row in told(clock.finish(8)) if row[1] == "compute"]
    assert rows == [(0, "compute", "compute", 0, 1), (0, "compute", "compute", 6, 8)]


def test_other_threads_have_rows_and_spans_of_their_own(clock: Clock) -> None:
    both_inside = threading.Barrier(2, timeout=10)

    def work(name: str) -> None:
        clock.log.open(name, {})
        both_inside.wait()
        clock.log.event("collective", name, clock.at(2), clock.at(3), op=0)
        clock.log.close(name)

    clock.open(1, "main")
    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.close(4, "main")
    events = merge([clock.finish(4)], About(1)).events
    threads_of = {e.name: {f.thread for f in events if f.name == e.name} for e in events}
    assert threads_of["main"] == {0}
    assert {*threads_of["one"], *threads_of["two"]} == {1, 2}
    assert len(threads_of["one"]) == len(threads_of["two"]) == 1
    # The main thread computed all the time, whatever the others did.
    computing = [time for e in events if e.kind == "compute" for time in (e.start, e.end)]
    assert computing == pytest.approx([0.0, 0.001, 0.001, 0.004])


def test_both_ends_of_a_step_are_announced(clock: Clock) -> None:
    seen: list[float] = []
    clock.log.at_step = lambda: seen.append(clock.now)
    clock.open(1, "step", step=0)
    clock.open(2, "forward")
    clock.close(3, "forward")
    clock.close(4, "step")
    assert seen == [1, 4]


def test_ranks_share_one_clock_and_one_table_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    records = []
    for rank, first in ((2, 10), (0, 4)):
        clock = Clock(monkeypatch, rank)
        clock.log.first = clock.at(first)
        clock.log.group(Group("own", "", (rank,)))
        world = clock.log.group(Group("0", "default", (0, 1, 2)))
        assert clock.log.group(Group("0", "default", (0, 1, 2))) == world == 1
        clock.event(first + 1, first + 2, "collective", "barrier", op=0, group=world, seq=0)
        records.append(clock.finish(first + 3))
    trace = merge(records, About(3))
    barriers = [e for e in trace.events if e.kind == "collective"]
    # Rank 1 died and left nothing; rank 0 comes first, and its first stamp is the zero.
    assert [e.rank for e in barriers] == [0, 2]
    assert [e.start for e in barriers] == pytest.approx([0.001, 0.007])
    assert barriers[0].group == barriers[1].group == Group("0", "default", (0, 1, 2))
    assert trace.groups == (Group("0", "default", (0, 1, 2)),)


def test_no_log_at_all_makes_an_empty_trace() -> None:
    assert len(merge([], About(4))) == 0


def test_two_logs_of_one_rank_are_refused(clock: Clock) -> None:
    record = clock.finish(1)
    with pytest.raises(ValueError, match=r"two logs of one rank: \[0, 0\]"):
        merge([record, record], About(2))
    with pytest.raises(ValueError, match="'rank' holds 3"):
        merge([RankRecord(3, record.first, record.last, (), {}, ())], About(2))


def test_what_came_before_the_beginning_is_forgotten(clock: Clock) -> None:
    clock.event(0, 1, "collective", "barrier", op=0)
    clock.now = 5
    clock.log.begin()
    assert told(clock.finish(7)) == [(0, "compute", "compute", 0, 2)]


def test_stamps_are_read_from_the_clocks_of_this_process() -> None:
    log = Log(0)
    first = log.stamp()
    log.flops += 5
    second = log.stamp()
    assert second[0] >= first[0]
    assert second[1] >= first[1]
    assert second[2] - first[2] == 5
