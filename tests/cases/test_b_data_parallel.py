"""Reported faults of data parallelism: the right value, and that the wrong one differs.

Each test carries the id of its case. The wrong way is run too, so that the test could fail.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import labkit
from labkit.lessons.data import ShardedSampler
from labkit.techniques.agreement import any_rank, global_mean
from labkit.techniques.buckets import broadcast
from labkit.techniques.data_parallel import DataParallel, average_each


def run(fn: Any, *args: Any, ranks: int = 2) -> list[Any]:
    return labkit.launch(fn, *args, ranks=ranks, threads=1, timeout=60, trace=False).results


class Scale(nn.Module):
    """One weight; y = w·x."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


# ---- b1: a mean of means, where ranks hold different numbers of samples


def b1(shards: list[list[float]], weigh: bool, skip: bool) -> float:
    x = torch.tensor(shards[dist.get_rank()])
    model = DataParallel(Scale())
    if weigh:
        model.weigh(len(x))
    if len(x) or not skip:
        model(x).mean().backward()
    model.finish()
    return model.module.w.grad.item()


@pytest.mark.parametrize(
    ("shards", "right", "wrong"),
    [
        ([[1, 2, 3], [10]], 4.0, 6.0),
        ([[6], [1, 1, 1], [2, 4]], 2.5, 10 / 3),
        ([[1, 2], [3], [4, 5, 6, 7], [8]], 4.5, 4.5),
        ([[5, 7], []], 6.0, 3.0),
    ],
)
def test_b1_ranks_count_as_much_as_they_hold(
    shards: list[list[float]], right: float, wrong: float
) -> None:
    ranks = len(shards)
    assert run(b1, shards, True, True, ranks=ranks) == pytest.approx([right] * ranks)
    assert run(b1, shards, True, False, ranks=ranks) == pytest.approx([right] * ranks)
    assert run(b1, shards, False, True, ranks=ranks) == pytest.approx([wrong] * ranks)


# ---- b2: divided by the number of ranks twice


def b2(how: str) -> float:
    rank = dist.get_rank()
    x = torch.tensor([2.0 * rank + 1, 2.0 * rank + 2])
    model = DataParallel(Scale())
    loss = {
        "local mean": lambda: model(x).mean(),
        "sum over global count": lambda: model(x).sum() / 8,
        "global count, times ranks": lambda: model(x).sum() / 8 * 4,
        "local mean, times ranks": lambda: model(x).mean() * 4,
    }[how]()
    loss.backward()
    model.finish()
    return model.module.w.grad.item()


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("local mean", 4.5),
        ("global count, times ranks", 4.5),
        ("sum over global count", 1.125),
        ("local mean, times ranks", 18.0),
    ],
)
def test_b2_one_division_by_the_global_count(how: str, value: float) -> None:
    assert run(b2, how, ranks=4) == pytest.approx([value] * 4)


# ---- b3: a padded sampler in evaluation


def accuracy(right: list[bool], ranks: int, tail: str) -> float:
    read = [
        i
        for rank in range(ranks)
        for i in ShardedSampler(len(right), rank, ranks, shuffle=False, tail=tail).indices()
    ]
    return sum(right[i] for i in read) / len(read)


def test_b3_every_item_is_judged_once() -> None:
    right = [False, True, True, True, True]
    for ranks in (1, 2, 3, 4, 7):
        assert accuracy(right, ranks, "uneven") == pytest.approx(0.8)
    assert accuracy(right, 2, "pad") == pytest.approx(4 / 6)
    padded = ShardedSampler(5, 1, 2, shuffle=False, tail="pad")
    assert padded.indices() == [1, 3, 0]
    assert padded.repeated() == [0]


# ---- b4: the same order in every epoch, or another epoch on each rank


@pytest.mark.parametrize(("items", "ranks"), [(8, 2), (9, 2), (1000, 3), (1001, 4)])
def test_b4_epochs_differ_and_ranks_partition_each(items: int, ranks: int) -> None:
    samplers = [ShardedSampler(items, rank, ranks) for rank in range(ranks)]
    drawn = []
    for epoch in range(3):
        shares = [sampler.indices(epoch) for sampler in samplers]
        assert sorted(i for share in shares for i in share) == list(range(items))
        drawn.append(shares)
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert samplers[0].indices(1) == drawn[1][0]
    # Rank 0 in another epoch than the others: some items are read twice, as many never.
    torn = samplers[0].indices(1) + [i for s in samplers[1:] for i in s.indices(0)]
    assert len(set(torn)) < items


# ---- b5: a metric averaged over ranks instead of items


