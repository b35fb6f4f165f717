"""One clock for ranks on several machines.

On one machine every process reads the same monotonic clock. Between machines these clocks start
anywhere and drift, so each rank compares its own with rank 0's through the store, before and after
the run: it asks, rank 0 answers with its time, and the answer belongs to the middle of the round
trip. Of several round trips the shortest counts; half of it is the error. In between, linear.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.trace.log import RankRecord

_ROUNDS = 8


@dataclass(frozen=True)
class Offset:
    """How far this process's clock is ahead of rank 0's, all in nanoseconds."""

    at: int  # on this clock
    ahead: int = 0
    error: int = 0


def machine() -> str:
    """A name that two processes share where they share a clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def compare(
    store: Any,
    rank: int,
    world: int,
    name: str,
    now: Callable[[], int] = time.perf_counter_ns,
    here: str | None = None,
) -> Offset:
    """Compare this rank's clock with rank 0's. All ranks call; rank 0 answers one after the other.

    Parameters
    ----------
    store : the group's store
    name : of this comparison, new each time
    now, here : this process's clock, and the machine it belongs to
    """
    store.set(f"{name}-machine-{rank}", here or machine())
    machines = [store.get(f"{name}-machine-{r}") for r in range(world)]  # waits for all
    if rank == 0:
        for other in range(1, world):
            for i in range(_ROUNDS if machines[other] != machines[0] else 0):
                store.get(f"{name}-ask-{other}-{i}")  # waits until it asks
                store.set(f"{name}-answer-{other}-{i}", str(now()))
    elif machines[rank] != machines[0]:
        trips = []
        for i in range(_ROUNDS):
            asked = now()
            store.set(f"{name}-ask-{rank}-{i}", "")
            there = int(store.get(f"{name}-answer-{rank}-{i}"))
            back = now()
            trips.append((back - asked, (asked + back) // 2, there))
        trip, middle, there = min(trips)
        return Offset(middle, middle - there, (trip + 1) // 2)
    return Offset(now())


def on_rank_0s_clock(record: RankRecord, before: Offset, after: Offset) -> RankRecord:
    """`record` with every wall-clock stamp moved to rank 0's clock."""
    if before.ahead == after.ahead == 0:
        return record
    span = max(1, after.at - before.at)
    drift = after.ahead - before.ahead

    def wall(at: int) -> int:
        return at - before.ahead - drift * (at - before.at) // span

    return record.on_clock(wall)
