"""The memory budget of a rank: how it is written, and how it is told that a rank needs more.

What a rank holds is counted in `holdings`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from labkit.trace.memory import Held
from labkit.trace.tables import in_bytes

__all__ = ["Overrun", "parse_budget"]


@dataclass(frozen=True)
class Overrun:
    """More than the budget: what a rank held, how much it might, and when it was noticed."""

    held: Held
    budget: int  # bytes
    when: str

    def __str__(self) -> str:
        held, over = self.held, self.held.total - self.budget
        rows = [*held.parts.items(), ("total", held.total)]
        lines = [f"  {name:<12}{size:>15,} B  {in_bytes(size):>8}" for name, size in rows]
        return (
            f"rank {held.rank} is out of memory {self.when}: it holds {in_bytes(held.total)}, "
            f"{over:,} B more than the budget of {in_bytes(self.budget)}\n" + "\n".join(lines)
        )


_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_budget(memory: Any) -> float | None:
    """Bytes of ``launch(memory=…)``: a number, or text such as "64 MB", "1.5 GB", "64 MiB".

    MB are decimal (10**6 bytes), MiB binary (2**20). "measure" counts without a limit: infinite.

    Raises
    ------
    ValueError : text that is no size, or a size that is not above 0
    TypeError : neither text nor a number
    """
    if memory is None:
        return None
    advice = 'write "64 MB", "1.5 GB", "64 MiB", a number of bytes, or "measure" for no limit'
    if isinstance(memory, str):
        if memory.strip().lower() == "measure":
            return math.inf
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", memory.strip().lower())
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"memory={memory!r} is no size: {advice}")
        size = float(match[1]) * _UNITS[match[2]]
    elif isinstance(memory, int | float) and not isinstance(memory, bool):
        size = float(memory)
    else:
        raise TypeError(f"memory={memory!r}: {advice}")
    if not 1 <= size < math.inf:
        raise ValueError(f"memory={memory!r} is no budget: {advice}")
    return float(int(size))
