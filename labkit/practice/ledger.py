"""The ledger: one table carried through the course, each cell filled by the learner's own run.

A row a technique, four columns: computation, memory a rank, bytes a step, what it costs you. That
is the course's thesis, that distributed training trades these against each other, and the sheet for
the evening before an interview. A run costs nothing more for it: all is read from its trace.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.practice.figures import COLUMNS, Cell, measure
from labkit.practice.progress import Progress, now
from labkit.trace.events import Trace
from labkit.trace.tables import Table, html, plain

if TYPE_CHECKING:
    from labkit.runtime.run import Run

__all__ = ["TECHNIQUES", "Ledger", "Row", "ledger"]

# The rows, and the notebook whose run fills each.
TECHNIQUES = {
    "one rank": "00",
    "data parallel": "01",
    "gradient accumulation": "02",
    "mixed precision": "03",
    "pipeline": "04",
    "tensor parallel": "05",
    "checkpointing": "06",
    "ZeRO 1": "07",
    "ZeRO 2": "07",
    "ZeRO 3": "07",
}
_SECTION = "ledger"


@dataclass(frozen=True, repr=False)
class Row:
    """What the learner's runs have said of one technique.

    Parameters
    ----------
    cells : the filled ones, by key of `COLUMNS`
    note : a sentence of the learner's own
    book : the ledger that it is a row of
    """

    technique: str
    cells: Mapping[str, Cell]
    note: str
    book: Ledger

    @property
    def lesson(self) -> str:
        return TECHNIQUES[self.technique]

    def empty(self, column: str) -> str:
        """What an empty cell says: what to run."""
        if self.cells and column == "memory":
            return "not measured: launch with memory="
        return f"run {self.lesson}"

    def texts(self, exact: bool) -> list[str]:
        """The four cells as text; `exact`: only what is the same in every run."""
        found = []
        for column in COLUMNS:
            cell = self.cells.get(column)
            if cell is None:
                found.append(self.empty(column))
            elif exact:
                found.append(cell.exact or cell.clock)
            else:
                found.append(cell.words)
        return found

    def table(self) -> Table:
        """The row alone, with what is the same in every run."""
        heads = ("technique", *COLUMNS.values())
        return Table("The ledger", heads, [(self.technique, *self.texts(exact=True))])

    def __repr__(self) -> str:
        texts = zip(COLUMNS.values(), self.texts(exact=True), strict=True)
        return "\n".join([f"The ledger, {self.technique}", *(f"  {a}: {b}" for a, b in texts)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        stored = {"text/plain": repr(self), "text/html": html(self.table())}
        return _shown(self.book.rows, self.technique, stored, include, exclude)


class Ledger:
    """All rows, filled and empty; shows itself as a table.

    Parameters
    ----------
    progress : where it is kept; None: the learner's own
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._own = progress

    @property
    def _progress(self) -> Progress:
        return self._own or Progress()  # asked anew each time: LABKIT_HOME may have changed

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every technique's row, in the order of the course."""
        stored = self._progress.section(_SECTION)
        return tuple(self._row(technique, stored.get(technique)) for technique in TECHNIQUES)

    def fill(
        self, technique: str, run: Run | Trace, *, step: int | None = None, note: str = ""
    ) -> Row:
        """Fill a technique's row from a run.

        A cell that this run says nothing of (memory, without ``launch(memory=…)``) keeps what an
        earlier run said.

        Parameters
        ----------
        technique : a key of `TECHNIQUES`
        run : what `labkit.launch` returned, or a trace
        step : of this step; None: the last one
        note : a sentence of one's own; "": the earlier one stays

        Raises
        ------
        ValueError : no such technique, or the run was not recorded
        KeyError : no such step

        Examples
        --------
        >>> labkit.ledger.fill("data parallel", run, note="hides under the backward")
        """
        _known(technique)
        trace = run if isinstance(run, Trace) else run.trace
        stamp = {"clock": trace.about.clock, "ranks": trace.about.ranks, "when": now()}
        cells = {
            column: {"figures": figures, **stamp}
            for column, figures in measure(trace, step).items()
        }

        def merge(record: Any) -> dict[str, Any]:
            before = record if isinstance(record, dict) else {}
            return {**before, **cells, **({"note": note} if note else {})}

        return self._row(technique, self._progress.change(_SECTION, technique, merge))

    def clear(self, technique: str | None = None) -> None:
        """Empty one row, or with None all of them.

        Raises
        ------
        ValueError : no such technique
        """
        for name in TECHNIQUES if technique is None else (_known(technique),):
            self._progress.drop(_SECTION, name)

    def sheet(self, path: str | PathLike[str] = "ledger.html") -> Path:
        """Write the ledger to a file to read or print: HTML, or Markdown where it ends in .md.

        Raises
        ------
        ValueError : another ending
        """
        from labkit.practice import sheet

        return sheet.write(self.rows, Path(path))

    def _row(self, technique: str, record: Any) -> Row:
        """A row from what is stored; a cell that cannot be read is an empty one."""
        record = record if isinstance(record, dict) else {}
        cells = {}
        for column in COLUMNS:
            try:
                part = record[column]
                cell = Cell(column, part["figures"], part["clock"], part["ranks"], part["when"])
                _ = cell.words, cell.exact, cell.stamp
            except (KeyError, TypeError, AttributeError, ValueError):
                continue
            cells[column] = cell
        note = record.get("note", "")
        return Row(technique, cells, note if isinstance(note, str) else "", self)

    def __repr__(self) -> str:
        return plain(self._table())

    def _table(self) -> Table:
        rows = [(row.technique, *row.texts(exact=True)) for row in self.rows]
        return Table("The ledger", ("technique", *COLUMNS.values()), rows)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        stored = {"text/plain": repr(self), "text/html": html(self._table())}
        return _shown(self.rows, None, stored, include, exclude)


def _shown(
    rows: Sequence[Row], marked: str | None, stored: dict[str, str], include: Any, exclude: Any
) -> Any:
    """The whole ledger as a widget, and beside it what notebooks store and compare."""
    from labkit.widgets.ledger import LedgerTable

    bundle = LedgerTable(rows, marked)._repr_mimebundle_(include=include, exclude=exclude)
    if bundle is None:
        return stored
    data, metadata = bundle
    return {**data, **stored}, metadata


def _known(technique: str) -> str:
    if technique in TECHNIQUES:
        return technique
    near = difflib.get_close_matches(str(technique), TECHNIQUES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"the ledger has no row {technique!r}.{hint} Its rows: {', '.join(TECHNIQUES)}"
    )


ledger = Ledger()
