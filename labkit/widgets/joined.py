"""A widget's code travels to the browser as one module and one sheet: its files, joined."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def joined(*names: str) -> str:
    """The text of these files of the widgets' folder, in this order."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
