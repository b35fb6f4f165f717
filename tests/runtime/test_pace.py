"""Paced runs: their schedule on a clock of the test's own, and their step times on one core.

The schedule has to be the engine's, to the nanosecond. What runs on one core is timed: the one
exception to "no timed tests". A claim of 15 % is tested as such, the median of three runs counts,
and a busy machine gets a second and a third chance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit import span
from labkit.runtime.pace import BEHIND, Pace, Paced, note
from labkit.runtime.posts import Key
from labkit.trace import CLUSTERS, DEVICES, Cluster, Device, Group, Link, Trace
from labkit.trace.log import Log
from tests.trace.programs import DEVICE, Program, cluster

ROOT = Path(__file__).parents[2]
MS = 1_000_000  # ns


class Table:
    """What ranks tell each other, where all of them are in one process."""

    def __init__(self) -> None:
        self.rows: dict[Key, tuple[int, int]] = {}

    def write(self, key: Key, when: int, size: int = 0) -> None:
        self.rows[key] = (when, size)

    def get(self, key: Key) -> tuple[int, int] | None:
        return self.rows.get(key)

    def drop(self, key: Key) -> None:
        """Others may still want it."""


class Rank:
    """A pace on a clock of its own, on which only sleep takes time."""

    def __init__(self, rank: int, told: Table, on: Cluster, groups: list[Group], **more: Any):
        self.now = 0
        self.posted: dict[int, Mapping[str, Any]] = {}
        self.log = Log(rank)
        for group in groups:
            self.log.group(group)
        self.pace = Pace(self.log, on, told, clock=lambda: self.now, sleep=self.sleep, **more)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += max(1, round(seconds * 1e9))

    def compute(self, seconds: float) -> None:
        self.log.flops += round(seconds * 1e12)


def alone(on: Cluster | None = None, **more: Any) -> Rank:
    return Rank(0, Table(), on or cluster(), [Group("0", "default", (0,))], **more)


# The engine's schedule -------------------------------------------------------------------------


def follow(program: Program, on: Cluster) -> dict[int, list[float]]:
    """Run a program on paces: when each row of each rank was over, in seconds."""
    told = Table()
    groups = [Group(str(i), f"group {i}", tuple(g)) for i, g in enumerate(program.groups)]
    ranks = [Rank(r, told, on, groups) for r in range(program.ranks)]
    left = {r: list(program.rows[r]) for r in range(program.ranks)}
    ends: dict[int, list[float]] = defaultdict(list)
    while any(left.values()):
        before = sum(map(len, left.values()))
        for r, rank in enumerate(ranks):
            while left[r] and step(rank, left[r][0]):
                ends[r].append(rank.now * 1e-9)
                left[r].pop(0)
        assert sum(map(len, left.values())) < before, "nobody can go on"
    for r, rank in enumerate(ranks):
        rank.pace.settle()
        assert rank.pace.finish().late == 0
        for row in program.rows[r]:
            if row["kind"] in ("send", "recv", "collective") and row["op"] in rank.log.done:
                row["done"] = rank.log.done[row["op"]] * 1e-9
    return ends


def step(rank: Rank, row: dict[str, Any]) -> bool:
    """Do what a row says; False: it cannot be over yet."""
    pace = rank.pace
    if row["kind"] == "compute":
        seconds = row.get("tags", {}).get("seconds")
        if seconds is None:
            rank.compute((row["flops_end"] - row["flops_start"]) / 1e12)
            pace.settle()
        else:
            pace.open(row["name"], row["tags"])
            pace.close(row["name"])
    elif row["kind"] == "wait":
        pace.settle()
        if pace.when(row["op"]) is None:
            return False
        pace.hold(row["op"], rank.posted[row["op"]])
    elif row["kind"] != "span":
        pace.settle()
        rank.posted[row["op"]] = row
        pace.post(row["kind"], row["name"], row)
    return True


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Both ends of everything are posted in one order that all ranks share, so none can hang."""
    ranks = draw(st.integers(2, 4))
    p = Program(ranks, [range(ranks), range(2), range(ranks - 1, ranks - 3, -1)])
    for rank in range(ranks):
        p.compute(rank, 0)
    pending: list[tuple[int, int]] = []
    seconds = st.sampled_from([0.0, 0.02, 0.03, 0.1])
    sizes = st.sampled_from([0, 1000, 50_000])
    for _ in range(draw(st.integers(1, 25))):
        what = draw(st.sampled_from(["flops", "set", "message", "collective", "wait"]))
        rank = draw(st.integers(0, ranks - 1))
        if what == "flops":
            p.compute(rank, draw(seconds))
        elif what == "set":
            length = draw(seconds)
            p.compute(rank, 0, "forward", tags={"seconds": length})
            p.span(rank, "forward", 1, seconds=length)
        elif what == "message":
            other = (rank + draw(st.integers(1, ranks - 1))) % ranks
            size, tag = draw(sizes), draw(st.integers(0, 1))
            pending.append((rank, p.send(rank, other, size, tag)))
            pending.append((other, p.recv(other, rank, size, tag)))
        elif what == "collective":
            group, name = (
                draw(st.integers(0, 2)),
                draw(st.sampled_from(["all_reduce", "broadcast"])),
            )
            for r in p.groups[group]:
                op = p.collective(r, draw(sizes), name, group)
                pending.append((r, op))
        elif pending:
            p.wait(*pending.pop(draw(st.integers(0, len(pending) - 1))))
    return p


