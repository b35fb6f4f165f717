from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from labkit.trace import Trace
from labkit.widgets.buffer import pack
from labkit.widgets.picture import build
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
    picture = build(trace)
    header, columns = unpack(pack(trace, picture))
    for name in ("start", "end", "reach", "rank", "lane", "style", "link"):
        assert columns[name].tolist() == picture.bars[name].tolist()
    row = picture.bars["row"]
    assert columns["bytes"].tolist() == trace.columns["bytes"][row].tolist()
    assert columns["arrows"].reshape(-1, 2).tolist() == picture.arrows.tolist()
    long = [header["labels"][i] for i in columns["long"]]
    assert long == [label[0] for label in picture.labels]
    assert header["strings"] == list(trace.strings)
    assert [step["index"] for step in header["steps"]] == [s.index for s in trace.steps]


def test_times_keep_nanoseconds_after_an_hour() -> None:
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 3600.000000001, "end": 3600.5}
    trace = trace_of([row])
    _, columns = unpack(pack(trace, build(trace)))
    assert columns["start"][0] == 3600.000000001


def test_tags_that_json_cannot_hold_become_words() -> None:
    tags = {"loss": math.nan, "norm": math.inf, "rate": 0.5, "ok": True, "name": "a\ud800"}
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 0, "end": 1, "tags": tags}
    trace = trace_of([row])
    header, _ = unpack(pack(trace, build(trace)))
    assert header["tag_sets"] == [
        {"loss": "nan", "norm": "inf", "rate": 0.5, "ok": True, "name": "a\ud800"}
    ]


def test_an_event_costs_about_a_hundred_bytes() -> None:
    trace = many(8000)
    picture = build(trace)
    assert len(pack(trace, picture)) < 130 * len(picture.bars["row"])
