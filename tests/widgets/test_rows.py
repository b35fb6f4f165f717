from __future__ import annotations

import numpy as np

from labkit.widgets.picture import COMMUNICATION, build
from labkit.widgets.rows import at_once, rows_of
from tests.widgets.traces import trace_of

SEND = {"rank": 0, "kind": "send", "name": "send", "peer": 1, "start": 0, "end": 0, "done": 5}


def test_a_rank_has_as_many_lanes_as_it_needs_and_no_more() -> None:
    compute = {"rank": 1, "kind": "compute", "name": "f", "start": 0, "end": 1}
    picture = build(trace_of([SEND, SEND, compute], ranks=3))
    assert at_once(picture, 3).tolist() == [2, 0, 0]
    rows = rows_of(picture, 3)
    assert [row.number for row in rows] == [2, 0, 0]
    assert rows[1].bottom - rows[1].top < rows[0].bottom - rows[0].top
    assert rows[1].bottom == rows[1].lane(COMMUNICATION)[0]


def test_lanes_can_be_kept_free() -> None:
    picture = build(trace_of([SEND], ranks=2))
    assert [row.number for row in rows_of(picture, 2, np.array([3, 0]))] == [3, 0]


def test_many_operations_at_once_share_the_room_of_four() -> None:
    for number in (4, 5, 8):
        row = rows_of(build(trace_of([SEND] * number, ranks=2)), 2)[0]
        assert row.number == number
        assert row.bottom - row.lane(COMMUNICATION)[0] == 48
        assert row.lane(COMMUNICATION)[1] >= 5  # thinner than that, a bar cannot be seen