@settings(max_examples=200)
@given(programs(), st.sampled_from([0.0, 0.01]), st.sampled_from([1e6, float("inf")]))
def test_the_schedule_is_the_engines(p: Program, latency: float, bandwidth: float) -> None:
    near = Link(latency, bandwidth, base=0.001)
    on = Cluster(DEVICE, (near, Link(2 * latency, bandwidth / 3)), per_node=2)
    ends = follow(p, on)
    modelled = p.trace(clock="paced").retime(on, "set")
    for rank in range(p.ranks):
        rows = [e for e in modelled.events if e.rank == rank]
        assert [e.end for e in rows] == pytest.approx(ends[rank], abs=1e-7)
        done = [row.get("done") for row in p.rows[rank]]
        for event, seen in zip(rows, done, strict=True):
            if seen is not None:
                assert event.done == pytest.approx(seen, abs=1e-7)


def test_messages_share_a_link_and_collectives_of_a_group_follow_each_other() -> None:
    p = Program(2)
    ops = [p.send(0, 1, 1000) for _ in range(2)]
    waits = [p.recv(1, 0, 1000) for _ in range(2)]
    for rank in range(2):
        for op in (waits, ops)[rank == 0]:
            p.wait(rank, op)
        for op in [p.collective(rank, 500) for _ in range(2)]:
            p.wait(rank, op)
    ends = follow(p, cluster(0.25, 1000))
    # Each message fills the link for a second; each all-reduce takes 2 latencies and 0.5 s.
    assert ends[1][2:4] == pytest.approx([1.25, 2.25])
    assert ends[0][2:4] == [0, 0]
    assert ends[1][-2:] == pytest.approx([3.25, 4.25])


# Spans -----------------------------------------------------------------------------------------


def test_a_span_lasts_what_it_says_whatever_it_computes() -> None:
    rank = alone()
    rank.pace.open("forward", {"seconds": 0.02})
    rank.compute(5)
    rank.now += 3 * MS
    rank.pace.close("forward")
    assert rank.now == 20 * MS
    rank.compute(0.5)
    rank.pace.settle()
    assert rank.now == 520 * MS


def test_a_slow_rank_computes_for_longer() -> None:
    rank = alone(slow=1.5)
    rank.pace.open("forward", {"seconds": 0.02})
    rank.pace.close("forward")
    rank.compute(0.02)
    rank.pace.settle()
    assert rank.now == 60 * MS


def test_seconds_are_a_spans_own_and_not_those_of_what_lies_in_it() -> None:
    rank = alone(cluster(0.25, 1.0))
    rank.pace.open("backward", {"seconds": 1.0})
    rank.pace.open("layer", {"seconds": 0.5})
    rank.pace.open("named only", {})
    rank.now += 100 * MS
    rank.pace.close("named only")
    rank.pace.close("layer")
    assert rank.now == 500 * MS
    fields = {"op": 0, "group": 0, "seq": 0, "bytes": 0}
    rank.pace.settle()
    rank.pace.post("collective", "all_reduce", fields)
    rank.pace.hold(0, fields)  # a group of one: no time
    rank.pace.close("backward")
    assert rank.now == 1500 * MS


def test_a_wait_in_a_span_makes_it_longer() -> None:
    told = Table()
    ranks = [Rank(r, told, cluster(0.25, 1.0), [Group("0", "all", (0, 1))]) for r in range(2)]
    fields = {"op": 0, "group": 0, "seq": 0, "bytes": 0}
    for rank, late in zip(ranks, (0, 1), strict=True):
        rank.compute(late)
        rank.pace.settle()
        rank.pace.open("step", {"seconds": 1.0})
        rank.pace.settle()
        rank.pace.post("collective", "barrier", fields)
    for rank in ranks:
        rank.pace.hold(0, fields)
        assert rank.now == 1500 * MS
        rank.pace.close("step")
        assert rank.now == 2500 * MS


def test_spans_that_cross() -> None:
    rank = alone()
    rank.pace.open("a", {"seconds": 1.0})
    rank.pace.open("b", {"seconds": 0.5})
    rank.pace.close("a")
    rank.pace.close("b")
    rank.pace.close("never opened")
    assert rank.now == 1500 * MS