def b5(right: list[int], seen: list[int]) -> tuple[float, float]:
    rank = dist.get_rank()
    mean = global_mean(right[rank], seen[rank])
    share = torch.tensor(right[rank] / max(seen[rank], 1), dtype=torch.float64)
    dist.all_reduce(share)
    return mean, share.item() / dist.get_world_size()


def test_b5_sums_and_counts_not_means() -> None:
    for mean, of_means in run(b5, [1, 1], [1, 3]):
        assert mean == 0.5
        assert of_means == pytest.approx(2 / 3)
    for mean, _ in run(b5, [1, 1, 0], [1, 3, 0], ranks=3):
        assert mean == 0.5


# ---- b6: BatchNorm's statistics differ between ranks


def b6() -> dict[str, list[float]]:
    rank = dist.get_rank()
    x = torch.tensor([[[0.0], [2.0]], [[10.0], [14.0]]])
    model = DataParallel(nn.BatchNorm1d(1))
    norm = model.module

    def statistics() -> list[float]:
        return [norm.running_mean.item(), norm.running_var.item()]

    found = {}
    for forward in ("first", "second"):
        model(x[rank]).sum().backward()
        model.finish()
        found[forward] = statistics()
        if forward == "first":
            mean = torch.tensor(statistics())
            dist.all_reduce(mean)
            found["averaged"] = (mean / 2).tolist()
    model.eval()
    with torch.no_grad():
        model(x[rank])
    found["eval"] = statistics()
    whole = nn.BatchNorm1d(1)
    whole(x.view(4, 1))
    found["whole"] = [whole.running_mean.item(), whole.running_var.item()]
    return found


def test_b6_statistics_agree_before_evaluation_and_are_rank_0s() -> None:
    first, second = run(b6)
    assert first["first"] == pytest.approx([0.1, 1.1])
    assert second["first"] == pytest.approx([1.2, 1.7])
    assert first["second"][0] == pytest.approx(0.19)
    assert second["second"][0] == pytest.approx(1.29)  # from rank 0's 0.1, not from its own 1.2
    assert first["eval"] == second["eval"] == first["second"]
    # What is promised is rank 0's, not what one process sees; nor do averages give that.
    assert first["whole"] == pytest.approx([0.65, 5.26667], rel=1e-5)
    assert first["averaged"] == pytest.approx([0.65, 1.4])


def b6_save() -> tuple[float, float]:
    rank = dist.get_rank()
    model = DataParallel(nn.BatchNorm1d(1))
    model(torch.tensor([[0.0], [2.0]]) + 10 * rank).sum().backward()
    model.finish()
    before = model.module.running_mean.item()
    broadcast(model.module.buffers())
    return before, model.module.running_mean.item()


def test_b6_a_broadcast_makes_them_agree_before_saving() -> None:
    (first, saved), (second, other) = run(b6_save)
    assert first != second
    assert saved == other == first


# ---- b7: a tied parameter met twice


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.first.weight, 2.0)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def b7() -> tuple[float, int, float, float, int]:
    model = DataParallel(Tied())
    model(torch.tensor([[1.0 + 2 * dist.get_rank()]])).sum().backward()
    model.finish()
    inner = model.module
    by_name = [p.grad for _, p in inner.named_parameters(remove_duplicate=False)]
    return (
        inner.first.weight.grad.item(),
        sum(len(bucket.views) for bucket in model._buckets),
        nn.utils.get_total_norm([p.grad for p in inner.parameters()]).item(),
        nn.utils.get_total_norm(by_name).item(),
        len(by_name),
    )


def test_b7_a_tied_parameter_is_reduced_and_normed_once() -> None:
    for grad, sent, norm, by_name, names in run(b7):
        assert (grad, sent, norm) == (8.0, 1, 8.0)
        assert names == 2
        assert by_name == pytest.approx(11.3137, abs=1e-4)


# ---- b8: other starting weights on each rank


def b8(wrapped: bool) -> list[float]:
    plain = Scale([1.0, 5.0][dist.get_rank()])
    model = DataParallel(plain) if wrapped else plain
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    path = []
    for _ in range(3):
        optimizer.zero_grad()
        (0.5 * model(torch.tensor(1.0)) ** 2).backward()
        if wrapped:
            model.finish()
        else:
            average_each(plain.parameters())
        optimizer.step()
        path.append(plain.w.item())
    return path


def test_b8_all_start_from_rank_0() -> None:
    for path in run(b8, True):
        assert path == pytest.approx([0.9, 0.81, 0.729])
    first, second = run(b8, False)
    assert first == pytest.approx([0.7, 0.43, 0.187])
    assert second == pytest.approx([4.7, 4.43, 4.187])


