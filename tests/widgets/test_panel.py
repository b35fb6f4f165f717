from __future__ import annotations

import pytest

from labkit.widgets.panel import Panel
from labkit.widgets.path import Path
from labkit.widgets.picture import build
from labkit.widgets.prediction import predicted
from labkit.widgets.window import window
from tests.widgets.traces import data_parallel


def panel(step: int | None = None, **more: object) -> Panel:
    trace = data_parallel()
    picture = build(trace)
    shown = window(trace, picture, step)
    return Panel(picture, trace.about, "", shown, trace.steps, **more)


def test_what_was_predicted_to_last_longer_is_in_view() -> None:
    over = predicted(0.5, data_parallel())
    assert panel(1).length == pytest.approx(0.055, rel=0.02)
    assert panel(1, predicted=over).length == pytest.approx(0.5, rel=0.02)
    assert panel(predicted=over).length == pytest.approx(0.628, rel=0.02)  # from the third step


def test_gap_path_and_remarks_are_told_under_the_lanes() -> None:
    over = predicted(0.05, data_parallel())
    lines = panel(1, predicted=over, path=Path((), "The path."), remarks=["More."]).said
    assert lines == [over.said[1], "The path.", "More."]
    assert panel(predicted=over).said == [over.said[None]]
    assert panel().said == []


def test_steps_have_room_for_their_numbers_where_several_are_shown() -> None:
    assert panel().above > panel(1).above
