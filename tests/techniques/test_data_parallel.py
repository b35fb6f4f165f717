"""DataParallel against torch's DDP, against one process, and against what can go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import labkit
from labkit.techniques.buckets import MIB, fill_buckets
from labkit.techniques.data_parallel import DataParallel, average_each, average_flat


def run(fn: Callable[..., Any], *args: Any, ranks: int = 2) -> list[Any]:
    return labkit.launch(fn, *args, ranks=ranks, threads=1, timeout=60, trace=False).results


def net(seed: int = 0) -> nn.Module:
    """Seven odd sizes, 2.3 MB: two buckets from the second step on."""
    torch.manual_seed(seed)
    layers = [nn.Linear(30, 701), nn.GELU(), nn.Linear(701, 801), nn.GELU(), nn.Linear(801, 7)]
    return nn.Sequential(*layers)


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 3))


def shard(rank: int, step: int, rows: int = 5, width: int = 5) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * step + rank))


def grads(module: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def apart(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference, in units of the largest gradient of `b`."""
    pairs = zip(a, b, strict=True)
    largest = max(y.abs().max() for y in b)
    return float(max((x - y).abs().max() for x, y in pairs) / largest)


# ---- equal to torch's DDP, bit for bit


def beside_ddp(build: Callable[[], nn.Module], width: int, options: dict[str, Any]) -> list[bool]:
    ours, theirs = build(), build()
    caps = options.pop("caps", None)
    if caps:  # never rebuilt with find_unused_parameters: boundaries stay
        torchs: nn.Module = DDP(theirs, bucket_cap_mb_list=caps, find_unused_parameters=True)
        cut = fill_buckets(ours.parameters(), [cap * MIB for cap in caps])
        wrapped = DataParallel(ours, buckets=cut[::-1])
    else:
        torchs = DDP(theirs, **options)
        wrapped = DataParallel(ours)
    first, second = (torch.optim.AdamW(m.parameters(), 1e-2) for m in (ours, theirs))
    equal = []
    for step in range(5):
        x = shard(dist.get_rank(), step, width=width)
        for module, optimizer in ((wrapped, first), (torchs, second)):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            module(x).pow(2).mean().backward()
            if module is wrapped:
                wrapped.finish()
            optimizer.step()
        equal.append(
            same(grads(ours), grads(theirs)) and same([*ours.parameters()], [*theirs.parameters()])
        )
    return equal


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"caps": [1, 1.5]}], ids=["default", "explicit"])
def test_gives_the_bits_of_ddp(ranks: int, options: dict[str, Any]) -> None:
    for equal in run(beside_ddp, net, 30, options, ranks=ranks):
        assert equal == [True] * 5


def mixed() -> nn.Module:
    torch.manual_seed(0)
    model = small()
    model[2] = nn.Sequential(Cast(torch.float64), nn.Linear(11, 3).double(), Cast(torch.float32))
    model[0].bias.requires_grad_(False)
    return model


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def test_two_dtypes_and_a_frozen_parameter_give_the_bits_of_ddp() -> None:
    for equal in run(beside_ddp, mixed, 5, {}, ranks=2):
        assert equal == [True] * 5


def other_boundaries() -> tuple[bool, float]:
    flat, bucketed = net(), net()
    x = shard(dist.get_rank(), 0, width=30)
    flat(x).pow(2).mean().backward()
    average_flat(flat.parameters())
    names = [name for name, _ in bucketed.named_parameters()]
    wrapped = DataParallel(bucketed, buckets=[names[:3], names[3:]])
    wrapped(x).pow(2).mean().backward()
    wrapped.finish()
    return same(grads(flat), grads(bucketed)), apart(grads(flat), grads(bucketed))


def test_other_boundaries_give_other_bits_on_four_ranks_but_not_on_two() -> None:
    for equal, distance in run(other_boundaries, ranks=4):
        assert not equal
        assert distance < 1e-6
    for equal, _ in run(other_boundaries, ranks=2):
        assert equal


# ---- equal to one process


def against_one_process(rows: tuple[int, ...]) -> dict[str, tuple[bool, float]]:
    """Uneven shards of one batch: on ranks, one after the other here, and all at once here."""
    rank, total = dist.get_rank(), sum(rows)
    shards = [shard(r, 0, n, 30) for r, n in enumerate(rows)]
    wrapped = DataParallel(net())
    wrapped.weigh(rows[rank])
    wrapped(shards[rank]).pow(2).mean().backward()
    wrapped.finish()
    pieces, whole = net(), net()
    for x in shards:
        piece = net()
        piece(x).pow(2).mean().backward()
        for p, q in zip(pieces.parameters(), piece.parameters(), strict=True):
            share = q.grad * (len(x) / total)
            p.grad = share if p.grad is None else p.grad + share
    whole(torch.cat(shards)).pow(2).mean().backward()
    ours = grads(wrapped.module)
    return {
        "pieces": (same(ours, grads(pieces)), apart(ours, grads(pieces))),
        "whole": (same(ours, grads(whole)), apart(ours, grads(whole))),
    }


