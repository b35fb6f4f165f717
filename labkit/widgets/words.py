"""How times, bytes and clocks are written; `front/words.js` writes them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.trace.tables import in_bytes as in_bytes

if TYPE_CHECKING:
    from labkit.trace.events import About


def scale_of(unit: str, span: float) -> tuple[float, str]:
    """Factor and word for an axis of `span` units, so that its numbers are easy to read."""
    if unit != "s":
        return 1.0, unit
    factors = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))
    return next((factor, word) for least, factor, word in factors if span >= least)


def clock_note(about: About) -> str:
    """What has to be said beside the clock's word."""
    notes = []
    if 0 < about.cores < about.ranks:
        cores = f"{about.cores} core{'s' if about.cores > 1 else ''}"
        notes.append(f"{about.ranks} ranks share {cores}")
    if about.error > 0:
        factor, word = scale_of(about.unit, about.error)
        notes.append(f"clocks of two ranks agree to ±{about.error * factor:.2g} {word}")
    if about.note:
        notes.append(about.note)
    return "; ".join(notes)


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2,000 steps``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
