"""Compare two ways of doing the same thing: the median of ratios over interleaved pairs.

A machine's speed drifts by more than the difference looked for, so a run of ours is set against
the peer's run right beside it. The interval needs no assumption about how ratios are spread: it
lies between two of the sorted ratios, chosen so that the true median lies outside with a
probability of at most 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """The median of `pairs` ratios with its 95 % interval."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(ours: Sequence[float], peer: Sequence[float]) -> Ratio:
    """The ratio of `ours` to `peer`, pair by pair.

    Raises
    ------
    ValueError : another number of runs of the one than of the other, or fewer than 6 pairs, which
        have no such interval
    """
    if len(ours) != len(peer):
        raise ValueError(f"{len(ours)} runs of ours and {len(peer)} of the peer are no pairs")
    if len(ours) < 6:
        raise ValueError(f"{len(ours)} pairs: an interval of 95 % needs at least 6")
    ratios = sorted(a / b for a, b in zip(ours, peer, strict=True))
    cut = _ranks_outside(len(ratios))
    return Ratio(median(ratios), ratios[cut], ratios[-1 - cut], len(ratios))


def _ranks_outside(n: int) -> int:
    """How many sorted values may be left out at each end."""
    outside, below = 0, 0.0  # chance that at most `outside` of n values lie below the median
    while True:
        below += comb(n, outside) / 2**n
        if 2 * below > 1 - CONFIDENCE:
            return outside - 1
        outside += 1


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text under a header, in aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(x, widths, strict=True)) for x in lines)
