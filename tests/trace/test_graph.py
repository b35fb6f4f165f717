"""Traces that could not have happened are refused, with rank, operation and place."""

from __future__ import annotations

import pytest

from labkit.trace import Trace
from labkit.trace.graph import compile_graph
from tests.trace.programs import Program, cluster, pipeline


def refused(trace: Trace, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compile_graph(trace)


def test_a_receive_without_its_send() -> None:
    p = Program(2)
    p.compute(0, 1)
    p.compute(1, 1)
    p.receive(1, 0)
    refused(p.trace(), r"rank 1: recv #0 from rank 0, tag 0 of group default at train.py:2: "
                       r"rank 0 never sends it")  # fmt: skip


def test_a_receive_with_another_tag_than_its_send() -> None:
    p = Program(2)
    p.send(0, 1, tag=3)
    p.receive(1, 0, tag=4)
    refused(p.trace(), r"rank 1: recv #0 from rank 0, tag 4 .*rank 0 never sends it")


def test_a_collective_that_one_rank_never_enters() -> None:
    p = Program(3)
    for rank in range(3):
        p.reduce(rank)
        if rank != 1:
            p.reduce(rank)
    refused(p.trace(), r"rank 0: all_reduce #1 of group default at train.py:3: "
                       r"rank 1 never enters it")  # fmt: skip


def test_ranks_that_enter_different_collectives() -> None:
    p = Program(2)
    p.reduce(0)
    p.compute(1, 1)
    p.reduce(1, name="broadcast")
    refused(p.trace(), r"rank 0: all_reduce #0 .* at train.py:1, but rank 1: broadcast #0 .* at "
                       r"train.py:2: they can never meet")  # fmt: skip


def test_two_ranks_that_both_send_first() -> None:
    p = Program(2)
    for rank in range(2):
        p.wait(rank, p.send(rank, 1 - rank))
        p.receive(rank, 1 - rank)
    refused(p.trace(), r"wait for each other, so none can go on: "
                       r"rank 0: the wait for send #0 to rank 1, tag 0 of group default at "
                       r"train.py:2; rank 1: the wait for send #0 to rank 0, .*py:2")  # fmt: skip


def test_a_cycle_of_three() -> None:
    p = Program(3)
    for rank in range(3):
        p.receive(rank, (rank - 1) % 3)
        p.send(rank, (rank + 1) % 3)
    refused(p.trace(), r"wait for each other.*rank 0: .*recv #0 from rank 2.*; rank 1: .*; rank 2")


def test_two_groups_entered_crosswise() -> None:
    p = Program(2, groups=[(0, 1), (0, 1)])
    for rank in range(2):
        for group in (rank, 1 - rank):
            p.reduce(rank, group=group)
    refused(p.trace(), r"rank 0: .*all_reduce #0 of group default.*rank 1: .*of group group 1")


def test_only_those_in_the_cycle_are_named() -> None:
    p = Program(4)
    p.compute(2, 1)
    p.reduce(3)
    for rank in range(3):
        if rank < 2:
            p.receive(rank, 1 - rank)
            p.send(rank, 1 - rank)
        p.reduce(rank)
    with pytest.raises(ValueError, match="wait for each other") as error:
        compile_graph(p.trace())
    assert "rank 0: the wait" in str(error.value)
    assert "rank 1: the wait" in str(error.value)
    assert "rank 3" not in str(error.value)


def test_a_wait_without_its_operation() -> None:
    p = Program(1)
    p.compute(0, 1)
    p.wait(0, 7)
    refused(p.trace(), r"rank 0: the wait for operation 7 at train.py:2: .*not in this trace")
    p = Program(1)
    p.wait(0, -1)
    refused(p.trace(), r"rank 0: the wait for operation None at train.py:1")


def test_a_rank_that_left_nothing() -> None:
    p = Program(3)
    p.compute(0, 1)
    p.compute(2, 1)
    refused(p.trace(), r"rank 1 left no rows: it died")


def test_a_receive_from_whoever_comes_that_nobody_answered() -> None:
    p = Program(2)
    p.compute(0, 1)
    p.row(1, "recv", "recv", group=0, seq=-1, peer=-1, tag=0, op=0)
    refused(p.trace(), r"rank 1: recv .*its group or its number is not known")


def test_what_only_looks_like_trouble_compiles() -> None:
    compile_graph(pipeline("1F1B", 4, 8, 1, 2))
    p = Program(2)
    for rank in range(2):  # both receive first, but wait after they have sent
        op = p.recv(rank, 1 - rank)
        p.send(rank, 1 - rank)
        p.wait(rank, op)
        p.wait(rank, op)  # again
    compile_graph(p.trace())
    empty = Program(1)
    empty.row(0, "memory", "weights")
    compile_graph(empty.trace())


def test_a_trace_of_marks_alone_takes_no_time() -> None:
    p = Program(1)
    p.row(0, "memory", "weights")
    p.row(0, "span", "empty")
    assert p.trace().retime(cluster(), "cpu").columns["end"].tolist() == [0, 0]
