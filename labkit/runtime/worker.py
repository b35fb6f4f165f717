"""What a rank does with its life: take the job, join the group, run the function, say how it went.

The job lies in the run's private folder (`job`); how it went is put beside it (`rank-2.outcome`),
written whole or not at all. Only the learner's own output goes through the pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import os
import pickle
import random
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from labkit.runtime import travel
from labkit.runtime.budget import Overrun
from labkit.runtime.failures import OutOfMemory, Told, tell
from labkit.runtime.faults import Fault, slow_factor, striking
from labkit.runtime.pace import Pace, Paced
from labkit.runtime.posts import Posts
from labkit.trace import Cluster
from labkit.trace.log import RankRecord


@dataclass(frozen=True)
class Job:
    """What every rank of a run is told."""

    ranks: int
    backend: str
    threads: int
    seed: int
    timeout: float  # seconds
    trace: bool
    payload: bytes  # the function and its arguments, see `travel.pack`
    pace: Cluster | None = None  # what the ranks are paced as
    memory: float | None = None  # bytes a rank may hold; infinite: counted without a limit
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. One of `result` and `error` is set."""

    stamp: int  # perf_counter_ns
    result: bytes | None = None
    error: Told | None = None
    stage: str = "run"  # where the error was: "unpack", "join" (the group), "run", "result"
    record: RankRecord | None = None
    paced: Paced | None = None  # how well it kept its pace
    overrun: Overrun | None = None  # what the error is about, where it is an OutOfMemory


def rank_process(message: dict[str, Any], rank: int) -> int:
    """The whole life of a rank in a process of its own; returns its exit code.

    Parameters
    ----------
    message : folder, env, cwd and path of the launcher
    rank : this process's number
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the kernel, which decides
    os.environ.clear()
    os.environ.update(message["env"])
    with contextlib.suppress(OSError):
        os.chdir(message["cwd"])
    sys.path[:] = message["path"]
    sys.argv[:] = [""]
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name, fd in (("stdout", 1), ("stderr", 2)):  # descriptors 1 and 2 are the launcher's pipe
        # Unbuffered: what a rank printed must not be lost with it.
        raw = io.FileIO(fd, "w", closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    folder = Path(message["folder"])
    with (folder / "job").open("rb") as file:
        job: Job = pickle.load(file)
    os.environ.update(
        LABKIT_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(job.ranks),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(job.ranks),
    )  # fmt: skip
    _dump_stacks(folder / f"rank-{rank}.stack", job.timeout)
    process = os.getpid()
    outcome = run_job(job, rank, folder)
    if os.getpid() != process:  # a fork that the function made has come back: it is no rank
        if outcome.error is not None:
            sys.stderr.write(outcome.error.render())
        return 0 if outcome.error is None else 1
    path = folder / f"rank-{rank}.outcome"
    try:
        _write(path, outcome)
    except Exception as error:  # no room for it, for one: say so in a few bytes
        outcome = Outcome(time.perf_counter_ns(), error=tell(error), stage="result")
        _write(path, outcome)
    _leave(job, folder)
    return 0 if outcome.error is None else 1


def run_job(job: Job, rank: int, folder: Path) -> Outcome:
    """Join the group, run the function, and turn whatever happens into an `Outcome`."""
    import torch.distributed as dist

    from labkit.runtime.page import Page
    from labkit.runtime.recorder import recording

    stage = "unpack"
    value: Any = None
    log = pace = None
    try:
        dist.set_debug_level_from_env()  # torch has read it in the server, once
        prepare(job.threads, job.seed, rank)
        fn, args = travel.unpack(job.payload)
        with contextlib.ExitStack() as stack:
            if job.trace:
                page = Page(folder / f"rank-{rank}.page")
                log = stack.enter_context(recording(rank, page, job.backend == "nccl"))
            if job.pace is not None and log is not None:
                posts = Posts(folder, rank, job.ranks)
                log.pace = log.log.pacer = pace = Pace(
                    log.log, job.pace, posts, slow=slow_factor(job.faults, rank)
                )
            stage = "join"
            join(job.backend, dist.FileStore(str(folder / "store"), job.ranks), rank, job)
            stage = "run"
            if pace is not None:
                _warm_up()
                pace.begin(job.ranks)
            if log is not None:
                log.begin()
            written = log.log if log is not None else None
            if job.memory is not None:
                from labkit.runtime.holdings import counting

                stack.enter_context(counting(rank, job.memory, written))
            slowed = written if pace is None else None  # a paced rank is slow by its pace
            all_struck = stack.enter_context(striking(job.faults, rank, folder, slowed))
            value = fn(*args)
            _wait_for_threads()
            if pace is not None:
                pace.settle()
            all_struck()
        stage = "result"
        result = travel.pack_result(value)
    except BaseException as error:
        paced = pace.finish() if pace else None
        return Outcome(
            time.perf_counter_ns(), error=tell(error), stage=stage,
            record=log.finish() if log else None, paced=paced,
            overrun=error.overrun if isinstance(error, OutOfMemory) else None,
        )  # fmt: skip
    paced = pace.finish() if pace else None
    record = log.finish() if log else None
    return Outcome(time.perf_counter_ns(), result, record=record, paced=paced)


def _warm_up() -> None:
    """Do what is slow the first time, some milliseconds, before a pace has to be kept."""
    import torch

    layer = torch.nn.functional.linear
    layer(torch.zeros(1, 2), torch.zeros(2, 2, requires_grad=True)).sum().backward()


def prepare(threads: int, seed: int, rank: int) -> None:
    """Threads of this rank, and seeds of its own for Python, NumPy and torch."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    words = np.random.SeedSequence([seed, rank]).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))


