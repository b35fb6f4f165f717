from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.trace import Trace
from labkit.widgets.prediction import Box, predicted
from tests.widgets.traces import trace_of


def steps(*lengths: float, at: float = 0.0, ranks: int = 2, **about: Any) -> Trace:
    """Steps one after the other; rank r begins each a tenth of a second times r later."""
    rows: list[dict[str, Any]] = []
    for rank in range(ranks):
        begin = at
        for number, length in enumerate(lengths):
            start, end = begin + 0.1 * rank, begin + length
            stretch = {"rank": rank, "start": start, "end": end}
            rows += [
                stretch | {"kind": "compute", "name": "forward"},
                stretch | {"kind": "span", "name": "step", "tags": {"step": number}},
            ]
            begin = end
    return trace_of(rows, **about)


def test_a_predicted_trace_gives_a_box_a_rank_counted_from_the_steps_start() -> None:
    found = predicted(steps(1.0, at=5.0, clock="modelled"), steps(2.0, at=7.0))
    assert found.boxes == (Box(0, 0, 7.0, 8.0), Box(0, 1, pytest.approx(7.1), 8.0))


def test_the_gap_is_told_of_each_step_and_of_all() -> None:
    found = predicted(steps(1.0, 1.0, clock="modelled"), steps(1.5, 1.0, clock="paced"))
    assert set(found.said) == {None, 0, 1}
    assert found.said[0].startswith("predicted 1.00 s, paced 1.50 s: 50 % more")
    assert found.said[1] == "predicted 1.00 s, paced 1.00 s: as predicted."
    assert "2 steps, on average predicted 1.00 s, paced 1.25 s: 25 % more" in found.said[None]


def test_a_number_gives_a_line_a_step() -> None:
    found = predicted(0.5, steps(1.0, 2.0, clock="paced"))
    assert found.boxes == (Box(0, None, 0.0, 0.5), Box(1, None, 1.0, 1.5))
    assert found.said[0] == "predicted 500 ms, paced 1.00 s: 100 % more."
    assert found.said[1] == "predicted 500 ms, paced 2.00 s: 4 times as much."
    assert found.said[None].startswith("2 steps, on average predicted 500 ms, paced 1.50 s")


@pytest.mark.parametrize(
    ("number", "said"), [(1.0, ": as predicted."), (2.0, ": 50 % less."), (0, "paced 1.00 s.")]
)
def test_less_and_nothing_are_told_too(number: float, said: str) -> None:
    assert predicted(number, steps(1.0, clock="paced")).said[0].endswith(said)


def test_steps_that_only_one_of_the_two_has_get_no_box() -> None:
    found = predicted(steps(1.0, clock="modelled"), steps(1.0, 1.0))
    assert {box.step for box in found.boxes} == {0}
    assert set(found.said) == {None, 0}


@pytest.mark.parametrize("number", [-1.0, math.inf, math.nan, True, "fast"])
def test_what_is_no_time_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="give a Trace or seconds, 0 or more"):
        predicted(number, steps(1.0))


def test_a_prediction_of_another_program_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks: 3 predicted, 2 happened"):
        predicted(steps(1.0, ranks=3, clock="modelled"), steps(1.0))


def test_a_trace_without_steps_has_nothing_to_compare() -> None:
    assert predicted(0.5, trace_of([], ranks=1)).boxes == ()
