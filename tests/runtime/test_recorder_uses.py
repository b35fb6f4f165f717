"""What works on plain gloo works recorded, with the same results, and is seen.

Each use is run twice with one seed, recorded and not. Its results must be the same to the last bit,
and the recording must hold the operations that the use is known for.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import labkit

Use = Callable[[], Any]


def plain(x: Any) -> Any:
    """Tensors as lists, so that results compare by value."""
    if isinstance(x, torch.Tensor):
        return x.detach().tolist()
    return [plain(i) for i in x] if isinstance(x, list | tuple) else x


def model(width: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())


def data(width: int = 12) -> torch.Tensor:
    torch.manual_seed(10 + dist.get_rank())
    return torch.randn(6, width)


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    for _ in range(2):
        optimizer.zero_grad()
        net(data()).pow(2).mean().backward()
        optimizer.step()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    return [plain(p) for p in whole]


def every_collective() -> Any:
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(2.0 * n) + r
    out = []
    y = x.clone()
    dist.all_reduce(y, op=dist.ReduceOp.MAX)
    out.append(y.clone())
    dist.broadcast(y, 1)
    dist.reduce(y, 0)
    out.append(y.clone() if r == 0 else torch.zeros(1))
    parts = [torch.zeros(2 * n) for _ in range(n)]
    dist.all_gather(parts, x)
    out += parts
    whole = torch.zeros(2 * n * n)
    dist.all_gather_single(whole, x)
    out.append(whole)
    piece = torch.zeros(2)
    dist.reduce_scatter_single(piece, x.clone())
    out.append(piece.clone())
    dist.reduce_scatter(piece, list(x.clone().chunk(n)))
    out.append(piece.clone())
    swapped = torch.zeros(2 * n)
    dist.all_to_all_single(swapped, x)
    out.append(swapped)
    dist.gather(x, parts if r == 0 else None, dst=0)
    dist.scatter(piece, list(x.chunk(n)) if r == 0 else None, src=0)
    out.append(piece)
    dist.barrier()
    dist.monitored_barrier()
    return plain(out)


def messages() -> Any:
    r, n = dist.get_rank(), dist.get_world_size()
    x, y, z = torch.full((3,), float(r)), torch.zeros(3), torch.zeros(3)
    sent = dist.isend(x, (r + 1) % n, tag=4)
    dist.recv(y, (r - 1) % n, tag=4)
    sent.wait()
    batch = [dist.P2POp(dist.isend, x, (r + 1) % n), dist.P2POp(dist.irecv, z, (r - 1) % n)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    if r == 0:
        froms = sorted(dist.recv(torch.zeros(3)) for _ in range(n - 1))
    else:
        dist.send(x, 0)
        froms = []
    return plain([y, z]), froms


def objects() -> Any:
    r, n = dist.get_rank(), dist.get_world_size()
    everyone: list[Any] = [None] * n
    dist.all_gather_object(everyone, {"rank": r})
    told: list[Any] = [r, "from", r] if r == 0 else [None] * 3
    dist.broadcast_object_list(told, 0)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, list(range(n)) if r == 0 else [None] * n, 0)
    return everyone, told, mine


def subgroups() -> Any:
    r, n = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, n - 1], group_desc="ends")
    x = torch.ones(2) * (r + 1)
    if r in (0, n - 1):
        dist.all_reduce(x, group=pair)
        dist.destroy_process_group(pair)
    alone = dist.new_group([r], use_local_synchronization=True)
    dist.all_reduce(x, group=alone)
    return plain(x)


def meshes() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("data", "tensor"))
    x = torch.ones(2) * dist.get_rank()
    dist.all_reduce(x, group=mesh.get_group("tensor"))
    dist.all_reduce(x, group=mesh.get_group("data"))
    return plain(x)


def functional() -> Any:
    import torch.distributed._functional_collectives as fc

    r, n = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    x = torch.arange(float(2 * n)) * (r + 1)
    a = fc.all_reduce(x, "sum", group)
    b = fc.all_gather_tensor(x, 0, group)
    c = fc.reduce_scatter_tensor(x, "sum", 0, group)
    return plain([a + 0, b + 0, c + 0])


def ddp() -> Any:
    from torch.nn.parallel import DistributedDataParallel as DDP

    net = DDP(model(), bucket_cap_mb=0.0005)
    with net.no_sync():
        net(data()).sum().backward()
    net.zero_grad()
    return train(net, torch.optim.SGD(net.parameters(), lr=0.1))


def ddp_hook() -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    net = DDP(model())
    net.register_comm_hook(None, allreduce_hook)
    return train(net, torch.optim.SGD(net.parameters(), lr=0.1))


def fsdp1() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = FSDP(model(), device_id=torch.device("cpu"))
        return train(net, torch.optim.SGD(net.parameters(), lr=0.1))


def fsdp2() -> Any:
    from torch.distributed.fsdp import fully_shard

    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer)
    fully_shard(net)
    return train(net, torch.optim.AdamW(net.parameters(), lr=0.1))


def dtensor() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(3)
    x = torch.randn(6, 12)
    net(x).pow(2).mean().backward()
    return [plain(p.grad.full_tensor()) for p in net.parameters()]


def loss_parallel_use() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    logits = distribute_tensor(torch.randn(4, 16, requires_grad=True), mesh, [Shard(1)])
    with loss_parallel():
        loss = F.cross_entropy(logits, torch.tensor([1, 5, 9, 15]))
        loss.backward()
    return plain(loss.full_tensor())


def pipelining() -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    r, n = dist.get_rank(), dist.get_world_size()
    out: list[Any] = []
    for kind in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(r)
        net = nn.Linear(8, 8)
        stage = PipelineStage(net, r, n, torch.device("cpu"))
        schedule = kind(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).pow(2).mean())
        torch.manual_seed(5)
        x, t = torch.randn(8, 8), torch.randn(8, 8)
        losses: list[torch.Tensor] = []
        if r == 0:
            schedule.step(x)
        elif r == n - 1:
            schedule.step(target=t, losses=losses)
        else:
            schedule.step()
        out.append(plain([net.weight.grad, *losses]))
    return out


def zero_redundancy() -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = model()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.1)
    torch.manual_seed(0)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 12)).sum().backward()
        optimizer.step()
    return [plain(p) for p in net.parameters()]


def distributed_checkpoint() -> Any:
    import torch.distributed.checkpoint as dcp

    told = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(told, 0)
    folder = Path(told[0])
    state = {"w": torch.arange(4.0), "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder / "a")
        dcp.async_save(state, checkpoint_id=folder / "b").result()
        loaded = {"w": torch.zeros(4), "step": 0}
        dcp.load(loaded, checkpoint_id=folder / "b")
    return plain(loaded["w"]), loaded["step"]


def uneven_join() -> Any:
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel as DDP

    net = DDP(model())
    with Join([net]):
        for _ in range(2 + dist.get_rank()):
            net(data()).sum().backward()
    return [plain(p.grad) for p in net.parameters()]


def coalesced() -> Any:
    from torch.distributed.distributed_c10d import _coalescing_manager

    a, b = torch.ones(3), torch.ones(5) * dist.get_rank()
    with _coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    return plain([a, b])


def started_again() -> Any:
    store = dist.HashStore() if dist.get_world_size() == 1 else None
    x = torch.ones(2)
    dist.all_reduce(x)
    assert store is None
    told: list[Any] = [tempfile.mktemp()] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(told, 0)
    r, n = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(told[0], n), rank=r, world_size=n)
    dist.all_reduce(x)
    return plain(x), dist.get_backend()


def facts() -> Any:
    group = dist.group.WORLD
    assert group is not None
    return (
        dist.get_backend(), group.rank(), group.size(), group.group_name, group.group_desc,
        dist.get_process_group_ranks(group), str(group._get_backend(torch.device("cpu")).name()),
    )  # fmt: skip


# use -> operations that its recording must hold
USES: dict[Use, set[str]] = {
    every_collective: {
        "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all",
        "gather", "scatter", "barrier",
    },
    messages: {"send", "recv"},
    objects: {"all_gather", "broadcast"},
    subgroups: {"all_reduce"},
    functional: {"all_reduce", "all_gather", "reduce_scatter"},
    ddp: {"all_reduce", "broadcast"},
    ddp_hook: {"all_reduce"},
    fsdp1: {"all_gather", "reduce_scatter"},
    fsdp2: {"all_gather", "reduce_scatter"},
    dtensor: {"all_reduce"},
    loss_parallel_use: {"all_reduce"},
    pipelining: {"send", "recv"},
    zero_redundancy: {"broadcast"},
    distributed_checkpoint: {"all_gather", "broadcast"},
    uneven_join: {"all_reduce"},
    coalesced: {"all_reduce"},
    started_again: {"all_reduce"},
    facts: set(),
}  # fmt: skip


def check(use: Use, ranks: int) -> None:
    both = [
        labkit.launch(use, ranks=ranks, threads=1, seed=1, timeout=60, backend="gloo", trace=t)
        for t in (True, False)
    ]
    assert both[0].results == both[1].results
    trace = both[0].trace
    for rank in range(ranks):
        seen = {
            e.name for e in trace.events
            if e.rank == rank and e.kind in ("collective", "send", "recv")
        }  # fmt: skip
        if rank < ranks - 1 or use is not pipelining:
            assert USES.get(use, set()) <= seen, f"rank {rank} saw only {sorted(seen)}"


@pytest.mark.parametrize("use", USES, ids=lambda u: u.__name__)
def test_use_on_two_ranks_is_seen_and_unchanged(use: Use) -> None:
    check(use, 2)


@pytest.mark.parametrize(
    "use",
    [every_collective, messages, meshes, ddp, fsdp2, dtensor, pipelining],
    ids=lambda u: u.__name__,
)
def test_use_on_four_ranks_is_seen_and_unchanged(use: Use) -> None:
    check(use, 4)
