"""The ring gives gloo's sums, the same bits on all ranks, and sends no byte too many."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import labkit
from labkit.techniques.ring import ring_all_reduce

SIZES = (0, 1, 2, 3, 5, 12, 1001)


def addend(rank: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank))


def beside_gloo() -> list[tuple[Tensor, Tensor]]:
    sums = []
    for size in SIZES:
        ours = addend(dist.get_rank(), size)
        theirs = ours.clone()
        ring_all_reduce(ours)
        dist.all_reduce(theirs)
        sums.append((ours, theirs))
    return sums


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_size_gives_the_sum_and_all_ranks_the_same_bits(ranks: int) -> None:
    first, *others = labkit.launch(beside_gloo, ranks=ranks, threads=1, timeout=60).results
    for i, size in enumerate(SIZES):
        ours, theirs = first[i]
        exact = sum(addend(r, size).double() for r in range(ranks))
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=1e-6)
        assert all(torch.equal(ours, other[i][0]) for other in others)


def whole_tensors(flat: Tensor) -> None:
    """The wrong ring: passes whole tensors on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    passing = flat.clone()
    for _ in range(ranks - 1):
        arriving = torch.empty_like(passing)
        work = dist.isend(passing, (rank + 1) % ranks)
        dist.recv(arriving, (rank - 1) % ranks)
        assert work is not None
        work.wait()
        passing = arriving
        flat += arriving


def reduce(how: str, size: int) -> None:
    (ring_all_reduce if how == "ring" else whole_tensors)(torch.ones(size))


def sent(how: str, size: int, ranks: int) -> list[int]:
    trace = labkit.launch(reduce, how, size, ranks=ranks, threads=1, timeout=60).trace
    total = [0] * ranks
    for event in trace.events:
        if event.kind == "send":
            total[event.rank] += event.bytes
    return total


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_are_the_closed_form(ranks: int) -> None:
    size = 12 * 100
    assert sent("ring", size, ranks) == [2 * (ranks - 1) * 4 * size // ranks] * ranks
    assert sent("whole", size, ranks) == [(ranks - 1) * 4 * size] * ranks


@pytest.mark.skipif(sys.platform != "linux", reason="TCP counters are read on Linux")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_wire_carries_little_more_than_the_payload(ranks: int) -> None:
    size = 12 * 10_000
    trace = labkit.launch(reduce, "ring", size, ranks=ranks, threads=1, timeout=60).trace
    payload = 2 * (ranks - 1) * 4 * size // ranks
    for rank in range(ranks):
        marks = [e for e in trace.events if e.kind == "wire" and e.rank == rank]
        carried = [e.bytes for e in marks if e.name == "sent"]
        assert payload <= carried[-1] - carried[0] < 1.02 * payload


def test_bytes_of_a_size_that_does_not_divide_add_up() -> None:
    assert sum(sent("ring", 7, 4)) == 2 * 3 * 4 * 7


def other_uses() -> dict[str, Any]:
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    grouped = torch.tensor([10.0**rank] * 3)
    ring_all_reduce(grouped, pairs[rank % 2])
    whole = torch.arange(5) + rank
    ring_all_reduce(whole)
    weight = torch.nn.Parameter(torch.ones(4))
    ring_all_reduce(weight)
    return {"group": grouped, "int": whole, "parameter": weight.detach()}


def test_groups_integers_and_parameters() -> None:
    results = labkit.launch(other_uses, ranks=4, threads=1, timeout=60).results
    for rank, found in enumerate(results):
        assert found["group"].tolist() == [[101.0] * 3, [1010.0] * 3][rank % 2]
        assert found["int"].tolist() == [6, 10, 14, 18, 22]
        assert found["parameter"].tolist() == [4.0] * 4


@pytest.mark.parametrize("shape", ["matrix", "strided"])
def test_a_shape_that_is_not_one_row_is_refused(shape: str) -> None:
    tensor = torch.ones(4, 4) if shape == "matrix" else torch.ones(8)[::2]
    with pytest.raises(ValueError, match="one contiguous dimension"):
        ring_all_reduce(tensor)
