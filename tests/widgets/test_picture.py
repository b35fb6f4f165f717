from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.trace import CLUSTERS, Group, Trace
from labkit.widgets.palette import STANDING, STYLES
from labkit.widgets.picture import (
    COMMUNICATION,
    COMPUTE,
    MOST_AT_ONCE,
    SPANS,
    Picture,
    build,
)
from labkit.widgets.sketch import sketch
from tests.widgets.traces import data_parallel, pipeline, trace_of

PAIR = Group("0", "default_pg", (0, 1))


def bars(picture: Picture, rank: int, lane: int) -> list[tuple[str, float, float]]:
    """(kind of work, start, end) of the bars in a lane."""
    b = picture.bars
    mine = np.flatnonzero((b["rank"] == rank) & (b["lane"] == lane))
    return [(STYLES[b["style"][i]].key, b["start"][i], b["end"][i]) for i in mine]


def collective(rank: int, start: float, done: float, **more: Any) -> dict[str, Any]:
    row = {"rank": rank, "kind": "collective", "name": "all_reduce", "start": start, "end": start}
    return row | {"done": done, "group": PAIR} | more


def compute(name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"rank": 0, "kind": "compute", "name": name, "start": start, "end": end} | more


def test_compute_waits_and_joins_share_the_compute_lane() -> None:
    rows = [
        compute("forward", 0, 1),
        {"rank": 0, "kind": "wait", "name": "all_reduce", "start": 1, "end": 2},
        {"rank": 0, "kind": "join", "name": "backward", "start": 2, "end": 3},
    ]
    picture = build(trace_of(rows))
    assert bars(picture, 0, COMPUTE) == [
        ("forward", 0, 1), ("unsplit", 1, 2), ("unsplit", 2, 3),
    ]  # fmt: skip
    assert {("wait", ""), ("join", "")} <= set(picture.labels)


def test_a_wait_is_skew_until_the_last_rank_is_there_and_then_transfer() -> None:
    wait = {"kind": "wait", "name": "all_reduce", "op": 0}
    rows = [
        collective(0, 0, 8, seq=0, op=0),
        collective(1, 5, 8, seq=0, op=0),
        wait | {"rank": 0, "start": 1, "end": 8},
        wait | {"rank": 1, "start": 6, "end": 8},
    ]
    picture = build(trace_of(rows))
    assert bars(picture, 0, COMPUTE) == [("skew", 1, 5), ("transfer", 5, 8)]
    assert bars(picture, 1, COMPUTE) == [("transfer", 6, 8)]  # it came last
    assert {("wait: skew", "skew"), ("wait: transfer", "transfer")} <= set(picture.labels)


def test_a_blocking_call_is_split_in_the_same_way() -> None:
    rows = [collective(0, 0, 9, end=9, seq=0, op=0), collective(1, 9, 9, end=9, seq=0, op=0)]
    picture = build(trace_of(rows))
    assert bars(picture, 0, COMPUTE) == [("skew", 0, 9)]  # no transfer was left
    assert ("in all_reduce: skew", "skew") in picture.labels


def test_a_wait_of_no_length_is_one_bar() -> None:
    wait = {"kind": "wait", "name": "all_reduce", "op": 0, "start": 3, "end": 3}
    rows = [collective(rank, 0, 3, seq=0, op=0) for rank in (0, 1)]
    picture = build(trace_of([*rows, *(wait | {"rank": rank} for rank in (0, 1))]))
    assert bars(picture, 0, COMPUTE) == [("transfer", 3, 3)]


def test_a_retiming_is_laid_out_from_the_sketch_of_its_trace() -> None:
    trace = data_parallel()
    modelled = trace.retime(CLUSTERS["H100"], "cpu")
    once, again = build(modelled, sketch(trace)), build(modelled)
    for name in once.bars:
        assert once.bars[name].tolist() == again.bars[name].tolist()


def test_an_operation_lasts_until_it_is_done_not_until_its_call_returns() -> None:
    picture = build(trace_of([collective(0, 1, 5, seq=0)]))
    assert bars(picture, 0, COMMUNICATION) == [("collective", 1, 5)]
    assert bars(picture, 0, COMPUTE) == []