@pytest.mark.parametrize("rows", [(5, 3), (3, 1, 7), (1, 7, 2, 5)], ids=str)
def test_uneven_shards_give_the_gradient_of_the_whole_batch(rows: tuple[int, ...]) -> None:
    for found in run(against_one_process, rows, ranks=len(rows)):
        assert found["pieces"][0] or len(rows) > 2  # two addends: no order to differ in
        assert found["pieces"][1] < 1e-5
        assert found["whole"][1] < 1e-5


def wrong_averages(rows: tuple[int, ...]) -> dict[str, float]:
    rank, ranks = dist.get_rank(), len(rows)
    whole = net()
    whole(torch.cat([shard(r, 0, n, 30) for r, n in enumerate(rows)])).pow(2).mean().backward()
    mine = net()
    mine(shard(rank, 0, rows[rank], 30)).pow(2).mean().backward()
    local = grads(mine)
    average_flat(mine.parameters())
    means = grads(mine)
    return {
        "own": apart(local, grads(whole)),
        "mean of means": apart(means, grads(whole)),
        "sum": apart([g * ranks for g in means], grads(whole)),
    }


def test_wrong_averages_are_far_outside_the_bound() -> None:
    for found in run(wrong_averages, (3, 1, 7), ranks=3):
        assert min(found.values()) > 1e-2


def three_ways() -> list[list[Tensor]]:
    x = shard(dist.get_rank(), 0, width=30)
    each, flat, bucketed = net(), net(), net()
    for module, average in ((each, average_each), (flat, average_flat)):
        module(x).pow(2).mean().backward()
        average(module.parameters())
    wrapped = DataParallel(bucketed)
    wrapped(x).pow(2).mean().backward()
    wrapped.finish()
    return [grads(each), grads(flat), grads(bucketed)]


def test_the_three_ways_agree() -> None:
    for each, flat, bucketed in run(three_ways, ranks=3):
        assert apart(each, bucketed) < 1e-6
        assert apart(flat, bucketed) < 1e-6


def replicas(steps: int, broken: bool) -> list[Tensor]:
    rank = dist.get_rank()
    module = small(seed=rank)  # another start on every rank
    wrapped = DataParallel(module)
    if broken and rank == 1:
        with torch.no_grad():
            next(module.parameters()).add_(1e-3)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        wrapped(shard(rank, step)).pow(2).mean().backward()
        wrapped.finish()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_replicas_stay_equal_from_unequal_starts(ranks: int) -> None:
    first, *others = run(replicas, 8, False, ranks=ranks)
    assert all(same(first, other) for other in others)
    first, other = run(replicas, 8, True)
    assert not same(first, other)


# ---- start and buffers


class Batched(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.out = nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("mask", torch.tensor([seed % 2 == 0, True]))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x)) + self.frozen


def state(module: nn.Module) -> list[Tensor]:
    return [t.clone() for t in module.state_dict().values()]


def buffers_beside_ddp(plan: str) -> list[bool]:
    """s: synchronised step, n: without synchronisation, e: eval under no_grad."""
    rank = dist.get_rank()
    ours, theirs = Batched(rank), Batched(rank)
    wrapped, torchs = DataParallel(ours), DDP(theirs)
    equal = [same(state(ours), state(theirs))]
    for step, what in enumerate(plan):
        for module in (wrapped, torchs):
            with module.no_sync() if what == "n" else nullcontext():
                module.train(what != "e")
                with torch.set_grad_enabled(what != "e"):
                    loss = module(shard(rank, step)).pow(2).mean()
                if what != "e":
                    loss.backward()
                if module is wrapped and what == "s":
                    wrapped.finish()
        equal.append(same([*ours.buffers()], [*theirs.buffers()]))
        equal.append(same(grads(ours), grads(theirs)))
    return [*equal, wrapped._buffers_differ]


@pytest.mark.parametrize("plan", ["sss", "nnsnns", "sesns", "ess"])
def test_start_and_buffers_follow_ddp(plan: str) -> None:
    for equal in run(buffers_beside_ddp, plan):
        assert all(equal)


def plain_names() -> tuple[list[str], list[str]]:
    wrapped = DataParallel(small())
    return list(wrapped.module.state_dict()), list(small().state_dict())


