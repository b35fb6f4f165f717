from __future__ import annotations

import numpy as np

from labkit.trace import CLUSTERS
from labkit.widgets.palette import INDEX
from labkit.widgets.sketch import sketch
from tests.widgets.traces import data_parallel, trace_of


def test_a_retiming_has_the_sketch_of_its_trace() -> None:
    trace = data_parallel()
    ours, theirs = sketch(trace), sketch(trace.retime(CLUSTERS["H100"], "cpu"))
    for name in ("compute", "look", "link", "text"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert np.array_equal(ours.meetings.operations, theirs.meetings.operations)


def test_rows_that_say_the_same_have_the_same_text() -> None:
    row = {"rank": 0, "kind": "compute", "name": "forward", "start": 0, "end": 1}
    text = sketch(trace_of([row, row | {"start": 1, "end": 2}, row | {"name": "loss"}])).text
    assert text[0] == text[1] != text[2]


def test_compute_looks_like_the_span_around_it() -> None:
    rows = [
        {"rank": 0, "kind": "compute", "name": "attention", "start": 0, "end": 2},
        {"rank": 0, "kind": "span", "name": "forward", "start": 0, "end": 2},
    ]
    assert sketch(trace_of(rows)).look.tolist() == [INDEX["forward"]] * 2


def test_nothing_recorded_can_be_sketched() -> None:
    assert len(sketch(trace_of([], ranks=1)).link) == 0
