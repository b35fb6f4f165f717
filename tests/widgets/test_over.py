from __future__ import annotations

import io

import numpy as np
from PIL import Image

from labkit.trace import Trace
from labkit.widgets.scene import Scene
from labkit.widgets.sketch import sketch
from labkit.widgets.still import draw
from tests.widgets.test_still import near
from tests.widgets.traces import data_parallel

PREDICTED = "#a3004f"


def image(trace: Trace, step: int | None = None, **over: object) -> np.ndarray:
    scene = Scene.of(trace, sketch(trace), step=step, **over)
    png = draw(scene.panel(step, ""))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_a_predicted_time_is_a_line_through_all_ranks() -> None:
    pixels = image(data_parallel(), 1, prediction=0.03)
    wanted = np.array([0xA3, 0x00, 0x4F])
    column = (np.abs(pixels.astype(int) - wanted).max(axis=2) < 40).sum(axis=0)
    assert column.max() > 0.35 * pixels.shape[0]
    inner = np.flatnonzero(column > 100).mean() / 1.5
    assert abs(inner - (136 + (1000 - 136 - 14) * 0.03 / 0.0552)) < 6


def test_a_predicted_trace_is_an_outline_a_rank() -> None:
    trace = data_parallel()
    assert near(image(trace), PREDICTED) == 0
    few, many = (near(image(data_parallel(ranks=n), prediction=data_parallel(ranks=n)), PREDICTED)
                 for n in (2, 4))  # fmt: skip
    assert many > 1.5 * few > 0


def test_what_is_not_on_the_path_is_paled() -> None:
    trace = data_parallel()
    plain, path = (near(image(trace, 1, path=on), "#e69f00") for on in (False, True))
    assert 0 < path < 0.6 * plain
