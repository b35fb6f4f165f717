"""Under torchrun the ranks are there already: `launch` runs the function in this process.

torchrun has set RANK and WORLD_SIZE and watches the processes: many machines are its job. What is
left to do is the same as in a rank of our own: seeds, threads, a group, the record; and results,
which every rank gets as bytes through the store.
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

from labkit.runtime import travel
from labkit.runtime.clock import compare, on_rank_0s_clock
from labkit.runtime.failures import OutOfMemory, RankFailed, tell
from labkit.runtime.loopback import interface
from labkit.runtime.run import Finished, Run, about_run, cores
from labkit.runtime.worker import prepare

_launches = itertools.count()  # the same on every rank, since all run the same program


def run_in_world(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    ranks: int | None,
    backend: str,
    threads: int | None,
    seed: int,
    timeout: float,
    trace: bool,
    memory: float | None = None,
) -> Run:
    """Run ``fn(*args)`` as this rank of torchrun's world; see `labkit.launch`.

    Raises
    ------
    ValueError : `ranks` is not the size of the world
    RankFailed : this rank's function raised (torchrun then ends the others), or another's did
    OutOfMemory : this rank holds more than `memory` bytes
    TimeoutError : not all ranks came, with how many did
    """
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if ranks is not None and ranks != world:
        raise ValueError(
            f"ranks={ranks}, but torchrun has started {world} (WORLD_SIZE): leave ranks out, or "
            f"start torchrun with --nproc-per-node {ranks}. Not under torchrun? Then unset RANK "
            "and WORLD_SIZE."
        )
    import torch.distributed as dist

    from labkit.runtime import private
    from labkit.runtime.launch import choose_backend
    from labkit.runtime.recorder import recording

    number = next(_launches)
    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        share = max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", world)))
        prepare(threads or share, seed, rank)
    else:
        prepare(int(os.environ["OMP_NUM_THREADS"]), seed, rank)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    chosen = str(dist.get_backend()) if dist.is_initialized() else ""
    chosen = chosen or choose_backend(backend, local, quiet=rank > 0)
    with ExitStack() as stack:
        recorder = stack.enter_context(recording(rank, cuda="nccl" in chosen)) if trace else None
        if dist.is_initialized():
            store = private.default_store()
            if recorder is not None:
                stack.enter_context(recorder.adopt())
        else:
            store = _join(rank, world, chosen, timeout, number)
            stack.callback(dist.destroy_process_group)
        exchange = dist.PrefixStore(f"labkit-exchange-{number}", store)
        before = compare(exchange, rank, world, "before")
        if recorder is not None:
            recorder.begin()
        counted = ExitStack()
        if memory is not None:
            from labkit.runtime.holdings import counting

            counted.enter_context(counting(rank, memory, recorder.log if recorder else None))
        began = time.monotonic()
        try:
            with counted:
                value = travel.pack_result(fn(*args))
        except BaseException as error:
            told = tell(error)
            exchange.set("failed", f"{rank}\n{told.text.rstrip()}")
            if isinstance(error, OutOfMemory):
                raise
            message = f"rank {rank} failed\n\n{told.render()}"
            raise RankFailed(message, rank, told.render()) from error
        seconds = time.monotonic() - began
        record = recorder.finish() if recorder is not None else None
        results = _exchange(exchange, rank, world, "result", value, timeout)
        after = compare(exchange, rank, world, "after")
        doubt = max(before.error, after.error)
        record = on_rank_0s_clock(record, before, after) if record is not None else None
        both = _exchange(exchange, rank, world, "record", (record, doubt), timeout)
        _rank_0_leaves_last(exchange, rank, world, timeout)
    records = [record for record, _ in both if record is not None]
    about = replace(about_run(world, chosen), error=max(doubt for _, doubt in both) * 1e-9)
    return Finished(world, chosen, results, records, about, seconds, memory)


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(
            f"{name}={text!r}: torchrun sets a number here. Not under torchrun? Then unset it."
        )
    return int(text)


def _join(rank: int, world: int, backend: str, timeout: float, number: int) -> Any:
    """A group of all ranks, met at the address that torchrun has set. Everyone waits here."""
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    elif int(os.environ.get("LOCAL_WORLD_SIZE", world)) == world:  # one machine
        name = interface()
        if name:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    wait = timedelta(seconds=timeout)
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=wait))
    except dist.DistStoreError as error:
        raise TimeoutError(
            f"rank {rank} waited {timeout:g} s for the other ranks of {world}: {error}. "
            "RANK and WORLD_SIZE are set: start all ranks, or unset both to let labkit start them."
        ) from error
    store.set_timeout(wait)
    # Keys of an earlier group would be found again under the same names.
    shared = dist.PrefixStore(f"labkit-{number}", store)
    dist.init_process_group(backend, store=shared, rank=rank, world_size=world, timeout=wait)
    return shared


def _exchange(
    store: Any, rank: int, world: int, name: str, value: Any, timeout: float
) -> list[Any]:
    """Everyone's `value`, on every rank. Waits for all, or for word of a failure."""
    store.set(f"{name}-{rank}", pickle.dumps(value))
    wanted = [f"{name}-{r}" for r in range(world)]
    until = time.monotonic() + timeout
    while not store.check(wanted):
        if store.check(["failed"]):
            who, _, what = store.get("failed").decode().partition("\n")
            raise RankFailed(f"rank {who} failed: {what}", int(who))
        if time.monotonic() > until:
            late = [r for r in range(world) if not store.check([wanted[r]])]
            raise TimeoutError(f"ranks {late} had no result {timeout:g} s after rank {rank}")
        time.sleep(0.01)
    return [pickle.loads(store.get(key)) for key in wanted]


def _rank_0_leaves_last(store: Any, rank: int, world: int, timeout: float) -> None:
    """The store may live in rank 0's process: there, wait until the others need it no more."""
    until = time.monotonic() + timeout
    store.add("read", 1)
    while rank == 0 and store.add("read", 0) < world and time.monotonic() < until:
        time.sleep(0.01)
