"""Buckets: tensors that travel together, because a message costs a latency whatever its size.

Too many are slow (a latency each), a single one is late (it waits for its last gradient): hence a
few, filled in the order in which gradients become ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

MIB = 1024 * 1024
T = TypeVar("T", bound=Tensor)


def fill_buckets(tensors: Iterable[T], caps: Sequence[float]) -> list[list[T]]:
    """Cut tensors, in the order given, into buckets of one dtype and device.

    A bucket closes once it has reached its cap, so it may be larger. `caps` are the bytes of the
    first, second, … bucket; the last holds for all that follow.
    """
    closed: list[list[T]] = []
    filling: dict[Any, list[T]] = {}
    held: Counter[Any] = Counter()  # bytes in the bucket that is filling
    count: Counter[Any] = Counter()  # buckets closed, of this dtype and device
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        filling.setdefault(kind, []).append(tensor)
        held[kind] += tensor.numel() * tensor.element_size()
        if held[kind] >= caps[min(count[kind], len(caps) - 1)]:
            closed.append(filling.pop(kind))
            held[kind] = 0
            count[kind] += 1
    return closed + list(filling.values())


class Bucket:
    """Gradients that travel together: a flat buffer, and a view of it for each parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        sizes = [p.numel() for p in parameters]
        like = parameters[0]
        self.flat = torch.zeros(sum(sizes), dtype=like.dtype, device=like.device)
        self.views = {
            p: piece.view_as(p) for p, piece in zip(parameters, self.flat.split(sizes), strict=True)
        }
        self.missing = set(parameters)  # no gradient in this step so far
        self.work: dist.Work | None = None

    def place(self, p: nn.Parameter, grad: Tensor, weight: float) -> None:
        """Write `weight` times `grad` here, in one pass; ``p.grad`` becomes a view of it."""
        view = self.views[p]
        if weight:
            torch.mul(grad.detach(), weight, out=view)  # also where `grad` is the view
        else:
            view.zero_()  # not a product: a mean over no samples is NaN
        p.grad = view

    def nobody_used(self, p: nn.Parameter) -> bool:
        """Whether the sum for `p` is -0.0 throughout: then every rank has sent just that."""
        view = self.views[p].reshape(-1)
        nothing = torch.full_like(view, -0.0)
        return torch.equal(view.view(torch.uint8), nothing.view(torch.uint8))


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Overwrite `tensors` on all ranks by those of the group's first rank, in flat pieces."""
    for bucket in fill_buckets(tensors, [25 * MIB]):
        flat = torch.cat([t.detach().reshape(-1) for t in bucket])
        dist.broadcast(flat, group=group, group_src=0)  # all wait for the first rank, it for none
        for t, new in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            t.data.copy_(new.view_as(t))  # .data: an earlier forward's graph may hold the tensor


def named_buckets(
    buckets: Sequence[Sequence[nn.Parameter | str]], names: dict[nn.Parameter, str]
) -> list[list[nn.Parameter]]:
    """Buckets given by hand, as parameters or by name; each of `names` belongs in just one."""
    by_name = {name: p for p, name in names.items()}
    cut = [[by_name.get(x) if isinstance(x, str) else x for x in bucket] for bucket in buckets]
    for asked, found in zip(buckets, cut, strict=True):
        for x, p in zip(asked, found, strict=True):
            if p is None or p not in names:
                what = repr(x) if isinstance(x, str) else f"a tensor of shape {tuple(x.shape)}"
                raise ValueError(f"buckets hold {what}, which is not a trained parameter")
        if len({(p.dtype, p.device) for p in found if p is not None}) != 1:
            raise ValueError("buckets: each needs parameters, all of one dtype and device")
    times = Counter(p for bucket in cut for p in bucket if p is not None)
    for p, name in names.items():
        if times[p] != 1:
            raise ValueError(
                f"buckets hold {name} {times[p]} times: every parameter belongs in one"
            )
    return [[p for p in bucket if p is not None] for bucket in cut]


def check_same_model(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError where ranks hold other parameters or buffers than rank 0.

    Without this, unequal sizes end gloo's process with no Python error.
    """
    state = [*module.named_parameters(), *module.named_buffers()]
    mine = [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in state]
    theirs: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)  # each waits for all, once
    for rank, other in enumerate(theirs):
        for a, b in zip(other, theirs[0], strict=False):
            if a != b:
                raise ValueError(
                    f"rank {rank} has {a}, rank 0 has {b}: build the same model on all"
                )
        if len(other) != len(theirs[0]):
            raise ValueError(
                f"rank {rank} has {len(other)} parameters and buffers, rank 0 {len(theirs[0])}: "
                "build the same model on all"
            )