def test_an_operation_whose_end_was_never_seen_ends_with_its_call() -> None:
    picture = build(trace_of([collective(0, 1, math.nan, seq=0, end=3)]))
    assert bars(picture, 0, COMMUNICATION) == [("collective", 1, 3)]


def test_a_rank_stands_in_a_call_until_it_returns() -> None:
    rows = [collective(0, 1, 5, end=4), collective(0, 6, 9), collective(0, 6, 9, end=7, thread=1)]
    picture = build(trace_of(rows))
    assert bars(picture, 0, COMPUTE) == [("unsplit", 1, 4)]
    assert ("in all_reduce", "") in picture.labels


def test_operations_at_once_make_a_staircase() -> None:
    rows = [collective(0, t, 10 + t) for t in (1, 2, 3)] + [collective(0, 20, 21)]
    picture = build(trace_of(rows))
    found = [len(bars(picture, 0, COMMUNICATION + n)) for n in range(4)]
    assert found == [2, 1, 1, 0]  # the last starts again at the top


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=MOST_AT_ONCE)
)
def test_bars_of_a_lane_never_overlap_while_lanes_suffice(drawn: list[tuple[int, int]]) -> None:
    rows = [collective(0, start, start + lasts) for start, lasts in drawn]
    picture = build(trace_of(rows))
    assert sum(len(bars(picture, 0, COMMUNICATION + n)) for n in range(MOST_AT_ONCE)) == len(rows)
    for number in range(MOST_AT_ONCE):
        lane = bars(picture, 0, COMMUNICATION + number)
        assert all(a[2] <= b[1] for a, b in pairwise(lane))


def test_more_at_once_than_lanes_share_the_last() -> None:
    picture = build(trace_of([collective(0, 0, 9) for _ in range(MOST_AT_ONCE + 3)]))
    assert len(bars(picture, 0, COMMUNICATION + MOST_AT_ONCE - 1)) == 4
    assert picture.lanes[-1].number == COMMUNICATION + MOST_AT_ONCE - 1
    assert picture.crowded == 3


def test_reach_is_the_latest_end_so_far() -> None:
    rows = [collective(0, t, 50 - t) for t in range(MOST_AT_ONCE + 5)]
    picture = build(trace_of(rows))
    for lane in picture.lanes:
        ends = picture.bars["end"][lane.first : lane.stop]
        reach = picture.bars["reach"][lane.first : lane.stop]
        assert reach.tolist() == np.maximum.accumulate(ends).tolist()


def test_lanes_cover_all_bars_in_order_of_start() -> None:
    picture = build(data_parallel())
    assert [lane.first for lane in picture.lanes[1:]] == [lane.stop for lane in picture.lanes[:-1]]
    assert picture.lanes[-1].stop == len(picture.bars["row"])
    for lane in picture.lanes:
        assert (np.diff(picture.bars["start"][lane.first : lane.stop]) >= 0).all()


def test_the_strip_holds_the_outermost_spans_below_the_step() -> None:
    span = {"rank": 0, "kind": "span"}
    rows = [
        span | {"name": "step", "start": 0, "end": 9, "tags": {"step": 0}},
        span | {"name": "backward", "start": 1, "end": 5},
        span | {"name": "layer", "start": 2, "end": 3},
        span | {"name": "layer", "start": 6, "end": 7},
    ]
    assert bars(build(trace_of(rows)), 0, SPANS) == [("backward", 1, 5), ("other compute", 6, 7)]


def test_compute_of_an_unknown_name_takes_the_colour_of_the_span_around_it() -> None:
    rows = [
        {"rank": 0, "kind": "span", "name": "forward", "start": 0, "end": 2},
        compute("attention", 0, 2),
        compute("attention", 2, 3),
    ]
    assert [b[0] for b in bars(build(trace_of(rows)), 0, COMPUTE)] == ["forward", "other compute"]


