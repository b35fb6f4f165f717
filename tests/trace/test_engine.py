"""Retimed by hand: what the model says, on programs small enough to work out on paper."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace import Cluster, Link, Trace
from labkit.trace.events import COLUMNS, KINDS
from labkit.trace.measures import rank_times
from tests.trace.programs import DEVICE, Program, cluster, pipeline


def makespan(trace: Trace, on: Cluster, **options: Any) -> float:
    return float(trace.retime(on, "cpu", **options).columns["end"].max())


def data_parallel(mode: str, layers: int, seconds: float, size: float, ranks: int = 4) -> Trace:
    """A backward of `layers`, each with an all-reduce of `size` bytes."""
    p = Program(ranks)
    for rank in range(ranks):
        ops = []
        for _ in range(layers):
            p.compute(rank, seconds, "backward")
            if mode != "after":
                ops.append(p.collective(rank, size))
            if mode == "blocking":
                p.wait(rank, ops.pop())
        if mode == "after":
            ops = [p.collective(rank, size) for _ in range(layers)]
        for op in ops:
            p.wait(rank, op)
    return p.trace()


# Gradients and networks -----------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_all_reduce_after_the_backward(ranks: int) -> None:
    latency, bandwidth, size = 0.25, 1000.0, 6000
    cost = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * size / bandwidth
    trace = data_parallel("after", 1, 5.0, size, ranks)
    assert makespan(trace, cluster(latency, bandwidth)) == pytest.approx(5 + cost, rel=1e-12)


@pytest.mark.parametrize("cost", [0.25, 1.0, 4.0])
def test_overlapped_buckets_hide_all_but_the_last_or_all_but_the_first(cost: float) -> None:
    layers, seconds = 8, 1.0
    on = cluster(bandwidth=1.5 * 400 / cost)  # an all-reduce of 400 bytes on 4 ranks takes `cost`
    hidden = seconds + max((layers - 1) * seconds, (layers - 1) * cost) + cost
    both = layers * (seconds + cost)
    found = {
        mode: makespan(data_parallel(mode, layers, seconds, 400), on)
        for mode in ("overlapped", "after", "blocking")
    }
    assert found == pytest.approx({"overlapped": hidden, "after": both, "blocking": both})


def test_a_late_rank_is_skew_and_what_follows_is_transfer() -> None:
    p = Program(2)
    for rank in range(2):
        p.compute(rank, 1 + 4 * rank)
        p.reduce(rank, 30)
        p.compute(rank, 1)
    early, late = rank_times(p.trace().retime(cluster(0.5, 10), "cpu"))
    assert (early.busy, early.skew, early.transfer) == (2, 4, 4)  # 2 × 0.5 + 30/10
    assert (late.busy, late.skew, late.transfer) == (6, 0, 4)
    assert early.elapsed == late.elapsed == 10
    assert early.idle == late.idle == 0


def test_a_groups_collectives_follow_each_other_and_groups_do_not_wait() -> None:
    p = Program(4, groups=[(0, 1), (2, 3)])
    for rank in range(4):
        ops = [p.collective(rank, 10, group=rank // 2) for _ in range(3)]
        for op in reversed(ops):
            p.wait(rank, op)
    retimed = p.trace().retime(cluster(bandwidth=10), "cpu")
    done = [e.done for e in retimed.events if e.kind == "collective"]
    assert done == [1, 2, 3] * 4
    assert [e.duration for e in retimed.events if e.kind == "wait"] == [3, 0, 0] * 4


def test_an_all_reduce_that_nobody_waits_for_holds_nobody_but_the_next_one() -> None:
    p = Program(2)
    for rank in range(2):
        p.collective(rank, 100)
        p.compute(rank, 3)
        p.reduce(rank, 20)
    assert makespan(p.trace(), cluster(bandwidth=10)) == 10 + 2


# Messages -------------------------------------------------------------------------------------


def test_a_message_arrives_after_latency_and_bytes_over_bandwidth() -> None:
    p = Program(2)
    p.compute(0, 2)
    p.send(0, 1, 30)
    p.compute(0, 7)
    p.receive(1, 0, 30)
    events = p.trace().retime(cluster(0.5, 10), "cpu").events
    assert [(e.kind, e.start, e.end) for e in events] == [
        ("compute", 0, 2), ("send", 2, 2), ("compute", 2, 9), ("recv", 0, 0), ("wait", 0, 5.5),
    ]  # fmt: skip
    assert [e.done for e in events if e.done is not None] == [2, 5.5]


def test_a_blocking_send_ends_when_its_receive_is_posted() -> None:
    p = Program(2)
    p.wait(0, p.send(0, 1, 30))
    p.compute(0, 1)
    p.compute(1, 20)
    p.receive(1, 0, 30)
    p.compute(1, 1)
    retimed = p.trace().retime(cluster(0.5, 10), "cpu")
    # The message left at 0 and was there at 3.5, so the receiver does not wait either.
    assert [e.end for e in retimed.events if e.rank == 0] == [0, 20, 21]
    assert [e.end for e in retimed.events if e.rank == 1] == [20, 20, 20, 21]
    assert [e.done for e in retimed.events if e.kind in ("send", "recv")] == [20, 20]


def test_messages_of_a_pair_share_its_link_and_latencies_overlap() -> None:
    p = Program(3)
    for _ in range(3):
        p.send(0, 1, 20)
        p.send(1, 0, 10)
    p.send(0, 2, 20)
    for source, rank, size in ((0, 1, 20), (1, 0, 10)):
        for _ in range(3):
            p.receive(rank, source, size)
    p.receive(2, 0, 20)
    arrived: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for e in p.trace().retime(cluster(100, 10), "cpu").events:
        if e.kind == "recv":
            assert e.done is not None
            arrived[e.rank].append(e.done)
    assert arrived == {1: [102, 104, 106], 0: [101, 102, 103], 2: [102]}


def test_each_pair_has_its_link_and_an_operation_its_base() -> None:
    near, far = Link(1, 10, base=0.5), Link(100, 1, base=50)
    p = Program(3)
    for target in (1, 2):
        p.send(0, target, 10)
        p.receive(target, 0, 10)
    retimed = p.trace().retime(Cluster(DEVICE, (near, far), per_node=2), "cpu")
    assert [e.done for e in retimed.events if e.kind == "recv"] == [2.5, 160]


def test_a_ring_is_as_slow_as_its_largest_piece() -> None:
    p = Program(2)
    for rank in range(2):
        p.reduce(rank, 10 + 20 * rank, name="all_gather")
    assert makespan(p.trace(), cluster(0, 1)) == 30


def test_receives_may_be_posted_in_another_order_than_their_sends() -> None:
    p = Program(2)
    p.send(0, 1, 10, tag=0)
    p.send(0, 1, 10, tag=1)
    p.receive(1, 0, 10, tag=1)
    p.receive(1, 0, 10, tag=0)
    waits = [e for e in p.trace().retime(cluster(0, 10), "cpu").events if e.kind == "wait"]
    assert [w.end for w in waits] == [2, 2]


def test_a_send_that_nobody_receives_is_possible_while_nobody_waits_for_it() -> None:
    p = Program(2)
    op = p.send(0, 1, 10)
    p.compute(0, 1)
    p.compute(1, 1)
    assert makespan(p.trace(), cluster()) == 1
    assert p.trace().retime(cluster(), "cpu").events[0].done is None
    p.wait(0, op)
    with pytest.raises(ValueError, match=r"rank 0: send #0 to rank 1, .*rank 1 never receives it"):
        p.trace().retime(cluster(), "cpu")


@pytest.mark.parametrize("m", [4, 8, 12])
@pytest.mark.parametrize("c", [0.0, 0.25, 1.0])
def test_pipelines_over_a_link(m: int, c: float) -> None:
    p, forward, backward = 4, 1.0, 2.0
    ideal = (m + p - 1) * (forward + backward)
    gpipe = makespan(pipeline("GPipe", p, m, forward, backward), cluster(c))
    assert gpipe == pytest.approx(ideal + 2 * (p - 1) * c)
    one = makespan(pipeline("1F1B", p, m, forward, backward), cluster(c))
    assert one == pytest.approx(ideal + (2 * (p - 1) * m / p + 2 * (p - 2)) * c)
    if c:
        assert one > ideal + 2 * (p - 1) * c + c  # as if 1F1B paid what GPipe pays


# Zero Bubble Pipeline Parallelism (Qi et al. 2023), table 5: 1F1B on 8 stages, times in ms.
ZERO_BUBBLE = [
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431), (32, 18.513, 18.086, 9.331, 0.626, 0.1985),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240), (24, 29.718, 29.444, 19.927, 0.527, 0.2347),
    (32, 29.802, 29.428, 19.530, 0.577, 0.1898), (64, 29.935, 29.621, 19.388, 0.535, 0.1091),
]  # fmt: skip


@pytest.mark.parametrize(("m", "f", "i", "w", "transfer", "bubble"), ZERO_BUBBLE)
def test_1f1b_as_published(
    m: int, f: float, i: float, w: float, transfer: float, bubble: float
) -> None:
    retimed = pipeline("1F1B", 8, m, f, i + w).retime(cluster(transfer), "cpu")
    c = retimed.columns
    busy = c["kind"] == KINDS.index("compute")
    of_rank = [c["rank"] == rank for rank in range(8)]
    cost = max(c["end"][busy & r].max() - c["start"][busy & r].min() for r in of_rank)
    assert (cost - m * (f + i + w)) / cost == pytest.approx(bubble, abs=1e-4)


# What the result is ---------------------------------------------------------------------------


def test_groups_counted_as_larger_cost_more_and_nothing_else_changes() -> None:
    p = Program(4, groups=[range(4), (0, 2), (1, 3)])
    for rank in range(4):
        p.compute(rank, 1)
        p.reduce(rank, 400)
        p.reduce(rank, 400, group=1 + rank % 2)
    trace, on = p.trace(), cluster(1, 100)
    assert makespan(trace, on) == 1 + (6 + 6) + (2 + 4)
    assert makespan(trace, on, group_size={"default": 1000}) == pytest.approx(
        1 + (1998 + 2 * 999 / 1000 * 4) + (2 + 4)
    )
    both = {"group 1": 10, "group 2": 1}
    assert makespan(trace, on, group_size=both) == pytest.approx(1 + 12 + (18 + 1.8 * 4))
    retimed = trace.retime(on, "cpu", group_size={"group 1": 10})
    assert "group group 1 counted as 10 ranks" in retimed.about.note
    assert retimed.about.ranks == 4


def test_a_group_counted_as_larger_spreads_over_nodes_as_its_ranks_do() -> None:
    near, far = Link(1, 1e9), Link(100, 1e9)
    on = Cluster(DEVICE, (near, far), per_node=8)
    p = Program(4, groups=[range(4), (0, 2), (1, 3)])
    for rank in range(4):
        p.reduce(rank, group=1 + rank % 2)
    trace = p.trace()
    assert makespan(trace, on) == 2
    # Every other rank: four of them fill a node of eight, a fifth is the first of the next.
    assert makespan(trace, on, group_size={"group 1": 4, "group 2": 4}) == 6
    assert makespan(trace, on, group_size={"group 1": 5, "group 2": 4}) == 8 * 100


def test_an_all_gather_of_a_larger_group_gathers_the_same_tensor() -> None:
    p = Program(4)
    for rank in range(4):
        p.reduce(rank, 100, name="all_gather")
    assert makespan(p.trace(), cluster(0, 1)) == 300
    assert makespan(p.trace(), cluster(0, 1), group_size={"default": 400}) == pytest.approx(399)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"data": 8}, r"no group is called 'data' \(default\)"),
        ({"default": 0}, r"group_size=\{'default': 0\}: give a whole number, 1 or more"),
        ({"default": 2.5}, r"group_size=\{'default': 2.5\}"),
    ],
)
def test_group_sizes_that_cannot_be(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data_parallel("after", 1, 1, 1).retime(cluster(), "cpu", sizes)


@pytest.mark.parametrize("waited_later", [False, True])
def test_the_end_of_a_backward_waits_for_what_no_wait_asks_for(waited_later: bool) -> None:
    p = Program(2, groups=[(0, 1), (0, 1)])
    for rank in range(2):
        for _ in range(2):
            long = p.collective(rank, 30, group=1)
            p.compute(rank, 1)
            last = p.collective(rank, 10)
            p.row(rank, "join", "join", op=last)
            if waited_later:
                p.wait(rank, long)
    holds = [e for e in p.trace().retime(cluster(0, 1), "cpu").events if e.kind in ("wait", "join")]
    ends = [(e.kind, e.end) for e in holds if e.rank == 0]
    if waited_later:
        assert ends == [("join", 11), ("wait", 30), ("join", 41), ("wait", 60)]
    else:
        assert ends == [("join", 30), ("join", 60)]


def test_another_threads_operation_is_posted_where_the_main_thread_was() -> None:
    p = Program(2)
    for rank in range(2):
        op = p.collective(rank, 1, thread=1, start=0.25, end=0.3)
        p.rows[rank].append(p.rows[rank].pop() | {"kind": "collective"})
        p.compute(rank, 8)
        p.rows[rank][-1] |= {"start": 0, "end": 1}
        p.wait(rank, op)
    events = p.trace().retime(cluster(0, 1), "cpu").events
    # A quarter into 8 seconds, and one second long: hidden behind the compute.
    assert [(e.start, e.done) for e in events if e.kind == "collective"] == [(2, 3)] * 2
    assert [e.end for e in events if e.kind == "wait"] == [8] * 2


def test_what_another_thread_issues_during_a_wait_is_posted_when_that_begins() -> None:
    p = Program(2, groups=[(0, 1), (0, 1)])
    for rank in range(2):
        first = p.collective(rank, 8, group=0)
        second = p.collective(rank, 1, group=1, thread=1, start=1.5, end=1.5)
        p.compute(rank, 1)
        p.rows[rank][-1] |= {"start": 0.5, "end": 1}
        p.wait(rank, first)
        p.cpu[rank] += 4
        p.rows[rank][-1] |= {"start": 1, "end": 2, "cpu_end": p.cpu[rank]}
        p.wait(rank, second)
    events = p.trace().retime(cluster(0, 1), "cpu").events
    assert [(e.start, e.done) for e in events if e.thread == 1] == [(1, 2)] * 2
    assert max(e.end for e in events) == 8 + 4


def test_marks_and_other_threads_stay_where_they_were() -> None:
    p = Program(1)
    p.compute(0, 8)
    p.compute(0, 2)
    mark = {"rank": 0, "kind": "memory", "name": "weights", "start": 0.25, "bytes": 7}
    p.rows[0].insert(0, mark)
    p.rows[0].append({"rank": 0, "kind": "span", "name": "load", "thread": 1, "start": 0.5,
                      "end": 1.5})  # fmt: skip
    events = p.trace().retime(cluster(), "cpu").events
    assert [(e.name, e.start, e.end) for e in events if e.kind != "compute"] == [
        ("weights", 2, 2), ("load", 4, 9),
    ]  # fmt: skip


def test_spans_and_steps_close_around_their_rows() -> None:
    p = Program(2)
    for rank in range(2):
        for step in range(2):
            p.compute(rank, 1, "forward")
            p.span(rank, "forward", 1)
            p.reduce(rank, 10)
            p.compute(rank, 2)
            p.span(rank, "step", 5, step=step)
    retimed = p.trace().retime(cluster(0, 5), "cpu")
    assert [(s.start, s.end) for s in retimed.steps] == [(0, 5), (5, 10)]
    inner = [e for e in retimed.events if e.kind == "span" and e.name == "forward"]
    assert [(e.start, e.end) for e in inner] == [(0, 1), (5, 6)] * 2
    assert len(retimed.step(1)) == len(p.trace()) // 2


def test_all_but_times_is_kept_and_the_clock_says_modelled() -> None:
    p = Program(2)
    for rank in range(2):
        p.compute(rank, 1)
        p.reduce(rank, 400)
        p.span(rank, "step", 3, step=7)
    trace = p.trace(error=1e-4, cores=1, backend="gloo")
    retimed = trace.retime(cluster(2e-6, 0.5e9, name="wire"), "cpu")
    for name in COLUMNS:
        if name not in ("start", "end", "done"):
            assert np.array_equal(retimed.columns[name], trace.columns[name]), name
    about = retimed.about
    assert (about.clock, about.error, about.cores) == ("modelled", 0, 0)
    assert about.note == (
        "on test (wire: 2.00 µs, 500 MB/s); compute: CPU time as recorded; "
        "links are not shared between groups"
    )


def test_a_retimed_trace_retimes_as_what_it_was_made_from() -> None:
    trace = pipeline("1F1B", 4, 8, 1, 2)
    slow, fast = cluster(3, 1), cluster(0.1, 100)
    there_and_back = trace.retime(slow, "cpu").retime(fast, "flops").retime(slow, "cpu")
    assert same(there_and_back, trace.retime(slow, "cpu"))
    assert not same(trace.retime(fast, "cpu"), trace.retime(slow, "cpu"))


def test_a_name_is_no_cluster() -> None:
    with pytest.raises(TypeError, match=r"cluster='H100': .*CLUSTERS\['H100'\]"):
        data_parallel("after", 1, 1, 1).retime("H100")  # type: ignore[arg-type]


def same(a: Trace, b: Trace) -> bool:
    """Equal bits in all times."""
    return all(a.columns[n].tobytes() == b.columns[n].tobytes() for n in ("start", "end", "done"))


def test_calls_cost_their_cpu_time_after_what_they_wait_for() -> None:
    p = Program(2)
    for rank in range(2):
        op = p.collective(rank, 10)
        p.cpu[rank] += 2  # issuing takes two seconds, coming back from the wait three
        p.rows[rank][-1]["cpu_end"] = p.cpu[rank]
        p.wait(rank, op)
        p.cpu[rank] += 3
        p.rows[rank][-1]["cpu_end"] = p.cpu[rank]
    assert makespan(p.trace(), cluster(0, 1)) == 10 + 3
    assert makespan(p.trace(), cluster(0, 10)) == 2 + 3


# Laws -----------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs that cannot hang: everybody enters the same events in the same order."""
    ranks = draw(st.integers(1, 4))
    p = Program(ranks)
    size = st.integers(0, 50)
    seconds = st.floats(0, 5)
    open_ops: list[list[int]] = [[] for _ in range(ranks)]
    for _ in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(("compute", "reduce", "message", "wait")))
        payload = draw(size)
        if what == "compute":
            for rank in range(ranks):
                p.compute(rank, draw(seconds))
        elif what == "reduce":
            for rank in range(ranks):
                open_ops[rank].append(p.collective(rank, payload))
        elif what == "message" and ranks > 1:
            source = draw(st.integers(0, ranks - 1))
            target = (source + draw(st.integers(1, ranks - 1))) % ranks
            op = p.send(source, target, payload)
            if draw(st.booleans()):
                open_ops[source].append(op)
            open_ops[target].append(p.recv(target, source, payload))
        elif what == "wait":
            for rank, ops in enumerate(open_ops):
                for op in ops:
                    p.wait(rank, op)
                ops.clear()
    for rank in range(ranks):
        p.compute(rank, 0.5)
    return p


