"""Run a function on ranks: one call, one group, no process left behind.

`launch` packs the function, and hands the job to a `Run`, which starts the ranks (`start`) and
follows them. Ranks meet through a file in a private folder (0700), so no port is opened and nothing
listens beyond loopback. Under torchrun the ranks are there already: `world` runs the function here.
"""

from __future__ import annotations

import inspect
import os
import reprlib
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.runtime import travel
from labkit.runtime.about import cores
from labkit.runtime.budget import parse_budget
from labkit.runtime.faults import Fault
from labkit.runtime.faults import check as check_faults
from labkit.runtime.run import Run
from labkit.runtime.worker import Job
from labkit.trace import Cluster

DEFAULT_RANKS = 4
DEFAULT_TIMEOUT = 300.0
BACKENDS = ("auto", "gloo", "nccl")


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int | None = None,
    backend: str = "auto",
    threads: int | None = None,
    seed: int | None = None,
    timeout: float | None = None,
    patience: float = 2.0,
    trace: bool = True,
    wait: bool = True,
    pace: Cluster | None = None,
    memory: str | float | None = None,
    faults: Sequence[Fault] = (),
) -> Run:
    """Run ``fn(*args)`` on every rank, inside an initialised process group.

    Parameters
    ----------
    fn : a function, also one defined in a notebook cell
    args : its arguments, the same on every rank
    ranks : how many; None: 4, or the world that torchrun has made
    backend : "gloo", "nccl", or "auto": NCCL where each rank can have a GPU of its own, else gloo
    threads : torch threads a rank; None: cores // ranks, at least 1, or OMP_NUM_THREADS if set
    seed : every rank seeds Python, NumPy and torch from (seed, rank); None: fresh each time
    timeout : seconds for the whole run, and for the group's operations; None: 300
    patience : seconds for which ranks that wait for each other must stand still before that is
        called a deadlock. A rank that computes or sleeps is never part of one
    trace : record what the ranks do; without it only `timeout` ends a hang
    wait : stand until the run has ended; False: return at once, see `Run.wait`, `Run.stop`
    pace : a `labkit.trace.Cluster`. The ranks run here, on gloo, and sleep until that cluster's
        devices and links would have done the same: a span that says ``seconds=0.02`` lasts that,
        other compute its FLOPs, messages and collectives what the links take (`runtime.pace`).
        Holds for spans of 20 ms and more, on any number of cores
    memory : what a rank may hold of weights, gradients, optimizer state and saved activations:
        "64 MB", "1.5 GB", "64 MiB", or a number of bytes. "measure": no limit, but what is held is
        noted in the trace as with a budget; None: nothing is counted. See `holdings`
    faults : failures that strike at a step of a rank, from `labkit.faults`: ``Kill(rank=2,
        step=7)``, ``Slow(rank=1, factor=1.4)``, ``Truncate(folder, rank=0, step=5)``

    Returns
    -------
    Run : results, output and trace by rank

    Raises
    ------
    TypeError, ValueError : bad arguments, or arguments that cannot travel; before any rank starts
    RankFailed : a rank raised or died; its own traceback is told
    OutOfMemory : a rank holds more than `memory`; what it holds is told in four parts
    TimedOut : with what each rank was doing
    KeyboardInterrupt : the cell was interrupted; no rank is left
    """
    _check(fn, args, ranks, backend, threads, seed, timeout, patience)
    limit = parse_budget(memory)
    if os.environ.get("LABKIT_RANK") is not None:
        raise RuntimeError(
            f"launch() was called on rank {os.environ['LABKIT_RANK']} of a run: "
            "ranks cannot launch ranks. Call it outside the function that you launch."
        )
    if pace is not None:
        _check_pace(pace, backend, trace)
    seconds = DEFAULT_TIMEOUT if timeout is None else float(timeout)
    entropy = secrets.randbits(63) if seed is None else seed
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from labkit.runtime.world import run_in_world

        if faults:
            raise ValueError(
                "faults= needs ranks that labkit has started: under torchrun a dead rank ends all. "
                "Leave it out, or start the script without torchrun."
            )
        return run_in_world(fn, args, ranks, backend, threads, entropy, seconds, trace, limit)
    count = DEFAULT_RANKS if ranks is None else ranks
    struck = check_faults(faults, count, trace)
    payload = travel.pack(fn, args)
    chosen = choose_backend("gloo" if pace is not None else backend, count)
    share = choose_threads(threads, count)
    job = Job(count, chosen, share, entropy, seconds, trace, payload, pace, limit, struck)
    run = Run(job, float(patience))
    try:
        run.start()
        return run.wait() if wait else run
    except BaseException:
        try:
            run.stop()
        except BaseException:  # a second interrupt has cut it short
            run.stop()
        raise


