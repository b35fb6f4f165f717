"""The measures on a real recording: a rank that is late, messages, and files of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.trace import Trace, span
from labkit.trace.chrome_check import check_chrome
from labkit.trace.measures import rank_times, summarise
from labkit.trace.traffic import Traffic, traffic

SIZE = 1000  # elements
LATE = 0.2  # seconds that rank 1 comes late


@pytest.fixture(scope="module")
def trace() -> Trace:
    def work() -> None:
        rank = dist.get_rank()
        x = torch.ones(SIZE)
        layer = torch.nn.Linear(10, 10, bias=False)
        net = torch.nn.parallel.DistributedDataParallel(layer)
        net(torch.ones(4, 10)).sum().backward()  # what is slow the first time is behind us
        dist.all_reduce(x)
        with span("step", step=0):
            if rank == 1:
                time.sleep(LATE)
            dist.all_reduce(x)
        with span("step", step=1):
            if rank == 0:
                time.sleep(LATE)
                dist.send(x, 1)
            else:
                dist.recv(x, 0)
        with span("step", step=2):
            loss = net(torch.ones(4, 10)).sum()
            if rank == 0:
                time.sleep(LATE)
            with span("backward"):
                loss.backward()

    found = labkit.launch(work, ranks=2, threads=1, seed=0, timeout=60).trace
    assert isinstance(found, Trace)
    return found


@pytest.mark.parametrize(("step", "waiting"), [(0, 0), (1, 1), (2, 1)])
def test_who_waits_for_a_late_rank_waits_in_skew(trace: Trace, step: int, waiting: int) -> None:
    times = rank_times(trace, [trace.steps[step]])
    late = times[1 - waiting]
    # The other rank's clock started at most a few ms apart; a busy machine may add to both.
    assert times[waiting].skew > LATE * 0.8
    assert late.skew < LATE / 2
    assert late.busy > LATE * 0.8


def test_the_parts_add_up_on_a_recording(trace: Trace) -> None:
    for times in rank_times(trace):
        parts = times.busy + times.exposed + times.idle
        assert parts == pytest.approx(times.elapsed)
        # Everything is recorded, and both ends of everything are known.
        assert times.idle == pytest.approx(0, abs=1e-6)
        assert times.unsplit == 0


def test_bytes_by_operation(trace: Trace) -> None:
    moved = {(row.operation, row.rank): row for row in traffic(trace)}
    # Two calls of 1,000 float32, and twice the gradients of 100 weights.
    payload = 4 * (2 * SIZE + 2 * 100)
    for rank in (0, 1):
        assert moved["all_reduce", rank] == Traffic("all_reduce", rank, 4, payload, payload)
    assert moved["send", 0] == Traffic("send", 0, 1, 4 * SIZE, 4 * SIZE)
    assert moved["recv", 1] == Traffic("recv", 1, 1, 4 * SIZE, 0)


def test_the_wire_of_a_step_holds_its_payload(trace: Trace) -> None:
    wire = summarise(trace, step=1).wire
    if wire is None:
        pytest.skip("this system keeps no count of bytes")
    sender, receiver = wire
    assert 4 * SIZE <= sender.sent < 4 * SIZE + 1000
    assert 4 * SIZE <= receiver.received < 4 * SIZE + 1000


def test_a_recording_survives_its_file(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.trace")
    loaded = Trace.load(tmp_path / "a.trace")
    for name, column in trace.columns.items():
        assert np.array_equal(loaded.columns[name], column, equal_nan=name == "done"), name
    assert str(loaded.summary()) == str(trace.summary())


def test_viewers_can_draw_a_recording(trace: Trace, tmp_path: Path) -> None:
    trace.to_chrome(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    check_chrome(data)
    assert sum(row["ph"] == "s" for row in data["traceEvents"]) == 1