@given(programs(), st.floats(0, 3), st.floats(0.5, 100))
def test_ranks_that_take_turns_come_to_the_same_times(
    p: Program, latency: float, bandwidth: float
) -> None:
    events = p.trace().retime(cluster(latency, bandwidth), "cpu").events
    expected = take_turns(p, latency, bandwidth)
    for rank in range(p.ranks):
        ends = [e.end for e in events if e.rank == rank]
        assert ends == pytest.approx(expected[rank], abs=1e-9)


def take_turns(p: Program, latency: float, bandwidth: float) -> list[list[float]]:
    """The same rules, told as a play: each rank goes on until it has to wait, then the next."""
    ends: list[list[float]] = [[] for _ in range(p.ranks)]
    now = [0.0] * p.ranks
    entered: dict[Any, dict[int, float]] = defaultdict(dict)  # operation -> rank -> when
    what: dict[Any, dict[str, Any]] = {}
    mine: dict[Any, Any] = {}  # (rank, number) -> operation

    def complete(key: Any, kind: str) -> float | None:
        """When the wait for an operation may end; None: not to be said yet."""
        size = what[key]["bytes"] / bandwidth
        if key[0] == "collective":
            before = complete((*key[:-1], key[-1] - 1), kind) if key[-1] else 0.0
            if before is None or len(entered[key]) < p.ranks:
                return None
            steps, n = 2 * (p.ranks - 1), p.ranks
            return max(before, *entered[key].values()) + steps * latency + steps / n * size
        source, target = key[1:3]
        if kind == "send":
            return entered[key].get(target)
        free = left(key, source)
        return None if free is None else free + latency

    def left(key: Any, source: int) -> float | None:
        """When the message's last byte has left, after all that were sent before it."""
        if source not in entered[key]:
            return None
        before = left((*key[:-1], key[-1] - 1), source) if key[-1] else 0.0
        assert before is not None
        return max(before, entered[key][source]) + what[key]["bytes"] / bandwidth

    while any(len(done) < len(p.rows[rank]) for rank, done in enumerate(ends)):
        for rank in range(p.ranks):
            for row in p.rows[rank][len(ends[rank]) :]:
                kind = row["kind"]
                if kind == "wait":
                    key, kind = mine[rank, row["op"]]
                    end = complete(key, kind)
                    if end is None:
                        break
                    now[rank] = max(now[rank], end)
                elif kind == "compute":
                    now[rank] += row["cpu_end"] - row["cpu_start"]
                else:
                    ways = {"send": (rank, row.get("peer")), "recv": (row.get("peer"), rank)}
                    key = ("collective" if kind == "collective" else "message",
                           *ways.get(kind, ()), row["seq"])  # fmt: skip
                    entered[key][rank], what[key] = now[rank], row
                    mine[rank, row["op"]] = key, kind
                ends[rank].append(now[rank])
    return ends