def test_arrows_lead_from_a_send_to_its_receive() -> None:
    shared = {"group": PAIR, "tag": 0, "bytes": 8}
    send = {"rank": 0, "kind": "send", "name": "send", "peer": 1} | shared
    recv = {"rank": 1, "kind": "recv", "name": "recv", "peer": 0} | shared
    rows = [
        send | {"start": 0, "end": 0, "done": 1, "seq": 0},
        send | {"start": 2, "end": 2, "done": 3, "seq": 1},
        recv | {"start": 5, "end": 5, "done": 6, "seq": 1},
        recv | {"start": 4, "end": 4, "done": 5, "seq": 0},
        recv | {"start": 7, "end": 7, "done": 8, "seq": 2},  # its send was not recorded
    ]
    picture = build(trace_of(rows))
    start = picture.bars["start"]
    assert [(start[a], start[b]) for a, b in picture.arrows] == [(0, 4), (2, 5)]


@pytest.mark.parametrize("field", ["tag", "seq", "group"])
def test_a_message_is_matched_by_group_tag_and_number(field: str) -> None:
    shared = {"group": PAIR, "tag": 0, "seq": 0, "start": 0, "end": 0, "done": 1}
    other = Group("1", "other", (0, 1)) if field == "group" else 1
    rows = [
        {"rank": 0, "kind": "send", "name": "send", "peer": 1} | shared,
        {"rank": 1, "kind": "recv", "name": "recv", "peer": 0} | shared | {field: other},
    ]
    assert len(build(trace_of(rows)).arrows) == 0


def test_a_collective_links_its_ranks_and_their_waits() -> None:
    wait = {"kind": "wait", "name": "all_reduce", "start": 1, "end": 2}
    rows = [
        *(collective(rank, 0, 2, seq=7, op=3) for rank in (0, 1)),
        *(collective(rank, 3, 4, seq=8, op=4) for rank in (0, 1)),
        *(wait | {"rank": rank, "op": 3} for rank in (0, 1)),
        wait | {"rank": 0, "op": 99, "start": 2, "end": 3},
    ]
    picture = build(trace_of(rows))
    by_link: dict[int, set[tuple[int, float]]] = {}
    for rank, start, link in zip(
        *(picture.bars[name].tolist() for name in ("rank", "start", "link")), strict=True
    ):
        by_link.setdefault(link, set()).add((rank, start))
    assert by_link.pop(-1) == {(0, 2.0)}  # nothing is known of the operation it waits for
    assert sorted(map(sorted, by_link.values())) == [
        [(0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0)],
        [(0, 3.0), (1, 3.0)],
    ]


def test_marks_of_memory_and_wire_are_not_drawn() -> None:
    rows = [
        {"rank": 0, "kind": "memory", "name": "weights", "start": 0, "end": 0, "bytes": 9},
        {"rank": 0, "kind": "wire", "name": "sent", "start": 1, "end": 1, "bytes": 9},
    ]
    assert len(build(trace_of(rows)).bars["row"]) == 0


def test_nothing_recorded_makes_an_empty_picture() -> None:
    picture = build(trace_of([], ranks=2))
    assert picture.lanes == ()
    assert picture.extent == (0, 1)


def test_labels_say_bytes_and_micro_batches() -> None:
    picture = build(pipeline(microbatches=2))
    assert {("forward 1", "F1"), ("I0", "I0"), ("send 4.1 kB", "S"), ("wait", "")} <= set(
        picture.labels
    )


@pytest.mark.parametrize("trace", [data_parallel(), pipeline()], ids=["data parallel", "pipeline"])
def test_the_compute_lane_adds_up_to_what_is_measured_as_busy_and_exposed(trace: Trace) -> None:
    picture = build(trace)
    still = [i for i, style in enumerate(STYLES) if style.key in STANDING]
    for measured in trace.summary().times:
        mine = (picture.bars["rank"] == measured.rank) & (picture.bars["lane"] == COMPUTE)
        lasts = picture.bars["end"] - picture.bars["start"]
        exposed = np.isin(picture.bars["style"], still)
        assert lasts[mine & ~exposed].sum() == pytest.approx(measured.busy)
        assert lasts[mine & exposed].sum() == pytest.approx(measured.exposed)
