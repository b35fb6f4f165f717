"""torch's private names: that they are there and behave as the recorder relies on."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import torch
import torch.distributed as dist

import labkit
from labkit.runtime import private

GROUP_METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced",
    "all_gather_single", "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "all_to_all_single",
    "barrier", "send", "recv", "recv_anysource",
)  # fmt: skip

# What a group can do besides, and what becomes of it: it works, and leaves no event.
UNRECORDED = {
    "abort", "boxed", "unbox", "bound_device_id", "get_group_store", "group_desc", "group_name",
    "merge_remote_group", "monitored_barrier", "name", "rank", "set_timeout", "shutdown", "size",
    "split_group", "use_pg_for_symm_mem_rendezvous", "BackendType", "CUSTOM", "GLOO", "MPI", "NCCL",
    "UCC", "UNDEFINED", "XCCL",
}  # fmt: skip


def test_torch_is_of_the_line_that_was_tried() -> None:
    assert version("torch").split("+")[0].startswith("2.13.")


def test_every_operation_of_a_group_is_recorded_or_listed() -> None:
    from labkit.runtime.recorder import Recorded

    public = {n for n in dir(dist.ProcessGroup) if not n.startswith("_")}
    overridden = {n for n in vars(Recorded) if not n.startswith("_")}
    assert set(GROUP_METHODS) <= overridden
    assert public - overridden == UNRECORDED - {"get_group_store"}


def test_groups_are_made_by_the_function_that_is_wrapped() -> None:
    make = private.c10d._new_process_group_helper
    parameters = list(inspect.signature(make).parameters)
    assert parameters[:3] == ["group_size", "group_rank", "global_ranks_in_group"]


def test_an_unrecorded_rank_has_torchs_own_functions() -> None:
    def look() -> tuple[str, ...]:
        c10d = dist.distributed_c10d
        assert type(dist.group.WORLD) is dist.ProcessGroup
        found = (c10d._new_process_group_helper, torch.autograd.backward, dist.batch_isend_irecv)
        return tuple(f.__module__ for f in found)

    run = labkit.launch(look, ranks=1, backend="gloo", trace=False)
    own = ("torch.distributed.distributed_c10d", "torch.autograd")
    assert run.results == [(own[0], own[1], own[0])]


def test_a_recorded_group_stands_wherever_torch_looks() -> None:
    def look() -> bool:
        from labkit.runtime.recorder import Recorded

        world = dist.group.WORLD
        by_name = private.c10d._resolve_process_group(world.group_name)
        pair = dist.new_group([0, 1], group_desc="pair")
        return (
            isinstance(world, Recorded)
            and by_name is world
            and isinstance(pair, Recorded)
            and dist.get_process_group_ranks(pair) == [0, 1]
            and pair.group_desc == "pair"
        )

    assert labkit.launch(look, ranks=2, backend="gloo").results == [True, True]


def test_every_backward_starts_in_the_function_that_is_wrapped() -> None:
    weight = torch.ones(1, requires_grad=True)
    calls: list[int] = []
    with private.before_backward(lambda: calls.append(1)):
        (2 * weight).backward()
        torch.autograd.grad(2 * weight, weight)
    (2 * weight).backward()
    assert len(calls) == 2
