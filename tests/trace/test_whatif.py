"""What if: what is picked takes another multiple of its time, and nothing else does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit.trace.graph as graphs
from labkit.trace import Pick, Trace
from tests.trace.programs import Program, cluster, pipeline
from tests.trace.test_engine import programs, same


def training(steps: int = 2) -> Trace:
    """Forward, backward with an all-reduce, optimizer; backward takes 2 and 3 s on ranks 0, 1."""
    p = Program(2)
    for step in range(steps):
        for rank in range(2):
            p.compute(rank, 1, "forward")
            p.span(rank, "forward", 1, microbatch=step % 2)
            p.compute(rank, 2 + rank, "matmul")
            p.reduce(rank, 40)
            p.span(rank, "backward", 3)
            p.compute(rank, 1, "optimizer")
            p.span(rank, "step", 7, step=step)
    return p.trace()


ON = cluster(0, 10)  # an all-reduce takes 4 s, a step 1 + 3 + 4 + 1


@pytest.mark.parametrize(
    ("scale", "steps"),
    [
        ({"forward": 0.5}, [8.5, 8.5]),
        ({"forward": 0}, [8, 8]),
        ({Pick("forward", step=1): 2}, [9, 10]),
        ({Pick("forward", microbatch=1): 2}, [9, 10]),
        ({Pick("forward", rank=0): 2}, [9, 9]),  # rank 0 has a second to spare
        ({Pick("backward", rank=1): 0.5}, [8, 8]),  # its 3 s take 1.5, rank 0 still takes 2
        ({Pick("backward", rank=0): 0.5}, [9, 9]),
        ({"matmul": 2}, [12, 12]),
        ({"all_reduce": 0.5}, [7, 7]),
        ({Pick("all_reduce", step=0): 0.5}, [7, 9]),
        ({Pick("all_reduce", rank=1): 0.5}, [7, 7]),
        ({Pick(rank=1): 2}, [14, 15]),  # rank 0 begins the second step a second earlier
        ({Pick(step=0): 2}, [14, 9]),
        ({Pick(microbatch=1): 0}, [9, 8]),
        ({"forward": 0.5, "all_reduce": 0.5}, [6.5, 6.5]),
        ({"forward": 0.5, Pick("forward", step=0): 0.5}, [8.25, 8.5]),  # they multiply
    ],
)
def test_a_step_with_something_scaled(scale: Any, steps: list[float]) -> None:
    found = training().what_if(ON, scale, "cpu")
    assert [after for _, after in found.steps.values()] == pytest.approx(steps)
    assert [before for before, _ in found.steps.values()] == [9, 9]
    assert found.after == pytest.approx(sum(steps) / 2)


def test_the_answer_is_told_and_its_trace_says_what_it_is() -> None:
    found = training().what_if(ON, {Pick("backward", rank=1): 0.5, "all_reduce": 2}, "cpu")
    assert str(found) == (
        "If backward of rank 1 takes 0.5 × as long and all_reduce takes 2 × as long: "
        "a step 9.00 s → 12.0 s (+33.3 %)."
    )
    about = found.trace.about
    assert about.clock == "modelled"
    assert "; what if backward of rank 1 takes 0.5 × as long; what if all_reduce" in about.note
    assert str(Pick("forward", rank=2, step=3, microbatch=1)) == (
        "forward microbatch=1 of rank 2 in step 3"
    )
    assert len({Pick("a", x=1, y=2), Pick("a", y=2, x=1), Pick("a", x=1)}) == 2


def test_messages_are_picked_by_their_ends() -> None:
    p = Program(2)
    for rank in (0, 1):
        p.send(rank, 1 - rank, 30)
        p.receive(rank, 1 - rank, 30)
    trace, on = p.trace(), cluster(1, 10)

    def arrivals(pick: Pick | str) -> list[float | None]:
        events = trace.retime(on, "cpu", scale={pick: 0.5}).events
        return [e.done for e in events if e.kind == "recv"]

    assert arrivals("message") == [2, 2]
    assert arrivals(Pick("message", rank=0)) == [4, 2]
    assert arrivals(Pick("recv", rank=0)) == [2, 4]


def test_the_trace_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training()
    compiled: list[Trace] = []
    real = graphs.compile_graph
    monkeypatch.setattr(graphs, "compile_graph", lambda t: compiled.append(t) or real(t))
    found = trace.what_if(ON, {"forward": 0.5}, "cpu")
    found.trace.what_if(ON, {"forward": 2}, "cpu")
    trace.sensitivity(ON, "cpu")
    assert compiled == [trace]


@given(programs(), st.floats(0, 3), st.floats(0.5, 100), st.floats(0, 4))
def test_a_factor_of_one_changes_no_bit_and_a_larger_one_nothing_to_the_better(
    p: Program, latency: float, bandwidth: float, more: float
) -> None:
    trace, on = p.trace(), cluster(latency, bandwidth)
    plain = trace.retime(on, "cpu")
    assert same(plain, trace.retime(on, "cpu", scale={"compute": 1}))
    slower = trace.retime(on, "cpu", scale={Pick(rank=0): 1 + more})
    assert (slower.columns["end"] >= plain.columns["end"]).all()


@given(programs(), st.floats(0, 3), st.floats(0.5, 100), st.floats(0.1, 4))
def test_everything_scaled_scales_everything(
    p: Program, latency: float, bandwidth: float, factor: float
) -> None:
    trace = p.trace()
    names = {trace.strings[i] for i in np.unique(trace.columns["name"]) if i >= 0}
    scale = dict.fromkeys(names & {"compute", "all_reduce"}, factor)
    if "send" in names:
        scale["message"] = factor
    on = cluster(latency, bandwidth)
    ends = [trace.retime(on, "cpu", scale=s).columns["end"] for s in (None, scale)]
    assert ends[1] == pytest.approx(factor * ends[0], rel=1e-9)


@pytest.mark.parametrize(
    ("scale", "error", "words"),
    [
        ({"bakward": 0.5}, ValueError, r"nothing in this trace is bakward; there are all_reduce, "
                                       r"backward, forward, matmul, optimizer"),
        ({Pick("forward", rank=5): 1}, ValueError, "nothing in this trace is forward of rank 5"),
        ({Pick("forward", microbatch=7): 1}, ValueError, "nothing .* is forward microbatch=7"),
        ({Pick("forward", step=9): 1}, KeyError, "no step 9"),
        ({"message": 1}, ValueError, "nothing in this trace is message"),
        ({"forward": -1}, ValueError, "forward: factor -1: give a number, 0 or more"),
        ({"forward": math.nan}, ValueError, "factor nan"),
        ({"forward": math.inf}, ValueError, "factor inf"),
        ({"forward": "half"}, ValueError, "factor 'half'"),
        ({"forward": True}, ValueError, "factor True"),
        ({7: 0.5}, TypeError, "7: give a Pick or the name"),
        ({}, ValueError, r"scale is empty"),
    ],
)  # fmt: skip
def test_questions_that_mean_nothing(scale: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        training().what_if(ON, scale, "cpu")


def test_a_name_is_text() -> None:
    with pytest.raises(TypeError, match="name=7"):
        Pick(7)  # type: ignore[arg-type]


def test_sensitivity_ranks_what_a_step_gains() -> None:
    found = training().sensitivity(ON, "cpu")
    assert found.before == 9
    assert dict(found.after) == pytest.approx({
        "all_reduce": 7, "bytes over bandwidth": 7, "backward": 7.5, "matmul": 7.5,
        "forward": 8.5, "optimizer": 8.5, "latency of the links": 9,
    })  # fmt: skip
    assert list(found.after.values()) == sorted(found.after.values())
    assert "all_reduce            7,000.00 ms  2,000.00 ms  22.2%" in str(found)
    assert "<caption>Time of a step, modelled" in found._repr_html_()
    with pytest.raises(ValueError, match="factor=0"):
        training().sensitivity(ON, "cpu", 0)


def test_in_1f1b_a_later_stage_costs_more_when_it_is_slow() -> None:
    trace = pipeline("1F1B", 4, 8, 1, 2)
    gains = [trace.what_if(cluster(), {Pick(rank=r): 2}, "cpu").after - 33 for r in range(4)]
    assert gains == sorted(gains)  # the last stage works without a pause: it holds all others
    assert "message" in trace.sensitivity(cluster(1), "cpu").after
