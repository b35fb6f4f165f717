"""The ledger as a page for the evening before: HTML to print, or Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.practice.figures import COLUMNS

if TYPE_CHECKING:
    from labkit.practice.ledger import Row

__all__ = ["write"]

_STYLE = """
body { font: 15px/1.5 "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; margin: 2em; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #888; padding: 6px 14px 6px 0; }
th, td { text-align: left; vertical-align: top; }
tbody th { white-space: nowrap; }
small { color: #444; display: block; }
.empty { color: #555; font-style: italic; }
@page { size: landscape; }
"""
_TITLE = "The ledger"
_THESIS = (
    "Every technique trades computation, memory and communication against each other. "
    "Each cell was filled by a run of your own."
)


def write(rows: Sequence[Row], path: Path) -> Path:
    """Write `rows` to `path`, which ends in .html or .md.

    Raises
    ------
    ValueError : another ending
    """
    makers = {".html": _html, ".md": _markdown}
    if path.suffix not in makers:
        raise ValueError(f"{path.name}: a sheet ends in .html or .md")
    path.write_text(makers[path.suffix](rows), encoding="utf-8")
    return path


def _html(rows: Sequence[Row]) -> str:
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in ("technique", *COLUMNS.values()))
    lines = []
    for row in rows:
        cells = "".join(_cell(row, column) for column in COLUMNS)
        lines.append(f'<tr><th scope="row">{escape(row.technique)}</th>{cells}</tr>')
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{_TITLE}</h1><p>{_THESIS}</p>\n"
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>" + "\n".join(lines) + "</tbody></table>"
        "</body></html>\n"
    )


def _cell(row: Row, column: str) -> str:
    cell = row.cells.get(column)
    note = f"<small>{escape(row.note)}</small>" if row.note and column == "cost" else ""
    if cell is None:
        return f'<td class="empty">{escape(row.empty(column))}{note}</td>'
    return f"<td>{escape(cell.words)}{note}<small>{escape(cell.stamp)}</small></td>"


def _markdown(rows: Sequence[Row]) -> str:
    heads = ("technique", *COLUMNS.values())
    lines = [f"# {_TITLE}", "", _THESIS, "", _line(heads), _line(["---"] * len(heads))]
    for row in rows:
        texts = row.texts(exact=False)
        if row.note:
            texts[-1] += f"; {row.note}"
        lines.append(_line([row.technique, *texts]))
    filled = [(row, cell) for row in rows for cell in row.cells.values()]
    if filled:
        lines += ["", "Filled by:", ""]
    lines += [f"- {row.technique}, {COLUMNS[cell.column]}: {cell.stamp}" for row, cell in filled]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(c.replace("|", "\\|").split()) for c in cells) + " |"