@given(programs(), st.floats(0, 3), st.floats(0.5, 100))
def test_no_run_is_shorter_than_its_longest_compute(
    p: Program, latency: float, bandwidth: float
) -> None:
    longest = max(p.cpu.values())
    retimed = p.trace().retime(cluster(latency, bandwidth), "cpu")
    assert retimed.columns["end"].max() >= longest * (1 - 1e-12)
    for times in rank_times(retimed):
        # No moment of a rank is lost, and none counts twice.
        assert times.idle == pytest.approx(0, abs=1e-9)
        assert times.busy == pytest.approx(p.cpu[times.rank])
    ops = np.isfinite(retimed.columns["done"])
    assert (retimed.columns["done"][ops] >= retimed.columns["start"][ops]).all()


@given(programs(), st.floats(0, 3), st.floats(0.5, 100), st.floats(0, 2), st.floats(1, 9))
def test_a_worse_network_is_never_faster(
    p: Program, latency: float, bandwidth: float, later: float, thinner: float
) -> None:
    trace = p.trace()
    good = trace.retime(cluster(latency, bandwidth), "cpu")
    bad = trace.retime(cluster(latency + later, bandwidth / thinner), "cpu")
    assert (bad.columns["end"] >= good.columns["end"]).all()


@given(programs(), st.floats(0, 3), st.floats(0.5, 100))
def test_the_same_input_gives_the_same_bits(p: Program, latency: float, bandwidth: float) -> None:
    on = cluster(latency, bandwidth)
    trace = p.trace()
    assert same(trace.retime(on, "cpu"), trace.retime(on, "cpu"))
    assert same(trace.retime(on, "cpu"), p.trace().retime(on, "cpu"))