def choose_threads(threads: int | None, ranks: int) -> int:
    """torch threads a rank: what was asked for, else OMP_NUM_THREADS, else an equal share."""
    if threads is not None:
        return threads
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    return max(1, cores() // ranks)


def choose_backend(backend: str, ranks: int, quiet: bool = False) -> str:
    """NCCL with a GPU a rank, else gloo; "auto" says once which, and why (unless `quiet`)."""
    if backend == "gloo":
        return backend
    gpus = _gpus()
    if backend == "nccl":
        if gpus < ranks:
            raise ValueError(
                f"backend='nccl' needs a GPU a rank: {ranks} ranks, {gpus} GPUs here. "
                "Use backend='gloo', or fewer ranks."
            )
        return backend
    chosen = "nccl" if gpus >= ranks else "gloo"
    why = f"{gpus} GPU{'s' if gpus != 1 else ''} here for {ranks} ranks"
    line = f"backend: {chosen}{' on CPU' if chosen == 'gloo' else ''} ({why})"
    if line not in _said and not quiet:
        _said.add(line)
        print(line)
    return chosen


_said: set[str] = set()


def _gpus() -> int:
    if sys.platform == "linux" and not Path("/proc/driver/nvidia").exists():
        return 0  # without loading torch into a kernel that has not needed it yet
    import torch

    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return torch.cuda.device_count() if nccl else 0


def _check(
    fn: Any,
    args: tuple[Any, ...],
    ranks: Any,
    backend: Any,
    threads: Any,
    seed: Any,
    timeout: Any,
    patience: Any,
) -> None:
    if not callable(fn):
        raise TypeError(f"launch runs a function, not {fn!r}")
    for name, value, least in (("ranks", ranks, 1), ("threads", threads, 1), ("seed", seed, 0)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r}: use a whole number")
        if value < least:
            raise ValueError(f"{name}={value}: use {least} or more")
    for name, value in (("timeout", timeout), ("patience", patience)):
        if value is None and name == "timeout":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name}={value!r}: use a number of seconds")
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value}: use a number of seconds above 0")
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: use one of {', '.join(BACKENDS)}")
    if ranks is not None and ranks > 250:
        raise ValueError(f"ranks={ranks}: one machine runs at most 250 ranks")
    _check_call(fn, args)


def _check_pace(pace: Any, backend: str, trace: bool) -> None:
    if not isinstance(pace, Cluster):
        raise TypeError(
            f"pace={reprlib.repr(pace)}: give a labkit.trace.Cluster, as in "
            "pace=Cluster(device, Link(latency, bandwidth)) or pace=CLUSTERS['H100']"
        )
    if not trace:
        raise ValueError("trace=False with pace: a paced run is always recorded; leave trace out")
    if backend == "nccl":
        raise ValueError("backend='nccl' with pace: paced ranks run on CPUs; leave backend out")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ValueError(
            "pace under torchrun: paced ranks are ranks of labkit's own. Start the program without "
            "torchrun, or leave pace out. Not under torchrun? Then unset RANK and WORLD_SIZE."
        )
    try:
        pace.device.flops()
    except ValueError as error:
        raise ValueError(
            f"pace={pace.name!r}: {pace.device.name} does not say what FLOP/s it reaches; "
            "give its Device `achieved`, as in achieved={'bfloat16': 5e14}"
        ) from error


def _check_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Tell a wrong number of arguments here, not four times from the ranks."""
    try:
        # What is called is the wrapper: it may give a decorated function arguments of its own.
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # built in: it will say so itself
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(
            f"{name}{signature} does not take these {len(args)} arguments: {error}"
        ) from None
