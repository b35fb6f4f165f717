"""Where the time went: five parts that add up, on hand-made and on random traces."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Step
from labkit.trace.measures import RankTime, rank_times, summarise
from tests.trace.programs import cluster, pipeline


def compute(rank: int, start: float, end: float) -> dict[str, Any]:
    return {"rank": rank, "kind": "compute", "name": "compute", "start": start, "end": end}


def step(rank: int, start: float, end: float, i: int = 0) -> dict[str, Any]:
    span = {"rank": rank, "kind": "span", "name": "step", "tags": {"step": i}}
    return span | {"start": start, "end": end}


def reduce(rank: int, start: float, end: float, seq: int = 0) -> dict[str, Any]:
    row = {"rank": rank, "kind": "collective", "name": "all_reduce", "group": 0, "bytes": 120}
    return row | {"start": start, "end": end, "op": seq, "seq": seq}


def wait(rank: int, start: float, end: float, op: int = 0) -> dict[str, Any]:
    return {"rank": rank, "kind": "wait", "start": start, "end": end, "op": op}


# Rank 0 issues at 1, waits from 2 on; rank 1 issues at 5; both are done at 8.
LATE = [
    compute(0, 0, 1), reduce(0, 1, 2), wait(0, 2, 8), compute(0, 8, 9), step(0, 0, 9),
    compute(1, 0, 5), reduce(1, 5, 6), wait(1, 6, 8), compute(1, 8, 9), step(1, 0, 9),
]  # fmt: skip


def test_waiting_is_skew_until_the_last_rank_has_arrived_and_transfer_after(make: Any) -> None:
    first, second = rank_times(make(LATE))
    assert first == RankTime(0, elapsed=9, busy=2, skew=4, transfer=3, unsplit=0, idle=0)
    assert second == RankTime(1, elapsed=9, busy=6, skew=0, transfer=3, unsplit=0, idle=0)
    assert (first.exposed, second.exposed) == (7, 3)


def test_communication_behind_compute_is_not_exposed(make: Any) -> None:
    rows = [reduce(0, 0, 1), compute(0, 1, 6), wait(0, 6, 7), reduce(1, 0, 1), compute(1, 1, 8)]
    first, second = rank_times(make(rows))
    assert (first.busy, first.exposed) == (5, 2)
    assert (second.busy, second.exposed) == (7, 1)


def test_a_call_that_compute_overlaps_is_exposed_only_where_it_does_not(make: Any) -> None:
    rows = [reduce(0, 0, 10), compute(0, 2, 5), reduce(1, 4, 10)]
    (first, _) = rank_times(make(rows))
    assert (first.busy, first.skew, first.transfer) == (3, 2, 5)


def test_a_moment_that_two_rows_cover_counts_once(make: Any) -> None:
    rows = [
        reduce(0, 0, 0), reduce(0, 0, 0, seq=1), wait(0, 0, 6, op=0), wait(0, 2, 8, op=1),
        reduce(1, 4, 4), reduce(1, 7, 7, seq=1), compute(1, 7, 8),
    ]  # fmt: skip
    (first, _) = rank_times(make(rows))
    # Skew from 0 to 4 for the one and from 2 to 7 for the other, where 2 to 4 counts once.
    assert (first.elapsed, first.skew, first.transfer) == (8, 7, 1)


def test_a_receiver_waits_for_its_sender(make: Any) -> None:
    ends = {"group": 0, "tag": 0, "seq": 0}
    rows = [
        compute(0, 0, 3), {"rank": 0, "kind": "send", "start": 3, "end": 5, "peer": 1} | ends,
        {"rank": 1, "kind": "recv", "start": 0, "end": 5, "peer": 0} | ends,
    ]  # fmt: skip
    first, second = rank_times(make(rows))
    assert (first.skew, first.transfer) == (0, 2)
    assert (second.skew, second.transfer) == (3, 2)


def test_what_the_trace_does_not_tell_is_not_guessed(make: Any) -> None:
    (only,) = rank_times(make([row for row in LATE if row["rank"] == 0]))
    assert only == RankTime(0, elapsed=9, busy=2, skew=0, transfer=0, unsplit=7, idle=0)


def test_only_the_main_thread_counts_and_gaps_are_idle(make: Any) -> None:
    rows = [compute(0, 1, 3), {**reduce(0, 2, 9), "thread": 1}, step(0, 0, 4)]
    (only,) = rank_times(make(rows, ranks=1))
    assert (only.elapsed, only.busy, only.exposed, only.idle) == (4, 2, 0, 2)


def test_steps_add_up_and_what_lies_between_them_is_left_out(make: Any) -> None:
    rows = [
        compute(0, 0, 2), step(0, 0, 2, 0), compute(0, 2, 3), compute(0, 3, 7), step(0, 3, 7, 1),
        compute(1, 1, 3), step(1, 1, 3, 0),
    ]  # fmt: skip
    trace = make(rows)
    first, second = rank_times(trace)
    assert (first.elapsed, first.busy, second.elapsed) == (6, 6, 2)
    assert [row.elapsed for row in rank_times(trace, trace.steps[1:])] == [4, 0]
    assert summarise(trace).steps == ((0, 3), (1, 4))
    assert summarise(trace, step=1).steps == ((1, 4),)
    with pytest.raises(KeyError, match="no step 2"):
        summarise(trace, step=2)


def test_a_wait_may_be_for_an_operation_of_an_earlier_step(make: Any) -> None:
    rows = [
        reduce(0, 0, 1), step(0, 0, 1, 0), wait(0, 1, 6), step(0, 1, 6, 1),
        reduce(1, 4, 5), step(1, 0, 5, 0),
    ]  # fmt: skip
    trace = make(rows)
    (first, _) = rank_times(trace, trace.steps[1:])
    assert (first.skew, first.transfer) == (3, 2)


def test_an_empty_trace_has_an_empty_summary(make: Any) -> None:
    summary = summarise(make([], ranks=4))
    assert (summary.steps, summary.times, summary.traffic, summary.wire) == ((), (), (), None)
    assert "4 left no record" in str(summary)
    assert "<table>" in summary._repr_html_()


NUMBER = st.integers(0, 60)


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["compute", "collective", "wait", "join"]),
            NUMBER, NUMBER, st.integers(-1, 3),
        ),
        max_size=25,
    ),
    windows=st.lists(st.tuples(st.integers(0, 2), NUMBER, NUMBER), min_size=1, max_size=4),
)  # fmt: skip
def test_the_parts_add_up_to_the_step_time_on_every_rank(
    make: Any, rows: list[Any], windows: list[Any]
) -> None:
    made = [
        {"rank": rank, "kind": kind, "start": min(a, b) / 4, "end": max(a, b) / 4, "op": op,
         "seq": op, "group": 0, "done": max(a, b) / 3}
        for rank, kind, a, b, op in sorted(rows)
    ]  # fmt: skip
    steps = [
        Step(i, {rank: (min(a, b) / 4, max(a, b) / 4)}) for i, (rank, a, b) in enumerate(windows)
    ]
    for row in rank_times(make(made, ranks=3), steps):
        parts = (row.busy, row.skew, row.transfer, row.unsplit, row.idle)
        assert min(parts) >= -1e-12
        assert sum(parts) == pytest.approx(row.elapsed)
        assert row.elapsed == sum(s.spans[row.rank][1] - s.spans[row.rank][0]
                                  for s in steps if row.rank in s.spans)  # fmt: skip


def test_busy_is_the_union_of_what_was_computed(make: Any) -> None:
    rows = [compute(0, 0, 4), compute(0, 1, 2), compute(0, 3, 6), compute(0, 8, 9)]
    (only,) = rank_times(make(rows, ranks=1))
    assert (only.busy, only.idle) == (7, 2)


def test_the_repr_holds_nothing_that_another_run_would_change(make: Any) -> None:
    slower = [{**row, "start": row["start"] * 2, "end": row["end"] * 2} for row in LATE]
    assert repr(summarise(make(LATE))) == repr(summarise(make(slower)))
    assert repr(summarise(make(LATE))) == "Summary(ranks=2, measured, steps=1, all_reduce=2)"


class Cells(HTMLParser):
    """The elements of a page, in order, with their attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        tag, attrs, text = self.found[-1]
        self.found[-1] = (tag, attrs, text + data)


