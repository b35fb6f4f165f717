"""The three sources of durations: CPU time, FLOPs, and what spans say."""

from __future__ import annotations

import pytest

from labkit.trace import CLUSTERS, Cluster, Device, Link, Trace
from tests.trace.programs import Program, cluster


def took(trace: Trace, compute: str = "set", **options: float | str) -> list[float]:
    """Seconds of each compute row."""
    retimed = trace.retime(options.pop("on", cluster()), compute, **options)  # type: ignore[arg-type]
    return [e.duration for e in retimed.events if e.kind == "compute"]


def test_flops_at_a_share_of_the_peak() -> None:
    p = Program(1)
    p.compute(0, 2)
    p.compute(0, 6)
    half = Cluster(Device("half", {"float32": 4e12}, {"float32": 2e12}), Link(0, 1))
    assert took(p.trace(), "flops", on=half) == [1, 3]
    assert took(p.trace(), "flops", on=half, efficiency=1.0) == [0.5, 1.5]
    assert took(p.trace(), "cpu", on=half) == [2, 6]


def test_what_counts_no_flops_takes_no_time_or_a_stated_one() -> None:
    p = Program(1)
    p.compute(0, 2)
    p.flops[0] -= 2 * 10**12
    p.rows[0][-1] |= {"flops_end": 0}
    p.compute(0, 6)
    assert took(p.trace(), "flops") == [0, 6]
    assert took(p.trace(), "flops", without_flops=0.25) == [0.5, 6]
    plain, scaled = (
        p.trace().retime(cluster(), without_flops=factor).about.note for factor in (0.0, 0.25)
    )
    assert "FLOPs at 100% of the float32 peak, and what counts none takes no time" in plain
    assert "what counts none takes 0.25 × its CPU time" in scaled


def test_a_row_inside_another_is_not_counted_twice() -> None:
    p = Program(1)
    p.compute(0, 1)
    p.compute(0, 2)  # recorded from the start on, with the first row inside it
    p.rows[0][1] |= {"start": 0, "cpu_start": 0.0, "flops_start": 0}
    assert took(p.trace(), "cpu") == took(p.trace(), "flops") == [1, 2]


def test_a_span_says_how_long_its_compute_lasts() -> None:
    p = Program(1)
    p.compute(0, 0, "load")
    p.compute(0, 5, "forward")
    p.span(0, "forward", 1, seconds=0.02)
    p.compute(0, 5, "backward")
    p.span(0, "backward", 1, seconds=0.04)
    p.span(0, "step", 5, step=0)
    assert took(p.trace()) == pytest.approx([0, 0.02, 0.04], rel=1e-12)


def test_outside_such_spans_flops_count_at_the_rate_of_the_device() -> None:
    p = Program(2)
    p.compute(0, 5, "load")
    p.compute(0, 7, "forward")
    p.span(0, "forward", 1, seconds=0.25)
    p.compute(1, 3)
    assert took(p.trace()) == [5, 0.25, 3]
    half = Cluster(Device("half", {"float32": 4e12}, {"float32": 2e12}), Link(0, 1))
    assert took(p.trace(), on=half) == [2.5, 0.25, 1.5]
    assert took(p.trace(), on=half, efficiency=1.0) == [1.25, 0.25, 0.75]
    assert "elsewhere FLOPs at the rate of half" in p.trace().retime(half, "set").about.note
    with pytest.raises(ValueError, match=r"H200: no matrix product in bfloat16 was measured"):
        p.trace().retime(CLUSTERS["H200"], "set")


def test_a_paced_run_has_spread_the_seconds_itself() -> None:
    p = Program(1)
    p.compute(0, 1, "backward")
    p.collective(0, 0)
    p.compute(0, 3, "backward")
    p.span(0, "backward", 3, seconds=8)
    p.rows[0][2] |= {"end": 2 + 7}
    assert took(p.trace()) == [2, 6]
    assert took(p.trace(clock="paced")) == [1, 7]


def test_seconds_are_spread_by_flops_and_not_by_what_this_machine_took() -> None:
    p = Program(1)
    p.compute(0, 1, "backward")
    p.collective(0, 0)
    p.compute(0, 3, "backward")
    p.span(0, "backward", 3, seconds=8)
    assert took(p.trace()) == [2, 6]
    for row in p.rows[0][0], p.rows[0][2]:
        row["cpu_end"] = row["cpu_start"] + 1  # a noisy machine
    assert took(p.trace()) == [2, 6]
    for row in p.rows[0]:
        row["flops_end"] = row["flops_start"]  # without FLOPs, CPU time is all there is
    assert took(p.trace()) == [4, 4]
    for row in p.rows[0]:
        row["cpu_end"] = row["cpu_start"]
    assert took(p.trace()) == [4, 4]


def test_the_innermost_span_that_says_it_counts() -> None:
    p = Program(2)
    for rank in range(2):
        p.compute(rank, 1)
        p.compute(rank, 1)
        p.span(rank, "layer", 1, index=0)  # says nothing: what is around it does
        p.compute(rank, 1)
        p.span(rank, "send bucket", 1, seconds=0.5)
        p.compute(rank, 2)
        p.span(rank, "backward", 6, seconds=8)
    assert took(p.trace()) == [2, 2, 0.5, 4] * 2


def test_a_span_is_of_its_own_rank_alone() -> None:
    p = Program(2)
    p.compute(0, 1)
    p.compute(1, 1)
    p.span(1, "forward", 1, seconds=3)
    assert took(p.trace()) == [1, 3]


def test_waits_keep_their_own_time_when_durations_are_set() -> None:
    p = Program(2)
    for rank in range(2):
        p.compute(rank, 1 + rank)
        p.reduce(rank, 10)
        p.span(rank, "step", 3, seconds=1)
    ends = p.trace().retime(cluster(0, 5), "set").columns["end"]
    assert ends.max() == 1 + 2


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "soon", True, None])
def test_seconds_that_are_no_time(value: object) -> None:
    p = Program(1)
    p.compute(0, 1)
    p.span(0, "forward", 1, seconds=value)
    with pytest.raises(ValueError, match=r"span 'forward' of rank 0: seconds="):
        took(p.trace())


def test_seconds_with_nothing_to_take_them() -> None:
    p = Program(1)
    p.compute(0, 1)
    p.collective(0, 0)
    p.span(0, "reduce", 1, seconds=2)
    with pytest.raises(ValueError, match=r"'reduce' of rank 0: seconds=2, and no compute"):
        took(p.trace())


def test_durations_that_nobody_set() -> None:
    p = Program(1)
    p.compute(0, 0)
    with pytest.raises(ValueError, match=r"no span of this trace says how long it lasts"):
        took(p.trace())
    assert took(p.trace(clock="paced")) == [0]  # so it was paced: nothing took any time


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compute": "gpu"}, r"compute='gpu': use one of flops, cpu, set"),
        ({"efficiency": 0}, r"efficiency=0: give a share above 0"),
        ({"efficiency": 1.5}, r"efficiency=1.5"),
        ({"without_flops": -1}, r"without_flops=-1: give a factor"),
        ({"dtype": "float64"}, r"H100: no matrix product in float64 was measured"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, object], words: str) -> None:
    p = Program(1)
    p.compute(0, 1)
    with pytest.raises(ValueError, match=words):
        p.trace().retime(CLUSTERS["H100"], **options)  # type: ignore[arg-type]