def test_the_module_keeps_its_names() -> None:
    names, expected = run(plain_names, ranks=1)[0]
    assert names == expected


# ---- which backwards are synchronised


def window(inside: str) -> tuple[list[Tensor], list[Tensor]]:
    """Three micro-steps, of which two are not synchronised; beside DDP doing the same."""
    out = []
    for wrap in (DataParallel, DDP):
        wrapped = wrap(small())
        for micro in range(3):
            x = shard(dist.get_rank(), micro)
            with wrapped.no_sync() if micro < 2 else nullcontext():
                loss = wrapped(x).pow(2).mean()
                if inside == "both":
                    loss.backward()
            if inside == "forward":
                loss.backward()
            if wrap is DataParallel:
                wrapped.finish()
        out.append(grads(wrapped.module))
    return out[0], out[1]


@pytest.mark.parametrize("inside", ["both", "forward"])
def test_no_sync_is_decided_at_the_forward(inside: str) -> None:
    results = run(window, inside)
    for ours, theirs in results:
        assert same(ours, theirs)
    assert same(results[0][0], results[1][0])


def calls(inside: str) -> None:
    wrapped = DataParallel(small())
    for micro in range(4):
        quiet = wrapped.no_sync() if micro < 3 or inside == "all" else nullcontext()
        if inside == "backward":
            loss = wrapped(shard(0, micro)).mean()
            with quiet:
                loss.backward()
        else:
            with quiet:
                wrapped(shard(0, micro)).mean().backward()
        wrapped.finish()


@pytest.mark.parametrize(("inside", "expected"), [("window", 1), ("backward", 4), ("all", 0)])
def test_all_reduces_in_a_window_of_four(inside: str, expected: int) -> None:
    trace = labkit.launch(calls, inside, ranks=2, threads=1, timeout=60).trace
    seen = [e.rank for e in trace.events if e.kind == "collective" and e.name == "all_reduce"]
    assert seen == [0] * expected + [1] * expected


def overlapped(overlap: bool) -> None:
    module = net()
    names = [name for name, _ in module.named_parameters()][::-1]
    wrapped = DataParallel(module, overlap=overlap, buckets=[names[:2], names[2:]])
    loss = wrapped(shard(0, 0, width=30)).mean()
    with labkit.span("backward"):
        loss.backward()
    wrapped.finish()


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_leave_during_the_backward(overlap: bool) -> None:
    trace = labkit.launch(overlapped, overlap, ranks=2, threads=1, timeout=60).trace
    for rank in (0, 1):
        mine = [e for e in trace.events if e.rank == rank]
        backward = next(e for e in mine if e.kind == "span" and e.name == "backward")
        sent = [e for e in mine if e.kind == "collective" and e.name == "all_reduce"]
        assert [e.bytes for e in sent] == [
            4 * (801 * 7 + 7),
            4 * (30 * 701 + 701 + 701 * 801 + 801),
        ]
        assert [e.start < backward.end for e in sent] == [overlap] * 2
        waits = [e for e in mine if e.kind == "wait" and e.name == "all_reduce"]
        assert len(waits) == 2
        assert all(e.start >= backward.end for e in waits)  # a wait in a hook hides nothing


# ---- uneven work


def nothing_to_do(how: str) -> list[list[Tensor]]:
    """Rank 1 has no samples: after each of three steps the gradient is that of rank 0 alone."""
    rank = dist.get_rank()
    wrapped = DataParallel(small())
    steps = []
    for step in range(3):
        wrapped.zero_grad(set_to_none=step != 1)
        rows = 0 if rank == 1 else 5
        wrapped.weigh(rows)
        if rows or how == "empty batch":
            wrapped(shard(rank, step, rows)).pow(2).mean().backward()
        elif how == "NaN":
            (wrapped(shard(rank, step, 2)) * float("nan")).sum().backward()
        wrapped.finish()
        alone = small()
        alone(shard(0, step)).pow(2).mean().backward()
        steps.append((grads(wrapped.module), grads(alone)))
    return steps


@pytest.mark.parametrize("how", ["no backward", "empty batch", "NaN"])
def test_a_rank_without_samples_counts_for_nothing(how: str) -> None:
    for steps in run(nothing_to_do, how):
        for ours, alone in steps:
            assert same(ours, alone)


