"""Tables of measures, as plain text and as HTML that a screen reader can walk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Table", "brief", "html", "in_bytes", "plain", "size", "time"]


@dataclass(frozen=True)
class Table:
    """A caption, a head a column, and rows of text whose first `labels` cells name the row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1


def plain(table: Table) -> str:
    """Columns side by side: labels to the left, figures to the right."""
    if not table.rows:
        return table.caption
    lines = [table.head, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.head))]
    text = [
        "  ".join(
            cell.ljust(width) if i < table.labels else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.caption, *text])


def html(table: Table) -> str:
    """A table with a caption, and with heads that say whether they head a column or a row."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    body = []
    for row in table.rows:
        names = "".join(f'<th scope="row">{escape(cell)}</th>' for cell in row[: table.labels])
        figures = "".join(f"<td>{escape(cell)}</td>" for cell in row[table.labels :])
        body.append(f"<tr>{names}{figures}</tr>")
    return (
        f"<table><caption>{escape(table.caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def time(value: float, unit: str = "s") -> str:
    """Seconds in milliseconds; other units as they are."""
    return f"{value * 1e3:,.2f} ms" if unit == "s" else f"{value:,.6g} {unit}"


def brief(value: float, unit: str = "s") -> str:
    """A time as a sentence tells it: three figures, in the unit that suits it."""
    if unit != "s":
        return f"{value:.3g} {unit}"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        # 999.6 ms would be told as 1e+03 ms.
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.{_places(value / scale)}f} {name}"
    return "0 s" if not value else f"{value:.3g} s"


def _places(value: float) -> int:
    """Decimals that show three figures of a number from 1 up."""
    return max(0, 2 - math.floor(math.log10(max(abs(value), 1.0))))


def size(value: float) -> str:
    """Bytes, whole."""
    return f"{value:,.0f} B"


def in_bytes(size: float) -> str:
    """`size` bytes as people write it, in decimal units: ``1.5 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{float(f'{size / scale:.3g}'):g} {unit}"
    return f"{size:.0f} B"
