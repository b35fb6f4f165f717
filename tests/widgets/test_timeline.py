from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
import traitlets

import labkit.widgets
from labkit.widgets import Timeline
from labkit.widgets.ledger import LedgerTable
from labkit.widgets.predict import Predict
from tests.widgets.traces import data_parallel, pipeline, trace_of

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


def test_the_front_end_is_in_the_package_and_names_no_other_place() -> None:
    folder = Path(labkit.widgets.__file__).parent
    scripts = sorted(folder.rglob("*.js"))
    assert len(scripts) == 13
    sent = "".join(w._esm for w in (Timeline, Predict, LedgerTable))
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
