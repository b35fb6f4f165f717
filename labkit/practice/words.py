"""How a number and its unit are written, and how far one number is from another, in words."""

from __future__ import annotations

import math

__all__ = ["SECONDS", "number", "quantity", "ratio", "scaled"]

# Units of time, in seconds: for these the words say "longer", and a timeline can draw them.
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def number(value: float) -> str:
    """Three significant digits, whole numbers from 1,000 on with commas: ``8.64``, ``1,400``."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if not 1e-4 <= abs(rounded) < 1e15:
        return f"{rounded:.3g}"
    text = f"{rounded:,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(value: float, unit: str) -> str:
    """A number with its unit: ``335 ms``; a bare ratio as ``3.2×``."""
    return f"{number(value)}{unit}" if unit in ("×", "%") else f"{number(value)} {unit}".strip()


def ratio(said: float, actual: float, unit: str) -> str:
    """How `actual` lies to `said`: "4.2 times as long", "19 % less", or the difference.

    A ratio needs two numbers above 0; else only the difference can be told.
    """
    time = unit in SECONDS
    if said <= 0 or actual <= 0:
        return f"off by {quantity(abs(actual - said), unit)}"
    factor = actual / said
    if factor >= 2:
        return f"{_short(factor)} times as {'long' if time else 'much'}"
    if factor <= 0.5:
        return f"what you said is {_short(1 / factor)} times that"
    percent = round(100 * abs(factor - 1))
    if percent == 0:
        return "the same to less than 1 %"
    more = ("longer", "shorter") if time else ("more", "less")
    return f"{percent} % {more[factor < 1]}"


def _short(factor: float) -> str:
    """Two significant digits; whole from 10 on."""
    return f"{factor:.2g}" if factor < 10 else f"{factor:,.0f}"


def scaled(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix: ``5.76 MB``, ``1.2 GFLOP``."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{number(value / scale)} {prefix}{unit}"
    return f"{number(value)} {unit}"
