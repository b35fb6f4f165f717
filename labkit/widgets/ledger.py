"""The ledger as it is seen: the table with its measured times, and by which run each was filled.

A widget and not HTML, since its numbers differ from run to run and a notebook's HTML is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from labkit.practice.figures import COLUMNS
from labkit.widgets.joined import joined

if TYPE_CHECKING:
    from labkit.practice.ledger import Row


class LedgerTable(anywidget.AnyWidget):
    """The table of `rows`; the row of the technique `marked` stands out."""

    _esm = joined("front/page.js", "ledger.js")
    _css = joined("front/theme.css", "front/card.css", "ledger.css")

    heads: traitlets.List[str] = traitlets.List().tag(sync=True)
    rows: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)

    def __init__(self, rows: Sequence[Row], marked: str | None = None) -> None:
        shown = [_row(row, row.technique == marked) for row in rows]
        super().__init__(heads=["technique", *COLUMNS.values()], rows=shown)

    def __repr__(self) -> str:
        return f"LedgerTable(rows={len(self.rows)})"


def _row(row: Row, marked: bool) -> dict[str, Any]:
    cells = []
    for column in COLUMNS:
        cell = row.cells.get(column)
        cells.append(
            {"text": row.empty(column), "stamp": "", "empty": True}
            if cell is None
            else {"text": cell.words, "stamp": cell.stamp, "empty": False}
        )
    return {"technique": row.technique, "cells": cells, "note": row.note, "marked": marked}
