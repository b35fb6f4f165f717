"""How times, bytes and clocks are written; `front/words.js` writes them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.trace.events import About


def in_bytes(size: float) -> str:
    """`size` bytes as people write it, in decimal units: ``1.5 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def scale_of(unit: str, span: float) -> tuple[float, str]:
    """Factor and word for an axis of `span` units, so that its numbers are easy to read."""
    if unit != "s":
        return 1.0, unit
    factors = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))
    return next((factor, word) for least, factor, word in factors if span >= least)


def in_time(value: float, unit: str, digits: int = 3) -> str:
    """A time as people say it: ``144 ms``."""
    factor, word = scale_of(unit, abs(value))
    return f"{float(f'{value * factor:.{digits}g}'):g} {word}".strip()


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
