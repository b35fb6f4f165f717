from __future__ import annotations

import base64
import io
import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import traitlets
from PIL import Image

import labkit.widgets
from labkit.trace import CLUSTERS, Cluster, Link
from labkit.widgets import MemoryBar, Timeline
from labkit.widgets.ledger import LedgerTable
from labkit.widgets.predict import Predict
from tests.widgets.test_buffer import unpack
from tests.widgets.traces import data_parallel, pipeline, trace_of

H100 = CLUSTERS["H100"]

PNG = b"\x89PNG\r\n\x1a\n"


def test_measured_times_are_left_out_of_the_repr() -> None:
    assert repr(Timeline(data_parallel())) == "Timeline(ranks=4, measured)"
    assert repr(Timeline(data_parallel(clock="paced"))) == "Timeline(ranks=4, paced)"


def test_a_model_says_its_makespan() -> None:
    row = {"rank": 0, "kind": "compute", "name": "F", "start": 0, "end": 33}
    trace = trace_of([row], ranks=4, clock="modelled", unit="")
    assert repr(Timeline(trace)) == "Timeline(ranks=4, modelled, makespan=33)"
    assert repr(Timeline(trace_of([], ranks=2, clock="modelled"))).endswith("makespan=0)")


def test_a_notebook_gets_the_widget_the_still_and_the_text() -> None:
    timeline = Timeline(data_parallel())
    bundle = timeline._repr_mimebundle_()
    assert bundle is not None
    data, metadata = bundle
    assert data["text/plain"] == repr(timeline)
    assert base64.b64decode(data["image/png"]) == timeline.still()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert metadata["image/png"] == {"width": 1000}


def test_the_still_shows_the_chosen_step_and_is_drawn_once() -> None:
    timeline = Timeline(data_parallel())
    whole = timeline.still()
    assert whole.startswith(PNG)
    assert timeline.still() is whole
    timeline.step = 1
    assert timeline.still() != whole
    timeline.step = None
    assert timeline.still() is whole


def test_save_png_writes_the_still(tmp_path: Path) -> None:
    timeline = Timeline(pipeline(), title="GPipe")
    timeline.save_png(tmp_path / "still.png")
    assert (tmp_path / "still.png").read_bytes() == timeline.still()


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError, match=r"no step 7 in this trace \(steps: 0, 1, 2\)"):
        Timeline(data_parallel(), step=7)
    timeline = Timeline(data_parallel(), step=1)
    with pytest.raises(traitlets.TraitError, match="no step 9"):
        timeline.step = 9
    assert timeline.step == 1


def test_a_trace_draws_itself() -> None:
    timeline = data_parallel().timeline(step=2, title="mine")
    assert isinstance(timeline, Timeline)
    assert (timeline.step, timeline.title) == (2, "mine")


def retimed(**options: object) -> Timeline:
    return Timeline(data_parallel(clock="paced"), cluster=H100, compute="cpu", **options)


def shown(timeline: Timeline) -> dict[str, object]:
    """The header of what the browser has."""
    return unpack(timeline.bars)[0]


def test_the_recording_is_shown_first_unless_the_model_is_asked_for() -> None:
    assert repr(retimed()) == "Timeline(ranks=4, paced)"
    trace = data_parallel(clock="paced").retime(H100, "cpu")
    assert repr(retimed(clock="modelled")) == repr(Timeline(trace))
    assert "modelled, makespan=" in repr(retimed(clock="modelled"))


def test_switching_the_clock_sends_other_times_for_the_same_rows() -> None:
    timeline = retimed()
    rows, recorded, still = timeline.rows, timeline.bars, timeline.still()
    timeline.clock = "modelled"
    assert timeline.rows is rows
    assert shown(timeline)["about"]["clock"] == "modelled"
    assert timeline.still() != still
    timeline.clock = "paced"
    assert timeline.bars == recorded


def test_a_link_that_is_moved_retimes_and_shows_the_model() -> None:
    timeline = retimed()
    timeline.latency = 1e-3
    assert timeline.clock == "modelled"
    assert timeline.latency == (1e-3,)
    slow = Cluster(H100.device, Link(1e-3, H100.links[0].bandwidth, base=H100.links[0].base))
    wanted = timeline.trace.retime(slow, "cpu")
    assert timeline.modelled.columns["end"].tolist() == wanted.columns["end"].tolist()
    _, columns = unpack(timeline.bars)
    assert columns["end"].max() == np.nanmax(wanted.columns["done"])
    timeline.bandwidth = [None]
    assert timeline.bandwidth == (math.inf,)
    assert "no limit" in timeline.modelled.about.note


def test_the_trace_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = retimed(clock="modelled")
    monkeypatch.setattr("labkit.trace.graph.compile_graph", lambda trace: pytest.fail("again"))
    timeline.latency = 1e-4


def test_rows_keep_their_height_while_a_slider_moves() -> None:
    timeline = retimed(clock="modelled")
    timeline.bandwidth = 1e6
    tall = shown(timeline)["rows"]
    timeline.bandwidth = 1e13
    assert shown(timeline)["rows"] == tall


