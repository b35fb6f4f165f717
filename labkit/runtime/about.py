"""What is to be said of any run on this machine: its ranks, and the cores that they share."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from labkit.trace import About


def about_run(ranks: int, backend: str) -> About:
    """What is to be said of a recorded run on this machine."""
    return About(ranks=ranks, clock="measured", error=0.0, cores=cores(), backend=backend)


def cores() -> int:
    """Cores that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # a container's share, as on Binder
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count
