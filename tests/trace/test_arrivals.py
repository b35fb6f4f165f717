"""When the last rank arrived: collectives, messages, waits, joins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.trace.arrivals import arrivals, partners


def op(rank: int, start: float, name: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return {"rank": rank, "kind": "collective", "name": name, "start": start, "group": 0} | more


def message(kind: str, rank: int, start: float, peer: int, seq: int = 0, tag: int = 0, **more: Any):  # type: ignore[no-untyped-def]
    row = {"rank": rank, "kind": kind, "name": kind, "start": start, "group": 0, "peer": peer}
    return row | {"seq": seq, "tag": tag} | more


def test_a_collective_arrives_with_its_last_rank(make: Any) -> None:
    trace = make([op(0, 1, seq=0), op(0, 2, seq=1), op(1, 5, seq=0), op(1, 6, seq=1)])
    assert partners(trace) == [[0, 2], [1, 3]]
    assert arrivals(trace).tolist() == [5, 6, 5, 6]


def test_groups_do_not_mix(make: Any) -> None:
    rows = [op(0, 1, seq=0, group=0), op(1, 3, seq=0, group=0), op(1, 4, seq=0, group=1),
            op(2, 9, seq=0, group=1)]  # fmt: skip
    trace = make(rows, ranks=3, groups=[(0, 1), (1, 2)])
    assert arrivals(trace).tolist() == [3, 3, 9, 9]


def test_numbers_that_come_again_match_in_order(make: Any) -> None:
    rows = [op(0, 1, seq=0), op(0, 5, seq=0), op(1, 2, seq=0), op(1, 4, seq=0)]
    assert arrivals(make(rows)).tolist() == [2, 5, 2, 5]


def test_a_message_arrives_when_both_ends_have(make: Any) -> None:
    rows = [
        message("send", 0, 4, peer=1), message("send", 0, 5, peer=1, tag=1),
        message("send", 0, 6, peer=1, seq=1),
        message("recv", 1, 7, peer=0), message("recv", 1, 1, peer=0, seq=1),
        message("recv", 1, 8, peer=0, tag=1),
    ]  # fmt: skip
    assert arrivals(make(rows)).tolist() == [7, 8, 6, 7, 6, 8]


def test_messages_between_two_ranks_in_both_directions_do_not_mix(make: Any) -> None:
    rows = [message("send", 0, 1, peer=1), message("recv", 0, 2, peer=1),
            message("send", 1, 3, peer=0), message("recv", 1, 4, peer=0)]  # fmt: skip
    assert sorted(map(sorted, partners(make(rows)))) == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    "rows",
    [
        [op(0, 1, seq=0)],  # rank 1 left no record
        [op(0, 1, seq=0), op(1, 2, seq=1)],
        [op(0, 1, seq=-1), op(1, 2, seq=-1)],
        [op(0, 1, seq=0, group=-1), op(1, 2, seq=0, group=-1)],
        [message("send", 0, 1, peer=1)],
        [message("recv", 0, 1, peer=-1), message("send", 1, 1, peer=0)],  # from any source
    ],
)
def test_where_the_others_are_not_known_nothing_is_told(make: Any, rows: Any) -> None:
    assert np.isnan(arrivals(make(rows))).all()


def test_a_wait_arrives_with_its_operation(make: Any) -> None:
    rows = [op(0, 1, seq=0, op=0), op(0, 2, seq=1, op=1)]
    rows += [{"rank": 0, "kind": "wait", "start": 3, "op": n} for n in (1, 0, 5, -1)]
    rows += [op(1, 7, seq=0, op=0), op(1, 8, seq=1, op=1)]
    rows += [{"rank": 1, "kind": "wait", "start": 9, "op": 0}]
    assert arrivals(make(rows))[2:6].tolist() == pytest.approx([8, 7, np.nan, np.nan], nan_ok=True)
    assert arrivals(make(rows))[8] == 7


def join(rank: int, start: float, end: float, n: int) -> dict[str, Any]:
    return {"rank": rank, "kind": "join", "name": "join", "start": start, "end": end, "op": n}


def test_a_join_arrives_with_the_last_operation_that_it_waited_for(make: Any) -> None:
    rows = [
        op(0, 1, seq=0, op=0, done=1.5),  # complete before the join
        op(0, 2, seq=1, op=1, done=8.0),  # waited for by the join
        op(0, 3, seq=2, op=2, done=9.0),  # the same, and named by it
        op(0, 4, seq=3, op=3, done=6.0),  # waited for by its own wait, later
        join(0, 5, 10, 2),
        {"rank": 0, "kind": "wait", "start": 11, "op": 3},
        op(1, 2, seq=0), op(1, 6, seq=1), op(1, 7, seq=2), op(1, 30, seq=3),
    ]  # fmt: skip
    assert arrivals(make(rows))[4] == 7


def test_a_join_whose_operations_were_complete_names_the_last(make: Any) -> None:
    rows = [op(0, 1, seq=0, op=0, done=2.0), join(0, 5, 6, 0), op(1, 1.5, seq=0)]
    assert arrivals(make(rows))[1] == 1.5


def test_a_join_is_not_known_where_one_of_its_operations_is_not(make: Any) -> None:
    rows = [op(0, 1, seq=0, op=0, done=6.0), op(0, 1, seq=1, op=1, done=7.0), join(0, 5, 8, 1),
            op(1, 1, seq=1)]  # fmt: skip
    assert np.isnan(arrivals(make(rows))[2])
    assert np.isnan(arrivals(make([join(0, 5, 8, -1)]))[0])