def test_the_table_names_its_columns_and_rows_for_a_screen_reader(make: Any) -> None:
    cells = Cells(summarise(make(LATE, clock="modelled", unit="F"))._repr_html_()).found
    captions = [text for tag, _, text in cells if tag == "caption"]
    assert captions == [
        "Step time, modelled", "Time by rank",
        "Bubble, modelled: span − ideal, the busiest rank's compute",
        "Bytes by operation and rank", "On the wire, all operations: not recorded",
    ]  # fmt: skip
    assert {"of the total (÷ span)", "of the ideal (÷ ideal)"} <= {text for _, _, text in cells}
    heads = [attrs["scope"] for tag, attrs, _ in cells if tag == "th"]
    assert set(heads) == {"col", "row"}
    assert ("th", {"scope": "row"}, "all_reduce") in cells
    assert ("td", {}, "4 F") in cells


def test_names_from_a_trace_are_text_in_the_table(make: Any) -> None:
    row = reduce(0, 0, 1) | {"name": "<script>"}
    page = summarise(make([row], ranks=1))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_text_shows_times_in_milliseconds_and_whole_bytes(make: Any) -> None:
    lines = str(summarise(make(LATE))).splitlines()
    assert "0     9,000.00 ms" in lines
    assert "all_reduce  0         1    120 B        120 B" in lines


def test_no_share_of_a_step_is_below_zero(make: Any) -> None:
    # In floating point 0.1 + 0.2 is more than 0.3: what is left over would be less than nothing.
    rows = [step(0, 0, 0.3), compute(0, 0, 0.1), compute(0, 0.1, 0.1 + 0.2), step(1, 0, 0.3)]
    assert [row.idle >= 0 for row in rank_times(make(rows))] == [True, True]
    assert "-0" not in str(summarise(make(rows)))


@pytest.mark.parametrize("clock", ["measured", "paced", "modelled"])
def test_measures_do_not_depend_on_the_clock(make: Any, clock: str) -> None:
    ours = summarise(make(LATE, clock=clock))
    theirs = summarise(make(LATE))
    assert (ours.times, ours.steps, ours.traffic) == (theirs.times, theirs.steps, theirs.traffic)
    assert ours.bubble.steps == theirs.bubble.steps
    assert f"Step time, {clock}" in str(ours)
    assert f"{clock}, steps=1" in repr(ours)


def test_a_retimed_pipeline_waits_as_the_formula_says() -> None:
    p, m, c = 4, 8, 0.5
    times = rank_times(pipeline("GPipe", p, m, 1, 2).retime(cluster(c), "cpu"))
    # The first rank ends last, and stands for all others' turn and for 2(p−1) messages.
    assert times[0].elapsed == (m + p - 1) * 3 + 2 * (p - 1) * c
    for rank, t in enumerate(times):
        assert t.busy == m * 3
        assert t.exposed + t.busy == t.elapsed
        assert t.transfer <= 2 * m * c
        assert (t.idle, t.unsplit) == (0, 0)
        assert t.elapsed == times[0].elapsed - rank * (2 + c)
