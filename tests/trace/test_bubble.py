"""The bubble, in both conventions, on schedules whose bubble is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Trace
from labkit.trace.measures import summarise
from tests.trace.programs import Program, cluster, pipeline


def modelled(order: str, p: int, m: int, forward: float = 1.0, backward: float = 2.0) -> Trace:
    return pipeline(order, p, m, forward, backward).retime(cluster(), "cpu")


@pytest.mark.parametrize("order", ["GPipe", "1F1B"])
def test_four_stages_and_eight_microbatches(order: str) -> None:
    found = modelled(order, 4, 8).bubble()
    assert (found.span, found.ideal) == (33, 24)
    assert found.of_total == 3 / 11
    assert found.of_ideal == 3 / 8
    assert found.busy == dict.fromkeys(range(4), 24)
    assert found.idle == dict.fromkeys(range(4), 9)


@given(st.integers(1, 6), st.integers(1, 12), st.floats(0.01, 9), st.floats(0.01, 9))
def test_equal_stages_as_published(p: int, m: int, forward: float, backward: float) -> None:
    found = modelled("GPipe", p, m, forward, backward).bubble()
    assert found.of_total == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
    assert found.of_ideal == pytest.approx((p - 1) / m, abs=1e-12)


@pytest.mark.parametrize(("m", "of_total"), [(24, 0.2431), (32, 0.1985), (64, 0.1240)])
def test_1f1b_as_zero_bubble_counts_it(m: int, of_total: float) -> None:
    f, i, w, transfer = {
        24: (18.522, 18.086, 9.337, 0.601), 32: (18.513, 18.086, 9.331, 0.626),
        64: (18.546, 18.097, 9.321, 0.762),
    }[m]  # fmt: skip
    found = pipeline("1F1B", 8, m, f, i + w).retime(cluster(transfer), "cpu").bubble()
    assert found.of_total == pytest.approx(of_total, abs=1e-4)


def test_the_span_is_a_ranks_own_and_the_ideal_is_the_busiest_ranks() -> None:
    p = Program(2)
    p.compute(0, 4)
    p.send(0, 1)
    p.receive(1, 0)  # until 4
    p.compute(1, 3)
    found = p.trace().retime(cluster(), "cpu").bubble()
    # The makespan is 7, but no rank's own span is longer than 4: nothing is lost in between.
    assert (found.span, found.ideal, found.of_total) == (4, 4, 0)
    assert found.idle == {0: 0, 1: 1}


def test_work_that_takes_no_time_begins_no_span() -> None:
    p = Program(2)
    p.compute(0, 4)
    p.send(0, 1)
    p.compute(1, 0)
    p.receive(1, 0)
    p.compute(1, 3)
    assert p.trace().retime(cluster(), "cpu").bubble().span == 4


def test_steps_count_by_themselves_and_what_lies_between_does_not() -> None:
    p = Program(2)
    for step, late in enumerate((1.0, 3.0)):
        for rank in range(2):
            p.compute(rank, 1 + late * rank)
            p.reduce(rank)
            p.compute(rank, 1)
            p.span(rank, "step", 4, step=step)
            p.compute(rank, 50)
    trace = p.trace().retime(cluster(), "cpu")
    both = trace.bubble()
    assert {i: (s.span, s.ideal) for i, s in both.steps.items()} == {0: (3, 3), 1: (5, 5)}
    assert both.idle == {0: 1 + 3, 1: 0}
    assert (trace.bubble(step=1).span, trace.bubble(step=1).steps[1].ideal) == (5, 5)
    with pytest.raises(KeyError, match="no step 2"):
        trace.bubble(step=2)


def compute(start: float, end: float, rank: int = 0, **more: Any) -> dict[str, Any]:
    row = {"rank": rank, "kind": "compute", "name": "x", "start": start, "end": end}
    return row | more


@pytest.mark.parametrize("clock", ["measured", "paced", "modelled"])
def test_a_moment_counts_once_and_other_threads_do_not(make: Any, clock: str) -> None:
    rows = [compute(0, 4), compute(1, 2), compute(3, 6), compute(9, 30, thread=1), compute(8, 9)]
    found = make(rows, ranks=1, clock=clock).bubble()
    assert (found.span, found.ideal, found.idle) == (9, 7, {0: 2})
    assert f"Bubble, {clock}" in str(found)


def test_a_trace_without_compute_has_no_bubble(make: Any) -> None:
    for rows in ([], [compute(1, 1)]):
        found = make(rows, ranks=1).bubble()
        assert (found.span, found.of_total, found.of_ideal) == (0, 0, 0)


def test_every_figure_says_which_convention_it_is_of() -> None:
    trace = modelled("GPipe", 4, 8)
    for shown in (str(trace.bubble()), str(summarise(trace)), trace.summary()._repr_html_()):
        assert "of the total (÷ span)" in shown
        assert "of the ideal (÷ ideal)" in shown
        assert shown.index("27.3%") < shown.index("37.5%")
