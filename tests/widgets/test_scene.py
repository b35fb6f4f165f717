from __future__ import annotations

from labkit.widgets.scene import Scene
from labkit.widgets.sketch import sketch
from tests.widgets.test_buffer import unpack
from tests.widgets.traces import data_parallel


def test_what_lies_over_the_bars_travels_with_them() -> None:
    trace = data_parallel()
    scene = Scene.of(trace, sketch(trace), prediction=0.05, path=True, step=1)
    header, _ = unpack(scene.packed())
    assert header["boxes"][1] == [1, None, trace.steps[1].start, trace.steps[1].start + 0.05]
    assert set(header["gaps"]) == {"", "0", "1", "2"}
    assert header["path_said"] == trace.critical_path(1).sentence
    assert len(header["path"][0]) == 6


def test_a_plain_scene_has_nothing_over_it() -> None:
    trace = data_parallel()
    header, _ = unpack(Scene.of(trace, sketch(trace)).packed())
    assert (header["boxes"], header["gaps"], header["path"], header["path_said"]) == (
        [],
        {},
        [],
        "",
    )


def test_a_run_beside_another_counts_from_its_first_step() -> None:
    trace = data_parallel()
    scene = Scene.of(trace, sketch(trace))
    assert scene.panel(None, "").shown.step is None
    shown = scene.panel(None, "", aligned=True).shown
    assert (shown.step, shown.origin) == (0, trace.steps[0].start)
    assert scene.panel(7, "").shown.step is None  # it has no such step: all of it
