"""Recorded training, retimed: what a better network changes, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.lessons import train_data_parallel
from labkit.trace import CLUSTERS, Cluster, Link, Trace, span, this_machine
from labkit.trace.chrome_check import check_chrome
from labkit.trace.measures import rank_times
from tests.runtime import test_recorder_uses as uses

H100 = CLUSTERS["H100"]
SLOW = Cluster(H100.device, Link(1e-6, 100e9, "slow"))  # where the gradients are worth hiding
STEPS = 4


def record(overlap: bool) -> Trace:
    train = partial(train_data_parallel, STEPS, overlap=overlap, bucket_mb=1.0)
    trace = labkit.launch(train, ranks=4, threads=1, seed=0, timeout=120).trace
    assert isinstance(trace, Trace)
    return trace


@pytest.fixture(scope="module")
def overlapped() -> Trace:
    return record(overlap=True)


@pytest.fixture(scope="module")
def after() -> Trace:
    return record(overlap=False)


def exposed(trace: Trace) -> float:
    """Share of the last step, the slowest rank's, that communication holds."""
    return max(t.exposed / t.elapsed for t in rank_times(trace, trace.steps[-1:]))


def test_every_step_is_there_on_the_modelled_clock(overlapped: Trace) -> None:
    retimed = overlapped.retime(H100)
    assert repr(retimed) == f"Trace(ranks=4, modelled, {STEPS} steps)"
    assert [s.index for s in retimed.steps] == list(range(STEPS))
    last = retimed.steps[-1].duration
    # Each rank computes 3.3 GFLOP a step, at 795 TFLOP/s, and waits for 6 MB of gradients.
    times = rank_times(retimed, retimed.steps[-1:])
    flops = sum(e.flops for e in overlapped.step(STEPS - 1).events
                if e.rank == 0 and e.kind == "compute")  # fmt: skip
    assert times[0].busy == pytest.approx(flops / 795e12)
    assert times[0].busy < last < overlapped.steps[-1].duration
    for t in times:
        assert t.unsplit == 0
        assert t.busy + t.exposed == pytest.approx(t.elapsed)


def test_a_slow_link_exposes_what_a_fast_one_hides(overlapped: Trace) -> None:
    links = (Link(0, float("inf")), Link(0, 1e13), SLOW.links[0], Link(0, 1e9))
    shares = [exposed(overlapped.retime(Cluster(H100.device, link))) for link in links]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[1] < 0.2 < 0.9 < shares[3]


def test_overlap_pays_on_a_link_where_there_is_something_to_hide(
    overlapped: Trace, after: Trace
) -> None:
    here = this_machine(latency=1e-5, bandwidth=2e9, flops=1e11)
    hidden, bare = (trace.retime(here) for trace in (overlapped, after))
    assert hidden.steps[-1].duration < 0.9 * bare.steps[-1].duration
    assert exposed(hidden) < 0.7 * exposed(bare)
    free = this_machine(latency=0, bandwidth=float("inf"), flops=1e11)
    both = [trace.retime(free).steps[-1].duration for trace in (overlapped, after)]
    assert both[0] == pytest.approx(both[1])


def test_more_ranks_cost_more_steps_of_the_ring_and_hardly_more_bytes(overlapped: Trace) -> None:
    wide = Cluster(H100.device, Link(0, 1e9))
    four, thousand = (
        overlapped.retime(wide, group_size={"default": n}).steps[-1].duration for n in (4, 1000)
    )
    assert thousand / four == pytest.approx(2 * (999 / 1000) / (2 * 3 / 4), rel=0.01)
    late = Cluster(H100.device, Link(1e-3, 1e15))
    ratio = overlapped.retime(late, group_size={"default": 1000}).steps[-1].duration
    assert ratio / overlapped.retime(late).steps[-1].duration == pytest.approx(999 / 3, rel=0.05)


def test_two_recordings_of_one_program_are_modelled_alike(overlapped: Trace) -> None:
    other = record(overlap=True)
    assert other.steps[-1].duration != overlapped.steps[-1].duration
    for on in (H100, SLOW):
        ours, theirs = overlapped.retime(on), other.retime(on)
        assert [s.spans for s in ours.steps] == [s.spans for s in theirs.steps]


def test_a_retimed_recording_is_drawn_saved_and_cut_like_any_other(
    overlapped: Trace, tmp_path: Path
) -> None:
    retimed = overlapped.retime(H100)
    retimed.to_chrome(tmp_path / "a.json")
    check_chrome(json.loads((tmp_path / "a.json").read_text()))
    retimed.save(tmp_path / "a.trace")
    assert str(Trace.load(tmp_path / "a.trace").summary()) == str(retimed.summary())
    assert "modelled" in repr(retimed.timeline())
    step = retimed.step(2).retime(SLOW)
    assert step.steps[0].duration == pytest.approx(overlapped.retime(SLOW).steps[2].duration)


def everything() -> None:
    """torch's DDP, messages both ways, every collective; on two ranks."""
    rank = dist.get_rank()
    x, half = torch.ones(1000), torch.ones(500)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    for step in range(2):
        with span("step", step=step):
            net(torch.ones(8, 100)).sum().backward()
            if rank:
                dist.recv(x, 0)
                dist.recv(x)  # from whoever comes
            else:
                dist.send(x, 1)
                dist.isend(x, 1).wait()
            both = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, half, 1 - rank)]
            both[0].tensor = half
            for work in dist.batch_isend_irecv(both):
                work.wait()
            dist.barrier()
            dist.reduce_scatter_single(half, x)
            dist.all_gather_single(x, half)
            dist.broadcast(x, 1)
            dist.reduce(x, 0)
            dist.scatter(half, [half, half] if rank == 0 else None)
            dist.gather(half, [half, half] if rank == 0 else None)
            dist.all_to_all_single(x, x.clone())


def test_what_torch_does_by_itself_is_retimed_too() -> None:
    trace = labkit.launch(everything, ranks=2, threads=1, seed=0, timeout=60).trace
    assert isinstance(trace, Trace)
    fast, slow = trace.retime(H100), trace.retime(Cluster(H100.device, Link(1.0, 1e12)))
    assert fast.steps[1].duration < 1e-3
    # At a second a step of a ring: one all-reduce of DDP's, and ten more operations.
    assert slow.steps[1].duration > 10
    join = [e for e in slow.events if e.kind == "join"]
    assert join
    assert all(e.duration >= 2 for e in join)
    assert trace.retime(H100, "cpu").steps[1].duration < trace.steps[1].duration


@pytest.mark.parametrize(
    "use",
    [uses.fsdp2, uses.dtensor, uses.pipelining, uses.distributed_checkpoint, uses.uneven_join],
    ids=lambda use: use.__name__,
)
def test_torchs_own_techniques_are_retimed(use: Callable[[], object]) -> None:
    trace = labkit.launch(use, ranks=2, threads=1, seed=0, timeout=60, backend="gloo").trace
    assert isinstance(trace, Trace)
    spans = [trace.retime(on, "cpu").columns["end"].max() for on in (H100, this_machine(1, 1e9, 1))]
    # Far less than it took here, where ranks share cores; far more where a message takes a second.
    assert 0 < spans[0] < trace.columns["end"].max()
    assert spans[1] > 2
