"""Run a function on ranks: one call, one group, no process left behind.

`launch` packs the function, and hands the job to a `Run`, which starts the ranks (`start`) and
follows them. Ranks meet through a file in a private folder (0700), so no port is opened and nothing
listens beyond loopback. Under torchrun the ranks are there already: `world` runs the function here.
"""

from __future__ import annotations

import inspect
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.runtime import travel
from labkit.runtime.run import Run, cores
from labkit.runtime.worker import Job

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
    pace: Any = None,
    memory: str | int | None = None,
    faults: Sequence[Any] = (),
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
    pace, memory, faults : a modelled cluster, a memory budget, injected faults

    Returns
    -------
    Run : results, output and trace by rank

    Raises
    ------
    TypeError, ValueError : bad arguments, or arguments that cannot travel; before any rank starts
    RankFailed : a rank raised or died; its own traceback is told
    Deadlock : ranks wait for each other, or for finished ones: who, in what, for whom, where
    Mismatch : ranks met in operations that do not fit, also where nothing hangs: both, and where
    TimedOut : with what each rank was doing
    KeyboardInterrupt : the cell was interrupted; no rank is left
    """
    _check(fn, args, ranks, backend, threads, seed, timeout, patience)
    _not_in_this_version(pace=pace, memory=memory, faults=tuple(faults) or None)
    if os.environ.get("LABKIT_RANK") is not None:
        raise RuntimeError(
            f"launch() was called on rank {os.environ['LABKIT_RANK']} of a run: "
            "ranks cannot launch ranks. Call it outside the function that you launch."
        )
    seconds = DEFAULT_TIMEOUT if timeout is None else float(timeout)
    entropy = secrets.randbits(63) if seed is None else seed
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from labkit.runtime.world import run_in_world

        return run_in_world(fn, args, ranks, backend, threads, entropy, seconds, trace)
    count = DEFAULT_RANKS if ranks is None else ranks
    payload = travel.pack(fn, args)
    chosen = choose_backend(backend, count)
    job = Job(count, chosen, choose_threads(threads, count), entropy, seconds, trace, payload)
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
        if value is None:
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


def _not_in_this_version(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r}: this version of labkit has no {name}; leave it out"
            )
