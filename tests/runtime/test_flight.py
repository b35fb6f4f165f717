"""torch's Flight Recorder on a hang, with gloo: what it has, and what it has not."""

from __future__ import annotations

import inspect
import os

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit.runtime import flight

pytestmark = pytest.mark.usefixtures("no_process_left")


def hang() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        dist.recv(torch.ones(2), 0)
    dist.all_reduce(torch.ones(3))


def test_a_hang_shows_what_each_rank_entered() -> None:
    told = flight.record(hang, ranks=2, after=0.5)
    lines = inspect.getsourcelines(hang)[1]
    assert [(e.rank, e.seq, e.operation, e.state, e.sizes, e.where) for e in told.entries] == [
        (0, 1, "gloo:barrier", "completed", (), f"{__file__}:{lines + 1}"),
        (0, 2, "gloo:all_reduce", "scheduled", ((3,),), f"{__file__}:{lines + 4}"),
        (1, 1, "gloo:barrier", "completed", (), f"{__file__}:{lines + 1}"),
    ]  # of gloo's messages torch notes nothing: rank 1's recv is not there
    last = str(told).splitlines()[-2].split("  ")
    assert [cell.strip() for cell in last if cell][:5] == [
        "rank 0", "default_pg", "#2", "gloo:all_reduce", "scheduled",
    ]  # fmt: skip
    assert f"line {lines + 4}</th>" in told._repr_html_()
    assert "TORCH_FR_BUFFER_SIZE" not in os.environ


def forgetful() -> None:
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(1))


def test_a_rank_that_has_finished_does_not_cut_off_the_others() -> None:
    told = flight.record(forgetful, ranks=3, after=2)
    assert [(e.rank, e.seq, e.state) for e in told.entries] == [
        (0, 1, "scheduled"), (2, 1, "scheduled"),
    ]  # fmt: skip


def fail() -> None:
    if dist.get_rank() == 1:
        raise ValueError("no")
    dist.barrier()


def test_a_rank_that_fails_is_told_at_once() -> None:
    with pytest.raises(labkit.RankFailed, match="no"):
        flight.record(fail, ranks=2, after=30)


def test_a_run_that_ends_is_told_to_its_end() -> None:
    told = flight.record(dist.barrier, ranks=2, after=60)
    assert [(e.rank, e.state) for e in told.entries] == [(0, "completed"), (1, "completed")]


@pytest.mark.parametrize("after", [0, -1, float("nan"), float("inf")])
def test_a_bad_time_is_named(after: float) -> None:
    with pytest.raises(ValueError, match="after="):
        flight.record(hang, after=after)
