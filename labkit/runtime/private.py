"""The private names of torch on which the recorder stands, all of them, in this one place.

torch has no public way to put a process group of one's own in the place of another. Tried with
torch 2.13; `tests/runtime/test_private.py` fails where a name has gone or behaves otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.autograd
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Work

__all__ = [
    "Work",
    "after_backward",
    "backends",
    "before_backward",
    "c10d",
    "coalesced_batches",
    "copy_backends",
    "default_store",
    "flight_recorder_dump",
    "groups",
    "new_groups_by",
    "put_in_place",
    "unseen_by_modes",
    "wrap_backward",
]


# A context in which dispatch modes (a program's own) see no call; torch hands it on to the threads
# of a backend.
unseen_by_modes = torch._C._DisableTorchDispatch


def backends(group: dist.ProcessGroup) -> dict[str, Any]:
    """The backend of each device type of a group that torch has made."""
    return {d.type: group._get_backend(d) for d in group._device_types}


def copy_backends(old: dist.ProcessGroup, new: dist.ProcessGroup) -> None:
    """Register the backends of `old` in `new`, so that all that `new` does not override works."""
    config = c10d._world.pg_backend_config.get(old, "")
    kinds = dict(part.split(":") for part in config.split(",") if ":" in part)
    first = None
    for device in old._device_types:
        name = kinds.get(device.type, dist.get_backend(old))
        kind = c10d.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)
        new._register_backend(device, kind, old._get_backend(device))
        if first is None or name == "nccl":
            first = kind
    if first is not None:
        new._set_default_backend(first)


def put_in_place(old: dist.ProcessGroup, new: dist.ProcessGroup) -> None:
    """Let torch know `new` wherever it knew `old`, in Python and in the C++ registry."""
    world = c10d._world
    name = world.pg_names[old]
    new._set_group_name(name)
    new._set_group_desc(old.group_desc)
    tables: list[dict[dist.ProcessGroup, Any]] = [
        world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag,
        world.pg_group_ranks,
    ]  # fmt: skip
    for table in tables:
        if old in table:
            table[new] = table.pop(old)
    for groups in world.tags_to_pg.values():
        groups[:] = [new if g is old else g for g in groups]
    if world.default_pg is old:
        c10d._update_default_pg(new)
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, new)


def groups() -> list[tuple[dist.ProcessGroup, list[int]]]:
    """All groups that this process is in, with their global ranks."""
    ranks = c10d._world.pg_group_ranks
    return [(group, list(ranks[group])) for group in list(c10d._world.pg_map) if group in ranks]


def default_store() -> dist.Store:
    """The store that the default group was made with."""
    return c10d._get_default_store()


def flight_recorder_dump() -> bytes:
    """What torch's Flight Recorder has noted in this process, pickled."""
    from torch._C import _distributed_c10d as native

    return bytes(native._dump_fr_trace())  # type: ignore[attr-defined]


@contextmanager
def new_groups_by(
    replace: Callable[[dist.ProcessGroup, list[int]], dist.ProcessGroup],
) -> Iterator[None]:
    """Pass every group that torch makes through `replace(group, its global ranks)`."""
    make: Any = c10d._new_process_group_helper

    def helper(
        group_size: int, group_rank: int, ranks: list[int], *args: Any, **kwargs: Any
    ) -> Any:
        group, store = make(group_size, group_rank, ranks, *args, **kwargs)
        if not isinstance(group, dist.ProcessGroup) or hasattr(group, "real"):
            return group, store  # this process is no member, or the group was there already
        new = replace(group, list(ranks) or list(range(group_size)))
        put_in_place(group, new)
        return new, store

    with _in_place_of(c10d, "_new_process_group_helper", helper):
        yield


@contextmanager
def coalesced_batches(is_ours: Callable[[Any], bool]) -> Iterator[None]:
    """Let `batch_isend_irecv` group its messages on NCCL also for a group of ours.

    torch does so only where the group's type is exactly its own; NCCL deadlocks on messages that
    cross and are not grouped.
    """
    plain = c10d.batch_isend_irecv

    def batch(operations: list[Any]) -> list[Any]:
        if not operations:
            return list(plain(operations))  # torch says what is wrong with that
        group = operations[0].group or c10d._get_default_group()
        device = operations[0].tensor.device
        if not is_ours(group) or not group._get_backend(device).supports_coalescing:
            return list(plain(operations))
        with c10d._coalescing_manager(group, device, async_ops=True) as works:
            for p in operations:
                key = "group_dst" if p.op is c10d.isend else "group_src"
                p.op(p.tensor, group=p.group, tag=p.tag, **{key: p.group_peer})
        return list(works.works)

    name = "batch_isend_irecv"
    with _in_place_of(c10d, name, batch), _in_place_of(dist, name, batch):
        yield


@contextmanager
def wrap_backward(
    around: Callable[[Callable[[], None], list[torch.Tensor]], None],
) -> Iterator[None]:
    """Run every `torch.autograd.backward` through ``around(run, roots)``."""
    plain = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        around(lambda: plain(tensors, *args, **kwargs), roots)

    with _in_place_of(torch.autograd, "backward", backward):
        yield


@contextmanager
def before_backward(call: Callable[[], None]) -> Iterator[None]:
    """Call before every backward, by whichever of torch's functions it is started."""
    plain: Any = torch.autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        call()
        return plain(*args, **kwargs)

    with _in_place_of(torch.autograd, "_engine_run_backward", run):
        yield


@contextmanager
def _in_place_of(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, before)


def after_backward(call: Callable[[], None]) -> None:
    """From inside a backward: call when all gradients are there (before what is queued later)."""
    torch.autograd.Variable._execution_engine.queue_callback(call)
