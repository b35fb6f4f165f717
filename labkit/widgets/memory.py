"""The four-part memory bar: what each rank holds, beside what it may.

One stacked bar a row (weights, gradients, optimizer, activations), the budget as a line across all.
In a notebook it can be walked by keyboard and read as a table (``memory.js``); everywhere else it
is a still (PNG), and in plain text a line of exact bytes, since those are the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from labkit.runtime import OutOfMemory, Run
from labkit.trace import Trace
from labkit.trace.memory import Held
from labkit.widgets import memory_still
from labkit.widgets.joined import joined
from labkit.widgets.palette import MEMORY
from labkit.widgets.still import beside
from labkit.widgets.words import in_bytes

if TYPE_CHECKING:
    from os import PathLike

Source = Run | Trace | OutOfMemory | Held | Sequence[Held]


class MemoryBar(anywidget.AnyWidget):
    """A memory bar of what each rank held at its peak.

    Parameters
    ----------
    source : a run or a trace with memory marks (``launch(memory=…)``), an `OutOfMemory`, one
        `Held` or several; or a mapping from labels to these, to compare: ``{"FP32": run, "mixed":
        other}``
    budget : bytes; None: that of the run or the error, if it has one
    step : of a run or a trace: look at this step alone
    title : a line above the picture

    Raises
    ------
    ValueError : there is nothing to show, or a budget below 1 byte
    TypeError : something else was given
    KeyError : the trace has no such step
    """

    _esm = joined("front/words.js", "front/page.js", "memory.js")
    _css = joined("front/theme.css", "memory.css")

    data = traitlets.Dict().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        source: Source | Mapping[str, Source],
        *,
        budget: int | None = None,
        step: int | None = None,
        title: str = "",
    ) -> None:
        self.rows = tuple(_rows(source, step))
        found = _budget(source) if budget is None else budget
        if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
            raise TypeError(f"budget={found!r}: give a whole number of bytes")
        if found is not None and found < 1:
            raise ValueError(f"budget={found}: give at least 1 byte")
        self.budget: int | None = found
        data = {
            "rows": [[label, list(held.parts.values())] for label, held in self.rows],
            "budget": self.budget,
            "words": self.words,
            "styles": [vars(style) for style in MEMORY],
        }
        super().__init__(data=data, title=title)

    @cached_property
    def words(self) -> str:
        """What the picture says, in a sentence or a few."""
        groups = _alike(self.rows)
        if len(groups) <= 4:
            text = " ".join(self._sentence(*group) for group in groups)
            return f"R{text[1:]}" if text.startswith("rank") else text
        rows = sorted(self.rows, key=lambda row: row[1].total)
        most, least = (self._sentence([label], held) for label, held in (rows[-1], rows[0]))
        return f"Most of {len(rows)}: {most} Least: {least}"

    def _sentence(self, labels: list[str], held: Held) -> str:
        many = len(labels) > 1
        text = f"{_in_words(labels)} {'hold' if many else 'holds'} {in_bytes(held.total)}"
        text += " each" if many else ""
        if self.budget is None:
            return f"{text}."
        budget = f"the budget of {in_bytes(self.budget)}"
        over = held.total - self.budget
        if over > 0:
            return f"{text}, {in_bytes(over)} more than {budget}."
        return f"{text} of {budget}: {in_bytes(-over)} are left."

    def still(self) -> bytes:
        """The picture as a PNG, 1,000 pixels wide at 1.5 pixels a pixel."""
        if self._drawn is None or self._drawn[0] != self.title:
            png = memory_still.draw(self.rows, self.budget, self.title, self.words)
            self._drawn = (self.title, png)
        return self._drawn[1]

    _drawn: tuple[str, bytes] | None = None

    def save_png(self, path: str | PathLike[str]) -> None:
        """Write `still` to a file."""
        Path(path).write_bytes(self.still())

    def __repr__(self) -> str:
        # Bytes are exact: a stored output that differs tells a real difference.
        parts = []
        for labels, held in _alike(self.rows):
            sizes = ", ".join(f"{name}={size:,}" for name, size in held.parts.items())
            parts.append(f"{_in_words(labels)}: {sizes}")
        if self.budget is not None:
            parts.append(f"budget={self.budget:,}")
        return f"MemoryBar({'; '.join(parts)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return beside(super()._repr_mimebundle_(**kwargs), repr(self), self.still)


def _rows(source: Any, step: int | None) -> list[tuple[str, Held]]:
    """Labels, and what is held."""
    if not isinstance(source, Mapping):
        return [(f"rank {held.rank}", held) for held in _held(source, step)]
    if not source:
        raise ValueError("there is nothing to show: the mapping is empty")
    rows = []
    for label, one in source.items():
        found = _held(one, step)
        if len({tuple(h.parts.values()) for h in found}) == 1:  # ranks that are alike: one bar
            rows.append((str(label), found[0]))
        else:
            rows += [(f"{label}, rank {h.rank}", h) for h in found]
    return rows


def _held(source: Any, step: int | None) -> tuple[Held, ...]:
    if isinstance(source, OutOfMemory):
        return source.held
    if isinstance(source, Run | Trace):
        trace = source if isinstance(source, Trace) else source.trace
        found = trace.memory(step)
        if not found:
            raise ValueError(
                "this trace has no memory marks: launch the run with memory='64 MB', or with "
                "memory='measure' for no limit"
            )
        return found
    rows = (source,) if isinstance(source, Held) else source
    if not isinstance(rows, Sequence) or not all(isinstance(row, Held) for row in rows):
        raise TypeError(
            f"MemoryBar shows a run, a trace, an OutOfMemory or Held, not {type(source).__name__}"
        )
    if not rows:
        raise ValueError("there is nothing to show: no Held was given")
    return tuple(rows)


def _budget(source: Any) -> int | None:
    """The one budget that a source knows, or that all sources of a mapping agree on."""
    if isinstance(source, Run | OutOfMemory):
        return source.budget
    if isinstance(source, Mapping):
        known = {_budget(one) for one in source.values()} - {None}
        return known.pop() if len(known) == 1 else None
    return None


def _alike(rows: Sequence[tuple[str, Held]]) -> list[tuple[list[str], Held]]:
    """Neighbours with the same bytes, together."""
    groups = groupby(rows, key=lambda row: tuple(row[1].parts.values()))
    found = [list(group) for _, group in groups]
    return [([label for label, _ in group], group[0][1]) for group in found]


def _in_words(labels: Sequence[str]) -> str:
    """``rank 0``, ``ranks 0 to 3``, ``ranks 0, 2, 3``, ``FP32, mixed``."""
    numbers = [label.removeprefix("rank ") for label in labels]
    if len(labels) == 1 or not all(number.isdecimal() for number in numbers):
        return ", ".join(labels)
    first, last = int(numbers[0]), int(numbers[-1])
    if len(labels) > 2 and numbers == [str(rank) for rank in range(first, last + 1)]:
        return f"ranks {first} to {last}"
    return f"ranks {', '.join(numbers)}"