class Branches(nn.Module):
    """Two branches of which each call uses one or both, and a third that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.idle = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor, use: str) -> Tensor:
        weigh = {"left": 1, "right": 2, "idle": 3}  # so that no two have the same gradient
        return sum((weigh[name] * getattr(self, name)(x) for name in use.split()), torch.zeros(3))


def unused(uses: list[str], set_to_none: bool) -> list[tuple[list[bool], list[bool], bool]]:
    ours, theirs = Branches(), Branches()
    wrapped, torchs = DataParallel(ours), DDP(theirs, find_unused_parameters=True)
    steps = []
    for step in range(3):
        for module in (wrapped, torchs):
            module.zero_grad(set_to_none=set_to_none)
            module(shard(dist.get_rank(), step), uses[dist.get_rank()]).pow(2).mean().backward()
        wrapped.finish()
        none = [[p.grad is None for p in m.parameters()] for m in (ours, theirs)]
        steps.append((none[0], none[1], same(grads(ours), grads(theirs))))
    return steps


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("uses", [["left", "left"], ["left", "right"], ["left right", "right"]])
def test_unused_parameters_come_out_as_with_ddp(uses: list[str], set_to_none: bool) -> None:
    for steps in run(unused, uses, set_to_none):
        for ours, theirs, equal in steps:
            assert ours == theirs
            assert ours[-2:] == [True, True]
            assert equal


def other_order(explicit: bool) -> list[bool]:
    """Ranks use the branches in opposite order, so gradients become ready in opposite order."""
    module, reference = Branches(), Branches()
    names = [[f"{name}.weight", f"{name}.bias"] for name in ("left", "right", "idle")]
    if explicit:
        wrapped = DataParallel(module, buckets=names)
    else:
        wrapped = DataParallel(module, bucket_mb=1e-6)
    rank, right = dist.get_rank(), []
    for step in range(3):
        wrapped.zero_grad()
        reference.zero_grad()
        use = "left right idle" if rank == 0 else "idle right left"
        wrapped(shard(rank, step), use).pow(2).mean().backward()
        wrapped.finish()
        for r in range(2):
            (reference(shard(r, step), "left right idle").pow(2).mean() / 2).backward()
        right.append(apart(grads(module), grads(reference)) < 1e-6)
    return right


@pytest.mark.parametrize("explicit", [True, False])
def test_gradients_may_become_ready_in_another_order_on_each_rank(explicit: bool) -> None:
    assert run(other_order, explicit) == [[True] * 3] * 2


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(torch.tanh(self.first(x)))))


def test_a_tied_parameter_used_three_times_gives_the_bits_of_ddp() -> None:
    for equal in run(beside_ddp, Tied, 5, {}, ranks=2):
        assert equal == [True] * 5


# ---- what went wrong before must not show after


class Fuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ArithmeticError("blown")


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.blow = small(), False

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner[0](x)
        return self.inner[1:](Fuse.apply(x) if self.blow else x)


def accident(which: str, set_to_none: bool, cut: bool) -> list[bool]:
    rank = dist.get_rank()
    module, reference = Fused(), Fused()
    names = [name for name, _ in module.named_parameters()][::-1]
    wrapped = DataParallel(module, buckets=[names[:2], names[2:]] if cut else None)
    right = []
    for step in range(4):
        if step in (0, 2):
            module.blow = which != "no backward"
            module.zero_grad(set_to_none=False)
            if which == "raised, weighed":
                wrapped.weigh(3 + rank)
            loss = wrapped(shard(rank, 99)).sum()
            if module.blow:
                with pytest.raises(ArithmeticError):
                    loss.backward()
            module.blow = False
        module.zero_grad(set_to_none=set_to_none)
        if which == "raised, weighed":
            wrapped.weigh(5)
        wrapped(shard(rank, step)).pow(2).mean().backward()
        wrapped.finish()
        reference.zero_grad()
        for r in range(2):
            (reference(shard(r, step)).pow(2).mean() / 2).backward()
        right.append(apart(grads(module), grads(reference)) < 1e-6)
    return right


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("which", ["raised", "raised, weighed", "no backward"])
def test_an_accident_does_not_reach_the_next_step(which: str, set_to_none: bool, cut: bool) -> None:
    assert run(accident, which, set_to_none, cut) == [[True] * 4] * 2


def on_one_rank() -> list[Tensor]:
    """Rank 1's backward raises, it goes on to the next step; rank 0 had waited in finish()."""
    rank = dist.get_rank()
    module = Fused()
    wrapped = DataParallel(module)
    module.blow = rank == 1
    loss = wrapped(shard(rank, 0)).sum()
    if module.blow:
        with pytest.raises(ArithmeticError):
            loss.backward()
    else:
        loss.backward()
        wrapped.finish()
    module.blow = False
    module.zero_grad()
    wrapped(shard(rank, 1)).pow(2).mean().backward()
    wrapped.finish()
    return grads(module)


