"""The gap: what was predicted beside what happened, part by part, in one sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Pick, Trace
from labkit.trace.gap import Gap, Part, gap
from tests.trace.programs import Program, cluster
from tests.trace.test_engine import programs
from tests.trace.test_whatif import ON, training


def paced(trace: Trace, **scale: Any) -> Trace:
    """What a paced run would have stamped: the trace retimed, under the other word."""
    made = trace.retime(ON, "cpu", **scale)
    about = replace(made.about, clock="paced", note="")
    return Trace(made.columns, made.strings, made.groups, made.tags, about)


def test_a_late_backward_is_told_where_it_is() -> None:
    trace = training()
    found = gap(trace.retime(ON, "cpu"), paced(trace, scale={Pick("backward", rank=1): 1.2}))
    assert found.sentence == (
        "2 steps, on average predicted 9.00 s, paced 9.60 s: 7 % more; "
        "most of it in matmul of rank 1."
    )  # and not in rank 0's wait for it, which is as long
    assert found.steps == ((0, 9, pytest.approx(9.6)), (1, 9, pytest.approx(9.6)))
    assert found.error == pytest.approx(0.6 / 9)
    parts = {(p.step, p.rank, p.name): p for p in found.parts}
    assert parts[1, 1, "matmul"].error == pytest.approx(0.2)
    assert parts[1, 0, "wait"].difference == pytest.approx(0.6)
    assert parts[0, 0, "forward"].difference == 0


def test_one_step_is_told_without_an_average() -> None:
    trace = training(1)
    found = gap(trace.retime(ON, "cpu"), paced(trace, scale={"all_reduce": 1.5}))
    assert found.sentence == (
        "predicted 9.00 s, paced 11.0 s: 22 % more; most of it in wait of rank 0."
    )
    assert str(found).startswith(found.sentence)


def test_less_than_predicted_names_what_was_shorter() -> None:
    trace = training(1)
    found = gap(trace.retime(ON, "cpu"), paced(trace, scale={"optimizer": 0.1, "all_reduce": 1.01}))
    assert found.worst is not None
    assert (found.worst.name, found.worst.difference) == ("optimizer", pytest.approx(-0.9))
    assert "10 % less; most of it in optimizer of rank 0." in found.sentence


def test_a_gap_of_many_small_parts_claims_no_most() -> None:
    trace = training(1)
    found = gap(trace.retime(ON, "cpu"), paced(trace, scale={
        "forward": 1.3, "optimizer": 1.3, "matmul": 1.1, "all_reduce": 1.1,
    }))  # fmt: skip
    assert "; the largest part in" in found.sentence


def test_no_gap_is_told_as_none() -> None:
    trace = training()
    found = trace.retime(ON, "cpu").gap(paced(trace))
    assert found.sentence == "2 steps, on average predicted 9.00 s, paced 9.00 s: as predicted."
    assert (found.error, found.worst) == (0, None)


def test_what_was_predicted_as_nothing_has_no_error_in_percent() -> None:
    trace = training(1)
    found = gap(trace.retime(cluster(0, math.inf), "cpu", scale={Pick(): 0}), paced(trace))
    assert found.error is None
    assert found.sentence == "predicted 0 s, paced 9.00 s."
    assert next(p for p in found.parts if p.name == "forward").error is None
    assert Part(0, 0, "x", 2, 3).error == 0.5


def test_steps_that_only_one_has_are_left_out() -> None:
    three, two = training(3), training(2)
    found = gap(three.retime(ON, "cpu"), paced(two))
    assert [i for i, _, _ in found.steps] == [0, 1]
    assert [i for i, _, _ in gap(three.retime(ON, "cpu"), paced(two), step=1).steps] == [1]
    with pytest.raises(KeyError, match="no step 2"):
        gap(three.retime(ON, "cpu"), paced(two), step=2)


def test_traces_of_other_programs_are_refused(make: Any) -> None:
    row = {"rank": 0, "kind": "compute", "name": "x", "start": 0, "end": 1}
    other = make([row], ranks=1)
    with pytest.raises(ValueError, match="ranks: 2 predicted, 1 happened"):
        gap(training(), other)
    with pytest.raises(ValueError, match="unit: s predicted, F happened"):
        gap(other, make([row], ranks=1, unit="F"))
    with pytest.raises(ValueError, match="no step is in both traces"):
        gap(other, make([], ranks=1))


@given(programs(), st.floats(0, 3), st.floats(0.5, 100))
def test_a_ranks_parts_add_up_to_its_step(p: Program, latency: float, bandwidth: float) -> None:
    trace = p.trace()
    two = [trace.retime(cluster(latency * k, bandwidth), "cpu") for k in (1, 2)]
    found = gap(*two)
    for rank in range(p.ranks):
        mine = [part for part in found.parts if part.rank == rank]
        for trace_, name in zip(two, ("predicted", "happened"), strict=True):
            start, end = trace_.steps[0].spans[rank]
            assert sum(getattr(part, name) for part in mine) == pytest.approx(end - start, abs=1e-9)


def test_tables_hold_every_rank_and_step() -> None:
    trace = training()
    found: Gap = gap(trace.retime(ON, "cpu"), paced(trace, scale={"forward": 2}))
    assert repr(found) == "Gap(modelled, paced, 2 steps, 2 ranks)"
    line = next(line for line in str(found).splitlines() if line.startswith("1     forward"))
    assert " ".join(line.split()) == "1 forward 2,000.00 ms 4,000.00 ms 2,000.00 ms +100.0 %"
    assert "all steps together" in found._repr_html_()