def test_rest_sleeps_early_and_once() -> None:
    rank = alone()
    rank.pace.open("backward a", {"seconds": 1.0})
    rank.pace.rest("another")
    assert rank.now == 0
    rank.pace.rest("backward a")
    assert rank.now == 1000 * MS
    rank.now += 2 * MS
    rank.pace.close("backward a")
    assert rank.now == 1002 * MS
    rank.pace.open("next", {"seconds": 1.0})
    rank.pace.close("next")
    assert rank.now == 2000 * MS  # the two milliseconds were made up for


def test_a_little_late_is_made_up_for_and_more_is_told() -> None:
    rank = alone()
    for more in (BEHIND, BEHIND + MS):
        rank.pace.open("forward", {"seconds": 0.02})
        rank.now += 20 * MS + more
        rank.pace.close("forward")
    assert rank.now == 40 * MS + 2 * BEHIND + MS
    rank.pace.open("forward", {"seconds": 0.02})
    rank.pace.close("forward")
    assert rank.now == 60 * MS + 2 * BEHIND + MS
    told = rank.pace.finish()
    assert (told.late, told.shortest) == (1, 0.02)
    assert told.behind == pytest.approx((2 * BEHIND + MS) * 1e-9)


def test_what_counts_no_flops_takes_the_time_that_it_takes() -> None:
    rank = alone()
    rank.now += 500 * MS
    rank.pace.settle()
    rank.pace.open("forward", {"seconds": 0.02})
    rank.pace.close("forward")
    assert rank.now == 520 * MS
    assert rank.pace.finish().late == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "soon", True, None])
def test_seconds_that_are_no_time(seconds: object) -> None:
    with pytest.raises(ValueError, match=r"span 'forward': seconds=.*: give seconds, 0 or more"):
        alone().pace.open("forward", {"seconds": seconds})


def test_what_is_noted() -> None:
    on = cluster(0.01, 2e9, name="slow")
    assert note(on, [Paced()]) == (
        "on test (slow: 10.0 ms, 2 GB/s); compute: as the spans say, elsewhere FLOPs"
    )
    assert "spans of 1 ms: pacing holds from 20 ms up" in note(on, [Paced(shortest=0.001), Paced()])
    assert "pacing holds" not in note(on, [Paced(shortest=0.02)])
    assert "slower than the pace once, 15 ms" in note(on, [Paced(1, 0.015), Paced()])
    assert "slower than the pace 3 times, 40 ms" in note(on, [Paced(1, 0.015), Paced(2, 0.04)])


# Real ranks ------------------------------------------------------------------------------------

LESSON = Cluster(DEVICE, Link(0.05, 1e12, "far"), name="lesson")


def paced(fn: Callable[[], Any], ranks: int = 2, on: Cluster = LESSON) -> labkit.Run:
    return labkit.launch(fn, ranks=ranks, threads=1, seed=0, timeout=60, pace=on)


def agrees(trace: Trace, on: Cluster = LESSON) -> Trace:
    """The model of a paced trace, which may be early by what the machine took, and never late."""
    assert trace.about.clock == "paced"
    model = trace.retime(on, "set")
    ends = [t.columns["end"].max() - t.columns["start"].min() for t in (trace, model)]
    assert ends[0] > ends[1] - BEHIND * 1e-9
    return model


def test_nothing_is_complete_before_its_time() -> None:
    def work() -> list[float]:
        rank = dist.get_rank()
        dist.barrier()
        began = time.perf_counter()
        handle = dist.all_reduce(torch.ones(2), async_op=True)
        early = handle.is_completed()
        asked = time.perf_counter() - began
        handle.wait()
        whole = time.perf_counter() - began
        assert handle.is_completed()
        future = dist.all_reduce(torch.full((2,), 3.0), async_op=True).get_future()
        chained = future.then(lambda f: f.value()[0] + rank)
        began = time.perf_counter()
        assert chained.wait().tolist() == [6 + rank] * 2
        assert future.value()[0].tolist() == [6, 6]
        return [float(early and asked < 0.09), whole, time.perf_counter() - began]

    run = paced(work)
    for early, waited, chained in run.results:
        assert early == 0
        assert waited > 0.1 - BEHIND * 1e-9  # two latencies
        assert chained > 0.09 - BEHIND * 1e-9
    trace = run.trace
    agrees(trace)
    for event in trace.events:
        if event.kind == "collective":
            assert event.done is not None
            assert event.done - event.start > 0.1 - 2 * BEHIND * 1e-9


def test_an_error_in_a_future_stays_an_error() -> None:
    def work() -> str:
        inner: Any = torch.futures.Future()
        from labkit.trace.span import current

        pace: Any = current().pacer  # type: ignore[union-attr]
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        outer = pace.future(0, inner)
        inner.set_exception(ValueError("no such thing"))
        try:
            outer.wait()
        except ValueError as error:
            return str(error)
        return "none"

    assert all("no such thing" in told for told in paced(work).results)


