"""What operations cost on a cluster: own links by operation, and links that take the processor."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Cluster, Link, Trace
from labkit.trace.measures import rank_times
from tests.trace.programs import DEVICE, Program, cluster
from tests.trace.test_engine import makespan, programs, same


def overlapped(seconds: float, size: float, ranks: int = 2) -> Trace:
    """An all-reduce beside compute, then the wait for it."""
    p = Program(ranks)
    for rank in range(ranks):
        op = p.collective(rank, size)
        p.compute(rank, seconds)
        p.wait(rank, op)
    return p.trace()


@pytest.mark.parametrize("cpu", [0.0, 0.25, 0.5, 1.0])
def test_what_takes_the_processor_cannot_be_hidden(cpu: float) -> None:
    on = cluster(0, 10, cpu=cpu)
    # An all-reduce of 4 s beside 6 s of compute: hidden, but for the share that takes cores.
    assert makespan(overlapped(6, 40), on) == 6 + 4 * cpu
    # With nothing to hide behind it lasts what it lasts.
    assert makespan(overlapped(0, 40), on) == 4
    parts = rank_times(overlapped(6, 40).retime(on, "cpu"))
    assert [(t.busy, t.exposed, t.idle) for t in parts] == [(6, 4 * cpu, 0)] * 2


@pytest.mark.parametrize("cpu", [0.0, 0.5, 1.0])
def test_a_message_takes_the_processors_at_both_ends(cpu: float) -> None:
    p = Program(2)
    p.send(0, 1, 30)
    p.compute(0, 5)
    op = p.recv(1, 0, 30)
    p.compute(1, 7)
    p.wait(1, op)
    retimed = p.trace().retime(cluster(1, 10, cpu=cpu), "cpu")
    ends = [max(e.end for e in retimed.events if e.rank == rank) for rank in range(2)]
    assert ends == [5 + 4 * cpu, 7 + 4 * cpu]
    alone = Program(2)
    alone.send(0, 1, 30)
    alone.receive(1, 0, 30)
    assert makespan(alone.trace(), cluster(1, 10, cpu=cpu)) == 4


def test_a_late_rank_pays_its_share_after_the_others_did() -> None:
    p = Program(2)
    for rank in range(2):
        p.compute(rank, 1 + 4 * rank)
        p.reduce(rank, 40)
    assert makespan(p.trace(), cluster(0, 10, cpu=0.5)) == 5 + 4


@given(programs(), st.floats(0, 3), st.floats(0.5, 100), st.floats(0, 1))
def test_no_moment_is_lost_where_links_take_processors(
    p: Program, latency: float, bandwidth: float, cpu: float
) -> None:
    on = cluster(latency, bandwidth, cpu=cpu)
    retimed = p.trace().retime(on, "cpu")
    for t in rank_times(retimed):
        assert t.idle == pytest.approx(0, abs=1e-9)
        assert t.busy == pytest.approx(p.cpu[t.rank])
    path = retimed.critical_path()
    assert path.length == retimed.columns["end"].max()
    free = p.trace().retime(cluster(latency, bandwidth), "cpu")
    assert same(p.trace().retime(cluster(latency, bandwidth, cpu=0.0), "cpu"), free)
    done = retimed.columns["done"]
    assert not (done < retimed.columns["start"]).any()


def test_an_operation_may_have_a_link_of_its_own() -> None:
    slow = Link(2, 5, "reduce-scatter of one's own", cpu=0.5)
    on = Cluster(DEVICE, Link(0, 10), operations={"reduce_scatter": slow})
    p = Program(2)
    for rank in range(2):
        p.reduce(rank, 40)
        p.reduce(rank, 40, name="reduce_scatter")
    assert makespan(p.trace(), on) == 4 + (2 + 20 / 5)
    assert on.collective("reduce_scatter", 40, range(2)) == 6
    assert on.collective("reduce_scatter", 40, [1]) == 0
    assert on.collective("all_reduce", 40, range(2)) == 4
    twice = on.scaled(latency=2, bandwidth=2)
    assert twice.collective("reduce_scatter", 40, range(2)) == 4 + 2
    assert twice.links[0].bandwidth == 20


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Link(0, 1, cpu=1.5), r"link: cpu=1.5: give a share from 0 to 1"),
    (lambda: Link(0, 1, "x", cpu=-0.1), r"link 'x': cpu=-0.1"),
    (lambda: Cluster(DEVICE, Link(0, 1), operations={"all_reduse": Link(0, 1)}),
     r"no cost is known for 'all_reduse'"),
    (lambda: cluster().scaled(bandwidth=0), r"bandwidth=0.0: give bytes a second"),
])  # fmt: skip
def test_figures_that_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def grid(**more: Any) -> Cluster:
    return Cluster(DEVICE, (Link(0, 100), Link(0, 10)), per_node=2, shared=True, **more)


def test_groups_that_leave_a_node_together_share_its_link() -> None:
    # Two nodes of two: groups (0, 2) and (1, 3) cross, (0, 1) and (2, 3) do not.
    p = Program(4, groups=[(0, 2), (1, 3), (0, 1), (2, 3)])
    for rank in range(4):
        p.reduce(rank, 40, group=rank % 2)
    trace = p.trace()
    assert makespan(trace, grid()) == 2 * 40 / 10
    assert makespan(trace, Cluster(DEVICE, grid().links, per_node=2)) == 40 / 10
    for rank in range(4):
        p.reduce(rank, 40, group=2 + rank // 2)
    assert makespan(p.trace(), grid()) == 2 * 40 / 10 + 40 / 100  # inside a node nothing is shared
    assert "shared by all groups that leave it" in trace.retime(grid(), "cpu").about.note


def test_messages_that_leave_a_node_together_share_its_link() -> None:
    p = Program(4)
    for rank in (0, 1):
        p.send(rank, rank + 2, 40)
        p.receive(rank + 2, rank, 40)
    assert makespan(p.trace(), grid()) == 8
    p.send(2, 0, 40)  # the other way is another wire
    p.receive(0, 2, 40)
    assert makespan(p.trace(), grid()) == 8 + 4


def test_a_single_shared_link_is_one_wire_for_all() -> None:
    p = Program(4, groups=[(0, 1), (2, 3)])
    for rank in range(4):
        p.reduce(rank, 40, group=rank // 2)
    assert makespan(p.trace(), cluster(0, 10)) == 4
    assert makespan(p.trace(), Cluster(DEVICE, Link(0, 10), shared=True)) == 8


def test_pods_are_left_as_nodes_are() -> None:
    three = Cluster(DEVICE, [Link(0, 1)] * 3, per_node=2, per_pod=2, shared=True)
    assert three.left((0, 1), (0, 1)) == ()
    assert three.left((0, 2), (0, 2)) == ((1, 0), (1, 1))
    assert three.left((0, 4), (0, 4)) == ((1, 0), (1, 2), (2, 0), (2, 1))
    assert three.left((5,), (0,)) == ((1, 2), (2, 1))
