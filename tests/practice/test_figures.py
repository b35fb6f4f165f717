"""A run's four cells: counted figures exactly, measured ones beside them."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.practice.figures import COLUMNS, Cell, measure
from labkit.trace import Trace
from labkit.trace.events import Group
from tests.widgets.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1))
WHEN = "2026-12-01T10:02:03+00:00"


def step(rank: int, at: float, flops: int, number: int, wait: float = 0.3) -> list[dict[str, Any]]:
    """A step of one second: compute, an all-reduce of 1,000 bytes, a wait, an idle end."""
    done = at + 0.5 + wait
    shared = {"rank": rank, "name": "all_reduce", "group": WORLD, "seq": number, "op": number}
    return [
        {"rank": rank, "kind": "span", "name": "step", "start": at, "end": at + 1,
         "tags": {"step": number}},
        {"rank": rank, "kind": "compute", "name": "forward", "start": at, "end": at + 0.5,
         "flops_start": 0, "flops_end": flops},
        {"kind": "collective", "start": at + 0.5, "end": at + 0.5, "done": done,
         "bytes": 1000} | shared,
        {"kind": "wait", "start": at + 0.5, "end": done} | shared,
    ]  # fmt: skip


def two_ranks(**about: Any) -> Trace:
    rows = [row for rank in range(2) for n in range(2) for row in step(rank, n, 10**9 * (n + 1), n)]
    return trace_of(rows, **about)


def cell(column: str, figures: dict[str, Any], clock: str = "measured") -> Cell:
    return Cell(column, figures, clock, 2, WHEN)


def test_the_last_step_fills_the_cells() -> None:
    found = measure(two_ranks())
    assert set(found) == {"computation", "bytes", "cost"}
    assert set(found) < set(COLUMNS)
    assert found["computation"]["flops"] == 2 * 10**9
    assert found["computation"]["step"] == pytest.approx(1.0)
    assert found["computation"]["busy"] == pytest.approx(0.5)
    assert found["bytes"] == {"calls": 1, "payload": 1000, "closed_form": 1000.0, "wire": None}
    assert found["cost"]["transfer"] == pytest.approx(0.3)
    assert found["cost"]["idle"] == pytest.approx(0.2)
    assert measure(two_ranks(), step=0)["computation"]["flops"] == 10**9


def test_words_tell_all_and_exact_only_what_is_counted() -> None:
    found = measure(two_ranks())
    computation, moved, cost = (cell(c, found[c]) for c in ("computation", "bytes", "cost"))
    assert computation.exact == "2 GFLOP"
    assert computation.words == "2 GFLOP, step 1,000 ms, computing 50 % of it"
    assert moved.exact == moved.words == "payload 1 kB, closed form 1 kB"
    assert cost.exact == ""
    assert cost.words == "30 % of the step waits for communication (30 % while it moves); 20 % idle"
    assert cost.stamp == "measured, 2 ranks, 2026-12-01 10:02 UTC"


def test_a_model_is_exact_in_its_times_too() -> None:
    found = measure(two_ranks(clock="modelled"))
    assert cell("computation", found["computation"], "modelled").exact == "2 GFLOP, step 1,000 ms"
    assert cell("cost", found["cost"], "modelled").exact.startswith("30 % of the step")


def test_bytes_on_the_wire_are_told_where_they_were_counted() -> None:
    figures = {"calls": 1, "payload": 5_760_000, "closed_form": 8_640_000.0, "wire": 8_642_000}
    assert cell("bytes", figures).exact == "payload 5.76 MB, closed form 8.64 MB"
    assert cell("bytes", figures).words.endswith("closed form 8.64 MB, on the wire 8.64 MB")
    unknown = figures | {"closed_form": None}
    assert "closed form unknown" in cell("bytes", unknown).exact


def test_a_rank_that_talks_to_nobody_sends_nothing() -> None:
    row = {"rank": 0, "kind": "compute", "name": "forward", "start": 0, "end": 1}
    found = measure(trace_of([row]))
    assert cell("bytes", found["bytes"]).exact == "none"
    assert cell("cost", found["cost"]).words == "nothing is sent"
    assert cell("computation", found["computation"]).exact == "no FLOPs counted"


def test_the_busiest_rank_counts() -> None:
    rows = [*step(0, 0, 10**9, 0), *step(1, 0, 3 * 10**9, 0)]
    assert measure(trace_of(rows))["computation"]["flops"] == 3 * 10**9


def test_memory_is_told_in_four_parts() -> None:
    parts = {"weights": 4_000_000, "gradients": 4_000_000, "optimizer": 0, "activations": 500}
    assert cell("memory", {"parts": parts}).exact == (
        "8 MB: weights 4 MB, gradients 4 MB, optimizer 0 B, activations 500 B"
    )


def test_nothing_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="left no record"):
        measure(trace_of([], ranks=1))
    with pytest.raises(KeyError, match="no step 7"):
        measure(two_ranks(), step=7)
