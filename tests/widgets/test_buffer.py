from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from labkit.trace import Trace
from labkit.widgets.buffer import pack_bars, pack_rows, remarks
from labkit.widgets.picture import MOST_AT_ONCE, build
from labkit.widgets.sketch import sketch
from tests.widgets.traces import data_parallel, many, pipeline, trace_of


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """What timeline.js reads: the header, and the columns by name."""
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    columns = {}
    for name, (kind, offset, count) in header["columns"].items():
        assert (4 + length + offset) % 8 == 0, "typed arrays need their alignment"
        columns[name] = np.frombuffer(data, f"<{kind}", count, 4 + length + offset)
    return header, columns


@pytest.mark.parametrize("trace", [data_parallel(), pipeline(), trace_of([], ranks=1)], ids=str)
def test_columns_come_back_as_they_went(trace: Trace) -> None:
    picture, known = build(trace), sketch(trace)
    header, columns = unpack(pack_bars(trace, picture))
    for name in ("row", "lane", "style", "label", "start", "end"):
        assert columns[name].tolist() == picture.bars[name].tolist()
    assert columns["arrows"].reshape(-1, 2).tolist() == picture.arrows.tolist()
    assert header["labels"] == [list(pair) for pair in picture.words]
    assert [step["index"] for step in header["steps"]] == [s.index for s in trace.steps]
    header, columns = unpack(pack_rows(trace, known))
    for name in ("rank", "kind", "name", "bytes", "where"):
        assert columns[name].tolist() == trace.columns[name].tolist()
    assert columns["link"].tolist() == known.link.tolist()
    assert header["strings"] == list(trace.strings)


def test_times_keep_nanoseconds_after_an_hour() -> None:
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 3600.000000001, "end": 3600.5}
    trace = trace_of([row])
    _, columns = unpack(pack_bars(trace, build(trace)))
    assert columns["start"][0] == 3600.000000001


def test_tags_that_json_cannot_hold_become_words() -> None:
    tags = {"loss": math.nan, "norm": math.inf, "rate": 0.5, "ok": True, "name": "a\ud800"}
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 0, "end": 1, "tags": tags}
    trace = trace_of([row])
    header, _ = unpack(pack_rows(trace, sketch(trace)))
    assert header["tag_sets"] == [
        {"loss": "nan", "norm": "inf", "rate": 0.5, "ok": True, "name": "a\ud800"}
    ]


def test_an_event_costs_about_a_hundred_bytes_and_half_of_that_when_retimed() -> None:
    trace = many(8000)
    picture = build(trace)
    bars = len(picture.bars["row"])
    once, again = len(pack_rows(trace, sketch(trace))), len(pack_bars(trace, picture))
    assert once + again < 130 * bars
    assert again < 65 * bars


def test_the_picture_says_what_does_not_fit() -> None:
    row = {"rank": 0, "kind": "collective", "name": "all_reduce", "start": 0, "end": 0, "done": 9}
    few, many_at_once = (build(trace_of([row] * n)) for n in (MOST_AT_ONCE, MOST_AT_ONCE + 3))
    assert remarks(few) == []
    assert "3 operations drawn over others" in remarks(many_at_once)[0]
    trace = trace_of([row] * (MOST_AT_ONCE + 3))
    header, _ = unpack(pack_bars(trace, many_at_once))
    assert header["remarks"] == remarks(many_at_once)