def test_an_accident_on_one_rank_does_not_shift_the_others_collectives() -> None:
    first, second = run(on_one_rank)
    reference = Fused()
    for r in range(2):
        (reference(shard(r, 1)).pow(2).mean() / 2).backward()
    assert same(first, second)
    assert apart(first, grads(reference)) < 1e-6


def forgotten(what: str) -> str:
    wrapped = DataParallel(small())
    wrapped(shard(0, 0)).mean().backward()
    try:
        if what == "second backward":
            small_again = wrapped.module(shard(0, 1)).mean()
            small_again.backward()
        elif what == "weigh":
            wrapped.weigh(3)
        else:
            wrapped(shard(0, 1))
    except RuntimeError as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("second backward", "2.bias got a second gradient"),
        ("weigh", r"finish\(\) has to follow"),
        ("forward", r"finish\(\) has to follow"),
    ],
)
def test_a_forgotten_finish_is_said(what: str, said: str) -> None:
    for message in run(forgotten, what):
        assert re.search(said, message)


# ---- other uses


def without_hooks() -> list[bool]:
    module, reference = small(), small()
    wrapped = DataParallel(module, overlap=False)
    right = []
    for step in range(2):
        for m in (module, reference):
            m.zero_grad()
            m(shard(dist.get_rank(), step)).pow(2).mean().backward()
        right.append(same(grads(module), grads(reference)))  # nothing was sent so far
        wrapped.finish()
        average_each(reference.parameters())
        right.append(same(grads(module), grads(reference)))
    return right


def test_without_overlap_finish_averages_what_is_there() -> None:
    assert run(without_hooks) == [[True] * 4] * 2


def wrapped_again() -> tuple[list[Tensor], list[Tensor]]:
    module, rank = small(), dist.get_rank()
    wrapped = DataParallel(module)
    wrapped(shard(rank, 0)).mean().backward()
    wrapped.finish()
    wrapped = DataParallel(module)
    module.zero_grad()
    wrapped(shard(rank, 1)).mean().backward()
    wrapped.finish()
    averaged = grads(module)
    del wrapped
    module.zero_grad()
    module(shard(rank, 1)).mean().backward()
    return averaged, grads(module)


def test_a_discarded_wrapper_leaves_its_module_alone() -> None:
    (one, mine), (other, yours) = run(wrapped_again)
    assert same(one, other)
    assert not same(mine, yours)


def in_pairs() -> list[Tensor]:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    wrapped = DataParallel(small(rank), group=pairs[rank // 2])
    wrapped(shard(rank, 0)).pow(2).mean().backward()
    wrapped.finish()
    return grads(wrapped.module)


def test_a_group_averages_among_its_own() -> None:
    a, b, c, d = run(in_pairs, ranks=4)
    assert same(a, b)
    assert same(c, d)
    assert not same(a, c)


# ---- bad input


def refused(build: Callable[[], Any]) -> str:
    try:
        build()
    except ValueError as error:
        return str(error)
    return "accepted"


def frozen() -> nn.Module:
    return small().requires_grad_(False)


def stack(layers: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)])


NAMES = [name for name, _ in small().named_parameters()]
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing to train": (lambda: DataParallel(frozen()), "no parameter that requires a gradient"),
    "no size": (lambda: DataParallel(small(), bucket_mb=0), "bucket_mb=0"),
    "NaN": (lambda: DataParallel(small(), bucket_mb=float("nan")), "bucket_mb=nan"),
    "missed": (lambda: DataParallel(small(), buckets=[NAMES[1:]]), "0.weight 0 times"),
    "repeated": (lambda: DataParallel(small(), buckets=[NAMES, NAMES[:1]]), "0.weight 2 times"),
    "unknown": (lambda: DataParallel(small(), buckets=[[*NAMES, "no"]]), "'no', which is not"),
    "empty": (lambda: DataParallel(small(), buckets=[NAMES, []]), "each needs parameters"),
    "two dtypes": (
        lambda: DataParallel(mixed(), buckets=[["0.weight", "2.1.weight", "2.1.bias"]]),
        "one dtype",
    ),
    "sparse": (lambda: DataParallel(nn.Embedding(4, 2, sparse=True)), "sparse=False"),
    "shapes": (
        lambda: DataParallel(nn.Linear(3, 4 + dist.get_rank())), r"rank 1 has .*\(5, 3\)",
    ),
    "more": (lambda: DataParallel(stack(1 + dist.get_rank())), "rank 1 has 4 .* rank 0 2"),
    "count": (lambda: DataParallel(small()).weigh(-1), "count=-1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    build, said = BAD[case]
    for message in run(refused, build):
        assert re.search(said, message), message
