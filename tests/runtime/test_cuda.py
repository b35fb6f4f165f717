"""Times taken on a GPU become times on the host's clock (with a stand-in for the device)."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from labkit.runtime.cuda import CudaLog
from labkit.trace import About
from labkit.trace.log import merge


class Device:
    """A GPU whose clock stands still until the test moves it. Times in ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None

            def record(self) -> None:
                self.at = device.now

            def synchronize(self) -> None: ...

            def elapsed_time(self, other: Event) -> float:
                assert self.at is not None
                assert other.at is not None
                return other.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", object)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


class Work:
    """An operation that takes 5 ms of the device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def wait(self) -> None:
        self.device.now += 5


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_durations_are_the_devices_and_not_the_hosts(device: Device) -> None:
    log = CudaLog(0)
    log.begin()
    log.open("forward", {})
    device.now += 20  # the device works; the host has long gone on
    log.close("forward")
    start = log.stamp()
    fields: dict[str, Any] = {"op": log.next_operation(), "bytes": 4}
    log.event("collective", "all_reduce", start, log.stamp(), **fields)
    log.follow(0, Work(device))
    trace = merge([log.finish()], About(ranks=1))
    (forward,) = [e for e in trace.events if e.kind == "span"]
    (reduce,) = [e for e in trace.events if e.kind == "collective"]
    assert forward.duration == pytest.approx(0.020)
    assert reduce.start == pytest.approx(0.020)
    assert reduce.done == pytest.approx(0.025)


def test_two_ranks_share_the_hosts_clock(device: Device) -> None:
    first = CudaLog(0)
    first.begin()
    time.sleep(0.05)
    device.now = 5_000_000.0  # another GPU counts from elsewhere
    second = CudaLog(1)
    second.begin()
    records = [first.finish(), second.finish()]
    assert 0.05 <= (records[1].first[0] - records[0].first[0]) * 1e-9 < 1