def test_a_model_on_another_cluster_has_one_clock() -> None:
    model = data_parallel().retime(H100, "cpu")
    timeline = model.timeline(cluster=CLUSTERS["A100"], compute="cpu")
    assert timeline.controls["clocks"] == ["modelled"]
    assert "on A100" in shown(timeline)["about"]["note"]


def test_what_cannot_be_modelled_is_told_and_the_recording_stays() -> None:
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 0, "end": 1}
    trace = trace_of([row], ranks=2)
    timeline = Timeline(trace, cluster=H100)
    bars = timeline.bars
    timeline.clock = "modelled"
    assert "rank 1 left no rows" in timeline.problem
    assert (timeline.clock, timeline.bars) == ("measured", bars)
    timeline.path = True
    assert (timeline.path, timeline.bars) == (False, bars)
    with pytest.raises(ValueError, match="rank 1 left no rows"):
        Timeline(trace, cluster=H100, clock="modelled")
    with pytest.raises(ValueError, match="rank 1 left no rows"):
        _ = timeline.modelled


def test_changes_from_several_threads_end_in_one_picture() -> None:
    timeline = retimed(clock="modelled")
    moves = [threading.Thread(target=setattr, args=(timeline, "latency", n * 1e-5))
             for n in range(1, 9)]  # fmt: skip
    for move in moves:
        move.start()
    for move in moves:
        move.join()
    again = retimed(clock="modelled")
    again.latency = timeline.latency
    assert unpack(timeline.bars)[1]["end"].tolist() == unpack(again.bars)[1]["end"].tolist()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("latency", -1.0, "give seconds, 0 or more"),
        ("bandwidth", (1e9, 1e9), "give one number, or 1"),
        ("clock", "measured", "this timeline has paced and modelled"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: object, said: str) -> None:
    timeline = retimed()
    before = getattr(timeline, name)
    with pytest.raises(traitlets.TraitError, match=said):
        setattr(timeline, name, value)
    assert getattr(timeline, name) == before


def test_without_a_cluster_there_is_nothing_to_switch_or_move() -> None:
    timeline = Timeline(data_parallel(clock="paced"))
    assert timeline.controls == {}
    with pytest.raises(traitlets.TraitError, match="give cluster="):
        timeline.latency = 1e-6
    with pytest.raises(ValueError, match="give cluster="):
        _ = timeline.modelled
    with pytest.raises(ValueError, match=r"clock='modelled': .*give cluster="):
        Timeline(data_parallel(), clock="modelled")
    with pytest.raises(TypeError, match="efficiency: only of use with cluster="):
        Timeline(data_parallel(), efficiency=0.5)


def test_a_prediction_lies_over_whatever_is_shown() -> None:
    trace = data_parallel(clock="paced")
    timeline = retimed(prediction=trace.retime(H100, "cpu"))
    boxes = shown(timeline)["boxes"]
    assert len(boxes) == 12  # four ranks, three steps
    assert "paced" in shown(timeline)["gaps"][""]
    timeline.clock = "modelled"
    assert "as predicted" in shown(timeline)["gaps"]["1"]


def test_the_path_is_that_of_the_step_and_the_clock_shown() -> None:
    timeline = retimed()
    assert shown(timeline)["path"] == []
    timeline.path = True
    whole = shown(timeline)["path"]
    timeline.step = 1
    assert 0 < len(shown(timeline)["path"]) < len(whole)
    assert "54.9 ms" in shown(timeline)["path_said"]
    timeline.clock = "modelled"
    assert "54.9 ms" not in shown(timeline)["path_said"]


def test_two_runs_lie_one_above_the_other() -> None:
    above, below = data_parallel(clock="paced"), data_parallel(layers=1, steps=2)
    timeline = Timeline.compare(above, below, ("before", "after"), title="Buckets")
    assert repr(timeline) == "Timeline(ranks=4, paced, above ranks=4, measured)"
    assert timeline.titles == ["before", "after"]
    assert unpack(timeline.bars_below)[0]["about"]["clock"] == "measured"
    one = Timeline(above, title="Buckets")
    tall, short = (Image.open(io.BytesIO(t.still())).height for t in (timeline, one))
    assert tall > 1.6 * short
    timeline.step = 2  # which the second does not have
    assert timeline.still()
    assert above.timeline(below=below).titles == ["", ""]
    with pytest.raises(TypeError, match="only of use with below="):
        above.timeline(titles=("a", "b"))


def test_the_front_end_is_in_the_package_and_names_no_other_place() -> None:
    folder = Path(labkit.widgets.__file__).parent
    scripts = sorted(folder.rglob("*.js"))
    assert len(scripts) == 14
    sent = "".join(w._esm for w in (Timeline, MemoryBar, Predict, LedgerTable))
    for path in (*scripts, *folder.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        assert text in sent or path.suffix == ".css"
        for foreign in ("http", "import ", "import(", "innerHTML", "insertAdjacentHTML"):
            assert foreign not in text, (path.name, foreign)


def test_drawing_leaves_pyplot_alone() -> None:
    code = (
        "import sys\n"
        "from tests.widgets.traces import pipeline\n"
        "from labkit.widgets import Timeline\n"
        "Timeline(pipeline()).still()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_labkit_alone_loads_no_widgets() -> None:
    code = "import sys, labkit, labkit.trace; assert 'ipywidgets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
