from __future__ import annotations

import pytest

from labkit.trace import CLUSTERS
from labkit.widgets.path import path_of
from labkit.widgets.picture import COMMUNICATION, COMPUTE, build
from tests.widgets.traces import data_parallel, trace_of


def test_the_path_runs_along_bars_without_a_gap() -> None:
    trace = data_parallel().retime(CLUSTERS["H100"], "cpu")
    picture = build(trace)
    path = path_of(trace, picture, None)
    found = trace.critical_path()
    assert path.said == found.sentence
    assert [(p.rank, p.start, p.end) for p in path.pieces] == [
        (s.rank, s.start, s.end) for s in found.segments
    ]
    lanes = {(lane.rank, lane.number) for lane in picture.lanes}
    assert {(p.rank, p.lane) for p in path.pieces} <= lanes


def test_what_a_rank_does_is_in_its_compute_lane() -> None:
    trace = data_parallel()
    path = path_of(trace, build(trace), 1)
    assert {p.lane for p in path.pieces} == {COMPUTE}
    assert {"forward", "backward"} <= {p.name for p in path.pieces}


def test_a_message_that_others_queue_behind_is_in_the_lane_of_its_operation() -> None:
    """Rank 0 sends two large messages at once; rank 1 waits for the second alone."""
    pair = data_parallel(ranks=2).groups[0]
    shared = {"group": pair, "tag": 0, "bytes": 10**9, "start": 0.0, "end": 0.0}
    rows = [
        {"rank": 0, "kind": "compute", "name": "f", "start": 0, "end": 1},
        *(shared | {"rank": 0, "kind": "send", "name": "send", "peer": 1, "seq": n, "op": n}
          for n in (0, 1)),
        *(shared | {"rank": 1, "kind": "recv", "name": "recv", "peer": 0, "seq": n, "op": n}
          for n in (0, 1)),
        {"rank": 1, "kind": "wait", "name": "recv", "op": 1, "start": 0.0, "end": 1.0},
    ]  # fmt: skip
    trace = trace_of(rows).retime(CLUSTERS["H100"])
    path = path_of(trace, build(trace), None)
    assert [(p.rank, p.lane >= COMMUNICATION) for p in path.pieces] == [(0, True), (1, False)]
    assert path.pieces[0].end == path.pieces[1].start > 0


def test_an_impossible_trace_has_no_path() -> None:
    row = {"rank": 0, "kind": "compute", "name": "f", "start": 0, "end": 1}
    trace = trace_of([row], ranks=2)
    with pytest.raises(ValueError, match="rank 1 left no rows"):
        path_of(trace, build(trace), None)