def join(backend: str, store: Any, rank: int, job: Job) -> None:
    """Meet the other ranks. Everyone waits here until all are present."""
    import torch
    import torch.distributed as dist

    if backend == "gloo":
        from labkit.runtime.loopback import interface

        name = interface()
        if name:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    device = None
    if backend == "nccl":
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    # The launcher's clock decides first; torch's own is the second line.
    timeout = timedelta(seconds=job.timeout + 5)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=job.ranks, timeout=timeout, device_id=device
    )


def _leave(job: Job, folder: Path) -> None:
    """Stay until every rank is done, then close the connections.

    A rank that left at once would cut off one that still reads its last message. One that waits for
    a rank that has finished is told so by the launcher, who sees it in the ranks' pages; where none
    are kept, the connection that closes after a second has to tell.
    """
    import torch.distributed as dist

    began = time.monotonic()
    watched = job.trace and job.backend == "gloo"
    others = [folder / f"rank-{r}.outcome" for r in range(job.ranks)]
    while not all(path.exists() for path in others):
        stayed = time.monotonic() - began
        if stayed > 1.0 and not watched:
            break
        time.sleep(0.002 if stayed < 1.0 else 0.02)
    # What the function registered: files to be removed, logs to be closed.
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        if dist.is_initialized():
            dist.destroy_process_group()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _wait_for_threads() -> None:
    """As an interpreter does at its end: thread pools close, threads that are not daemons finish.

    It is the interpreter's own step: pools are told to close by it, and by nothing public.
    """
    threading._shutdown()  # type: ignore[attr-defined]


def _write(path: Path, outcome: Outcome) -> None:
    beside = path.with_suffix(".part")
    beside.write_bytes(pickle.dumps(outcome))
    beside.replace(path)


def _dump_stacks(path: Path, timeout: float) -> None:
    """Let the launcher see where this rank is, even when it hangs in C++ or dies there."""
    file = path.open("w")
    path.with_suffix(".thread").write_text(f"{threading.get_ident():x}")
    faulthandler.enable(file)  # when it dies by a signal of its own making
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    else:  # Windows has no such signal: write shortly before the launcher asks
        faulthandler.dump_traceback_later(timeout * 0.98, file=file)
    _kept.append(file)


def _end_with(pipe: BinaryIO) -> None:
    pipe.read()
    os._exit(1)


_kept: list[Any] = []  # files that must stay open as long as the process lives


def main(run: Callable[[dict[str, Any], int], int] = rank_process) -> None:
    """A rank in a fresh interpreter (macOS, Windows): its request comes by standard input.

    The launcher keeps that pipe open: when it closes, the launcher is gone, and so is the rank.
    """
    request = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    code = run(request["message"], request["rank"])
    os._exit(code)


if __name__ == "__main__":
    import importlib

    importlib.import_module("labkit.runtime.worker").main()