def test_messages_of_every_kind() -> None:
    def work() -> list[float]:
        rank = dist.get_rank()
        x, took = torch.ones(2), []
        half = dist.new_group([0, 1])
        for way in ("plain", "tag", "anyone", "batch"):
            dist.barrier()
            began = time.perf_counter()
            if rank == 2:
                took.append(1.0)
                continue
            if way == "batch":
                op = dist.P2POp(dist.isend if rank == 0 else dist.irecv, x, 1 - rank)
                for handle in dist.batch_isend_irecv([op]):
                    handle.wait()
            elif rank == 0:
                dist.send(x, 1, tag=3 * (way == "tag"), group=half if way == "plain" else None)
            elif way == "anyone":
                assert dist.recv(x) == 0
            else:
                dist.recv(x, 0, tag=3 * (way == "tag"), group=half if way == "plain" else None)
            took.append(time.perf_counter() - began)
        return took

    run = paced(work, ranks=3)
    assert min(run.results[1]) > 0.05 - 2 * BEHIND * 1e-9
    agrees(run.trace)


def test_a_rooted_collective_holds_all_until_the_last_has_come() -> None:
    def work() -> float:
        dist.barrier()
        began = time.perf_counter()
        with span("load", seconds=0.1 * dist.get_rank()):
            pass
        dist.broadcast(torch.ones(2), 0)
        return time.perf_counter() - began

    run = paced(work, ranks=3)
    assert min(run.results) > 0.2 + 2 * 0.05 - 2 * BEHIND * 1e-9
    agrees(run.trace)


def test_results_are_those_of_a_run_that_is_not_paced() -> None:
    def work() -> list[float]:
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        net(torch.full((3, 4), 1.0 + dist.get_rank())).square().sum().backward()
        found: list[float] = net.module.weight.grad.flatten().tolist()
        return found

    plain = labkit.launch(work, ranks=2, threads=1, seed=0, timeout=60)
    run = paced(work)
    assert run.results == plain.results
    agrees(run.trace)
    joins = [e for e in run.trace.events if e.kind == "join"]
    assert {e.rank for e in joins} == {0, 1}
    assert min(e.duration for e in joins) > 0.1 - 2 * BEHIND * 1e-9


def test_a_rank_that_fails_ends_the_run() -> None:
    def work() -> None:
        if dist.get_rank() == 1:
            with span("forward", seconds=-1):
                pass
        dist.barrier()

    with pytest.raises(labkit.RankFailed, match=r"span 'forward': seconds=-1"):
        paced(work)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"pace": 1}, TypeError, r"pace=1: give a labkit.trace.Cluster"),
        ({"pace": "H100"}, TypeError, r"pace='H100': give a labkit.trace.Cluster"),
        ({"trace": False}, ValueError, r"trace=False with pace: a paced run is always recorded"),
        ({"backend": "nccl"}, ValueError, r"backend='nccl' with pace: paced ranks run on CPUs"),
        ({"pace": CLUSTERS["H200"]}, ValueError, r"H200 does not say what FLOP/s it reaches"),
    ],
)
def test_bad_input(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        labkit.launch(print, **({"ranks": 2, "pace": LESSON} | options))


def test_not_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="pace under torchrun"):
        labkit.launch(print, pace=LESSON)


def test_a_device_that_says_no_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="no matrix product"):
        alone(Cluster(DEVICES["H200"], Link(0, 1)))
    told = Device("told", {"float32": 2e12}, {"float32": 1e12})
    rank = alone(Cluster(told, Link(0, 1)))
    rank.compute(1)
    rank.pace.settle()
    assert rank.now == 1000 * MS


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a way to choose a core")
def test_on_one_core_a_paced_run_is_within_15_percent_of_the_model() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "pace.py"), "--json", "--runs", "3"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    found: dict[str, float] = {}
    for _ in range(3):  # what another process took from that core is taken out by a second try
        again = [name for name, error in found.items() if not abs(error) < 0.15]
        for only in again or [""]:
            told = subprocess.run(
                [*command, "--only", only], env=environment, capture_output=True, text=True
            )
            assert told.returncode == 0, told.stderr
            for name, row in json.loads(told.stdout.splitlines()[-1]).items():
                # A span's seconds lie where the run put them: mostly, but not all, before a send.
                assert median(row["model"]) == pytest.approx(row["formula"], rel=0.01)
                found[name] = median(row["paced"]) / row["formula"] - 1
        if all(abs(error) < 0.15 for error in found.values()):
            break
    assert len(found) == 10
    assert {name: error for name, error in found.items() if not abs(error) < 0.15} == {}
