"""This machine measured: figures that can be, from ranks that were really launched."""

from __future__ import annotations

import math

import pytest

from labkit.runtime.measure import SIZES, measure_machine
from labkit.runtime.measure import _line as line
from labkit.runtime.measure import _Sample as Sample
from tests.trace.programs import Program


def test_this_machine_is_measured_and_can_be_retimed_on() -> None:
    here = measure_machine(ranks=2, repeats=3)
    assert (here.name, here.per_node, here.device.name) == ("this machine", 2, "this machine")
    assert set(here.operations) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    for link in (*here.links, *here.operations.values()):
        assert 1e-6 < link.latency < 1
        assert 1e6 < link.bandwidth < 1e12
        assert 0 < link.cpu <= 1
        assert "measured" in link.source
    assert 1e8 < here.device.flops() < 1e13
    p = Program(2)
    for rank in range(2):
        p.compute(rank, 1)
        p.reduce(rank, 1 << 20)
    end = p.trace().retime(here, "cpu").columns["end"].max()
    assert 1 + 1e-6 < end < 2


@pytest.mark.parametrize(("name", "steps", "share"), [
    ("message", 1, 1), ("all_reduce", 4, 4 / 3), ("all_gather", 2, 2), ("reduce_scatter", 2, 2 / 3),
])  # fmt: skip
def test_a_line_through_exact_times_gives_back_the_link(
    name: str, steps: int, share: float
) -> None:
    latency, bandwidth = 2e-4, 1.5e9
    samples = [
        [Sample(steps * latency + share * size / bandwidth, cpu) for size in SIZES]
        for cpu in (0.4, 0.6, 0.8)
    ]
    link = line(name, samples, ranks=3)
    assert link.latency == pytest.approx(latency)
    assert link.bandwidth == pytest.approx(bandwidth)
    assert link.cpu == pytest.approx(0.6)


def test_times_that_make_no_line_still_make_a_link() -> None:
    for seconds in ([1e-3] * 6, [6e-3, 5e-3, 4e-3, 3e-3, 2e-3, 1e-3], [1e-6, 1, 1, 1, 1, 1]):
        link = line("message", [[Sample(t, 1.5) for t in seconds]], ranks=2)
        assert 0 < link.latency < math.inf
        assert 0 < link.bandwidth < math.inf
        assert link.cpu == 1


@pytest.mark.parametrize(("ranks", "repeats", "words"), [
    (1, 3, "ranks=1: a message needs 2 ranks"), (2, 0, "repeats=0: measure at least once"),
])  # fmt: skip
def test_what_cannot_be_measured(ranks: int, repeats: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measure_machine(ranks, repeats)
