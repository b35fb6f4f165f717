"""labkit: run distributed training on real ranks, see what they did, and answer for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.practice import ledger, predict
    from labkit.runtime import (
        Deadlock,
        Mismatch,
        OutOfMemory,
        RankFailed,
        Run,
        TimedOut,
        faults,
        launch,
    )
    from labkit.trace import Trace, mark, span
    from labkit.widgets import MemoryBar

__version__ = "0.1.0"

_HOME = {
    "launch": "labkit.runtime",
    "Run": "labkit.runtime",
    "RankFailed": "labkit.runtime",
    "TimedOut": "labkit.runtime",
    "Deadlock": "labkit.runtime",
    "Mismatch": "labkit.runtime",
    "OutOfMemory": "labkit.runtime",
    "faults": "labkit.runtime",
    "MemoryBar": "labkit.widgets",
    "Trace": "labkit.trace",
    "mark": "labkit.trace",
    "span": "labkit.trace",
    "ledger": "labkit.practice",
    "predict": "labkit.practice",
}

__all__ = [
    "Deadlock",
    "MemoryBar",
    "Mismatch",
    "OutOfMemory",
    "RankFailed",
    "Run",
    "TimedOut",
    "Trace",
    "faults",
    "launch",
    "ledger",
    "mark",
    "predict",
    "span",
]


def __getattr__(name: str) -> Any:
    # Imported when first used (PEP 562): `import labkit` stays quick and light.
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