def b8_everything() -> list[list[float]]:
    model = nn.BatchNorm1d(2)
    model.bias.requires_grad_(False)
    for tensor in model.state_dict().values():
        tensor.fill_(1 + dist.get_rank())
    return [t.tolist() for t in DataParallel(model).module.state_dict().values()]


def test_b8_also_frozen_parameters_and_buffers() -> None:
    first, *others = run(b8_everything, ranks=3)
    assert first == [[1, 1], [1, 1], [1, 1], [1, 1], 1]
    assert others == [first, first]


# ---- b9: clipped before the all-reduce


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def b9(first: str) -> tuple[float, list[float]]:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])[dist.get_rank()]
    model = DataParallel(Pair(), overlap=False)
    model(x).sum().backward()
    if first == "reduce":
        model.finish()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if first == "clip":
        model.finish()
    return norm.item(), model.module.w.grad.tolist()


def test_b9_reduce_then_clip() -> None:
    for norm, grad in run(b9, "reduce"):
        assert norm == pytest.approx(2.5)
        assert grad == pytest.approx([0.6, 0.8], rel=1e-5)
    for _, grad in run(b9, "clip"):
        assert grad == pytest.approx([0.3, 0.4], rel=1e-5)


# ---- b10: no_sync around the backward only


def b10(quiet_forward: list[bool], quiet_backward: list[bool]) -> float:
    model = DataParallel(Scale())
    x = torch.tensor(1.0 + 2 * dist.get_rank())
    for forward, backward in zip(quiet_forward, quiet_backward, strict=True):
        with model.no_sync() if forward else nullcontext():
            loss = model(x)
        with model.no_sync() if backward else nullcontext():
            loss.backward()
        model.finish()
    return model.module.w.grad.item()


@pytest.mark.parametrize(
    ("forward", "backward", "calls", "grads"),
    [
        ("1110", "1110", 1, [8.0, 8.0]),
        ("1110", "0000", 1, [8.0, 8.0]),
        ("0000", "1110", 4, [8.0, 8.0]),
        ("1111", "1111", 0, [4.0, 12.0]),
    ],
)
def test_b10_no_sync_counts_at_the_forward(
    forward: str, backward: str, calls: int, grads: list[float]
) -> None:
    quiet = [[c == "1" for c in word] for word in (forward, backward)]
    run_ = labkit.launch(b10, *quiet, ranks=2, threads=1, timeout=60)
    assert run_.results == grads
    seen = [e.name for e in run_.trace.events if e.kind == "collective" and e.rank == 0]
    assert seen.count("all_reduce") == calls


# ---- b11: one rank stops early


def b11(wants: list[int], together: bool) -> int:
    rank = dist.get_rank()
    for step in range(1, 10):
        stop = step >= wants[rank]
        if any_rank(stop) if together else stop:
            return step
    return 10


@pytest.mark.parametrize("wants", [[3, 5], [5, 3], [9, 4, 7]])
def test_b11_all_stop_at_the_first_wish(wants: list[int]) -> None:
    ranks = len(wants)
    assert run(b11, wants, True, ranks=ranks) == [min(wants)] * ranks
    assert run(b11, wants, False, ranks=ranks) == wants


# ---- b12: the last, partial batch


@pytest.mark.parametrize(
    ("tail", "shares", "repeated", "dropped"),
    [
        ("pad", [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], [0, 1], []),
        ("drop", [[0, 4], [1, 5], [2, 6], [3, 7]], [], [8, 9]),
        ("uneven", [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]], [], []),
    ],
)
def test_b12_what_becomes_of_the_remainder_is_stated(
    tail: str, shares: list[list[int]], repeated: list[int], dropped: list[int]
) -> None:
    samplers = [ShardedSampler(10, rank, 4, shuffle=False, tail=tail) for rank in range(4)]
    assert [s.indices() for s in samplers] == shares
    for sampler in samplers:
        assert (sampler.repeated(), sampler.dropped()) == (repeated, dropped)


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize(
    ("items", "ranks", "batch"), [(10, 4, 4), (10, 4, 8), (11, 3, 6), (5, 4, 4)]
)
def test_b12_all_ranks_take_as_many_steps(tail: str, items: int, ranks: int, batch: int) -> None:
    samplers = [ShardedSampler(items, rank, ranks, tail=tail) for rank in range(ranks)]
    taken = [list(s.batches(batch)) for s in samplers]
    assert len({len(steps) for steps in taken}) == 1
    read = sorted(i for steps in taken for share in steps for i in share)
    assert read == sorted(samplers[0].order())
    if tail != "uneven":
        assert all(len({len(share) for share in step}) == 1 for step in zip(*taken, strict=True))
