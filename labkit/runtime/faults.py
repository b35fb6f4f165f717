"""Faults on request: at a given step of a given rank, so that a failure can be reasoned about.

A step is what ``with span("step", step=7)`` opens; a fault strikes before anything inside it runs,
and the first time that this number comes. A fault that never struck is an error when the rank is
done: a lesson that believes in a failure that was none would prove nothing.

Cost: a call a span, only in a run with ``faults=``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.trace.log import Log
from labkit.trace.span import at_span

__all__ = ["Kill", "Slow", "Truncate"]


@dataclass(frozen=True)
class Kill:
    """Rank `rank` dies by SIGKILL when its step `step` begins, as a failing machine would."""

    rank: int
    step: int

    def __post_init__(self) -> None:
        _whole(self, "rank", "step")


@dataclass(frozen=True)
class Slow:
    """Rank `rank` takes `factor` times as long to compute, as a throttled device would.

    After every stretch of compute it sleeps (`factor` − 1) times the stretch's CPU time; a paced
    run multiplies the durations that are set.

    Parameters
    ----------
    rank : its global rank
    factor : 1 or more
    """

    rank: int
    factor: float

    def __post_init__(self) -> None:
        _whole(self, "rank")
        _number(self, "factor")
        if not 1 <= self.factor < float("inf"):
            raise ValueError(f"factor={self.factor}: a slow rank takes 1 or more times as long")


@dataclass(frozen=True)
class Truncate:
    """When step `step` of rank `rank` begins, the newest file under `folder` loses its end.

    Parameters
    ----------
    folder : looked through with the folders in it; files that start with a dot are left alone
    rank, step : whose step
    keep : share of the file that is left, from 0 up to, not with, 1
    """

    folder: str | Path
    rank: int
    step: int
    keep: float = 0.5

    def __post_init__(self) -> None:
        _whole(self, "rank", "step")
        _number(self, "keep")
        if not isinstance(self.folder, str | Path):
            raise TypeError(f"folder={self.folder!r}: give a path")
        if not 0 <= self.keep < 1:
            raise ValueError(f"keep={self.keep}: give a share from 0 up to, not with, 1")


Fault = Kill | Slow | Truncate


def _whole(fault: Any, *names: str) -> None:
    for name in names:
        value = getattr(fault, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r}: use a whole number")
        if value < 0:
            raise ValueError(f"{name}={value}: use 0 or more")


def _number(fault: Any, name: str) -> None:
    value = getattr(fault, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: use a number")


def check(faults: Any, ranks: int, trace: bool) -> tuple[Fault, ...]:
    """The faults of ``launch(faults=…)``, known to make sense.

    Raises
    ------
    TypeError : something in there is no fault
    ValueError : a rank that the run has not, one fault twice, or a slow rank that is not recorded
    """
    if isinstance(faults, Fault) or not isinstance(faults, Sequence):
        raise TypeError(f"faults={faults!r}: give a list, such as [labkit.faults.Kill(2, step=7)]")
    claimed: set[Any] = set()
    for fault in faults:
        if not isinstance(fault, Fault):
            raise TypeError(f"{fault!r} is no fault: use Kill, Slow or Truncate of labkit.faults")
        if fault.rank >= ranks:
            raise ValueError(f"{fault}: this run has ranks 0 to {ranks - 1}")
        # A rank dies once, and is slow by one factor.
        key = fault if isinstance(fault, Truncate) else (type(fault), fault.rank)
        if key in claimed and isinstance(fault, Truncate):
            raise ValueError(f"{fault} is there twice")
        if key in claimed:
            raise ValueError(f"{fault}: one {type(fault).__name__} a rank, and this is another")
        claimed.add(key)
        if isinstance(fault, Slow) and not trace:
            raise ValueError(f"{fault}: where compute ends is recorded; leave trace=False out")
    return tuple(faults)


def slow_factor(faults: Sequence[Fault], rank: int) -> float:
    """How many times as long `rank` takes to compute; 1.0 where no fault slows it."""
    return next((float(f.factor) for f in faults if isinstance(f, Slow) and f.rank == rank), 1.0)


@contextmanager
def striking(
    faults: Sequence[Fault], rank: int, folder: Path, log: Log | None = None
) -> Iterator[Callable[[], None]]:
    """Within it, the faults of `rank` strike this process when their steps begin.

    Parameters
    ----------
    folder : where a rank that is about to be killed leaves word, see `word_of`
    log : its stretches of compute are slowed; None: nothing is (a paced run does it itself)

    Yields
    ------
    callable : for the end; raises ValueError where a fault never struck, with the steps that began

    Raises
    ------
    FileNotFoundError : there was no file to truncate
    """
    waiting: list[Kill | Truncate] = [
        f for f in faults if f.rank == rank and not isinstance(f, Slow)
    ]
    begun: list[int] = []

    def at(name: str, tags: Mapping[str, Any]) -> None:
        step = tags.get("step") if name == "step" else None
        if step is None or isinstance(step, bool) or not hasattr(step, "__index__"):
            return
        begun.append(step.__index__())
        for fault in [f for f in waiting if f.step == begun[-1]]:
            waiting.remove(fault)
            if isinstance(fault, Truncate):
                truncate(fault)
            else:
                (folder / f"rank-{rank}.killed").write_text(str(fault.step))
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    with ExitStack() as stack:
        stack.enter_context(at_span(at))
        factor = slow_factor(faults, rank)
        if log is not None and factor > 1:
            stack.enter_context(slowed(log, factor))
        yield lambda: _refuse_missed(waiting, rank, begun)


@contextmanager
def slowed(log: Log, factor: float) -> Iterator[None]:
    """Within it, every stretch of compute of `log`'s thread is followed by a sleep."""
    last = time.thread_time()

    def arrive() -> None:
        nonlocal last
        now = time.thread_time()
        time.sleep((factor - 1) * (now - last))
        last = time.thread_time()  # what sleeping itself took is not slowed

    before, log.at_arrival = log.at_arrival, arrive
    try:
        yield
        arrive()
    finally:
        log.at_arrival = before


def word_of(rank: int, folder: Path) -> int | None:
    """The step at which a fault has killed `rank`; None where none has."""
    try:
        return int((folder / f"rank-{rank}.killed").read_text())
    except (OSError, ValueError):
        return None


def truncate(fault: Truncate) -> None:
    """Cut the newest file under the fault's folder; of equally new ones, the last by name."""
    root = Path(fault.folder)
    files = [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")]
    if not files:
        raise FileNotFoundError(f"{fault}: there is no file under {root.absolute()}")
    newest = max(files, key=lambda path: (path.stat().st_mtime_ns, str(path)))
    os.truncate(newest, int(newest.stat().st_size * fault.keep))


def _refuse_missed(waiting: Sequence[Kill | Truncate], rank: int, begun: Sequence[int]) -> None:
    if waiting:
        missed = "; ".join(f"{f} never struck: step {f.step} never began" for f in waiting)
        raise ValueError(f"{missed} on rank {rank}; {_in_words(begun)}")


def _in_words(begun: Sequence[int]) -> str:
    if not begun:
        return 'no step began: mark them, with span("step", step=i)'
    numbers = sorted(set(begun))
    if len(numbers) == 1:
        return f"step {numbers[0]} did"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"steps {numbers[0]} to {numbers[-1]} did"
    return f"steps {', '.join(map(str, numbers))} did"
