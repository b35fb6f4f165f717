from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labkit.trace import Trace
from labkit.widgets.panel import Panel
from labkit.widgets.picture import build
from labkit.widgets.rows import rows_of
from labkit.widgets.still import WIDTH, draw
from labkit.widgets.window import window
from tests.widgets.traces import data_parallel, many, pipeline, trace_of


def image(trace: Trace, step: int | None = None, title: str = "") -> np.ndarray[Any, Any]:
    """The drawing, as (height, width, 3)."""
    picture = build(trace)
    shown = window(trace, picture, step)
    png = draw(Panel(picture, trace.about, title, shown, trace.steps))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def near(pixels: np.ndarray[Any, Any], colour: str) -> int:
    """How many pixels have that colour, up to what the palette of the file rounds off."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(pixels.astype(int) - wanted).max(axis=2) <= 6).sum())


def test_the_picture_is_a_png_of_the_stated_width() -> None:
    assert image(data_parallel()).shape[1] == WIDTH * 1.5


def test_each_kind_of_work_is_there_in_its_colour() -> None:
    pixels = image(pipeline())
    for colour in ("#56b4e9", "#d55e00", "#f0e442", "#0072b2", "#a6cee3"):
        assert near(pixels, colour) > 500, colour
    assert near(pixels, "#cc79a7") == 0  # no collective, neither as a bar nor in the legend


def test_two_drawings_are_equal_byte_for_byte() -> None:
    trace = data_parallel()
    picture = build(trace)
    shown = window(trace, picture)
    panel = Panel(picture, trace.about, "", shown)
    assert draw(panel) == draw(panel)


def test_a_bar_is_as_long_as_its_time() -> None:
    rows = [
        {"rank": 0, "kind": "compute", "name": "forward", "start": 0, "end": 1},
        {"rank": 0, "kind": "compute", "name": "optimizer", "start": 1, "end": 4},
    ]
    pixels = image(trace_of(rows))
    line = pixels[pixels.shape[0] // 3 :]  # without the strip of spans; the legend is small
    lengths = [near(line, colour) for colour in ("#56b4e9", "#009e73")]
    assert lengths[1] / lengths[0] == pytest.approx(3, rel=0.35)


def test_what_is_outside_the_step_is_paled() -> None:
    def rows(rank: int, late: float) -> list[dict[str, Any]]:
        return [
            {"rank": rank, "kind": "compute", "name": "forward", "start": 0.0, "end": 10.0},
            {"rank": rank, "kind": "span", "name": "step", "start": late, "end": 10.0,
             "tags": {"step": 0}},
            {"rank": rank, "kind": "compute", "name": "compute", "start": 10.0, "end": 20.0},
        ]  # fmt: skip

    apart, together = (
        near(image(trace_of(rows(0, 0) + rows(1, late)), step=0), "#56b4e9") for late in (5, 0)
    )
    assert apart < 0.85 * together


def test_many_events_are_merged_and_stay_quick_to_draw() -> None:
    pixels = image(many(20_000))
    assert near(pixels, "#cc79a7") > 10_000


def test_titles_and_names_are_not_read_as_mathematics() -> None:
    row = {"rank": 0, "kind": "compute", "name": "$\\frac{", "start": 0, "end": 1}
    image(trace_of([row]), title="$\\nonsense{")


def test_an_empty_trace_can_be_drawn() -> None:
    assert image(trace_of([], ranks=2)).size


def test_64_ranks_fit_on_a_page() -> None:
    rows = [
        {"rank": rank, "kind": "compute", "name": "forward", "start": 0, "end": 1}
        for rank in range(64)
    ]
    assert rows_of(build(trace_of(rows)), 64)[-1].bottom < 2000
    assert image(trace_of(rows)).shape[0] < 3000
