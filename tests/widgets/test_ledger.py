"""The table as it is seen holds the measured numbers that a stored output leaves out."""

from __future__ import annotations

from pathlib import Path

from labkit.practice import Ledger, Progress
from labkit.widgets.ledger import LedgerTable
from tests.practice.test_figures import two_ranks


def test_the_widget_tells_times_stamps_and_what_to_run(tmp_path: Path) -> None:
    book = Ledger(Progress(tmp_path))
    book.fill("data parallel", two_ranks(clock="paced"), note="mine")
    table = LedgerTable(book.rows, "data parallel")
    assert table.heads[0] == "technique"
    first, second, *_, last = table.rows
    assert first["technique"] == "one rank"
    assert not first["marked"]
    assert {cell["text"] for cell in first["cells"]} == {"run 00"}
    assert second["marked"]
    assert second["note"] == "mine"
    texts = [cell["text"] for cell in second["cells"]]
    assert texts[0] == "2 GFLOP, step 1,000 ms, computing 50 % of it"
    assert texts[1] == "not measured: launch with memory="
    assert second["cells"][1]["empty"]
    assert second["cells"][0]["stamp"].startswith("paced, 2 ranks")
    assert last["cells"][0] == {"text": "run 07", "stamp": "", "empty": True}


def test_a_ledger_and_a_row_show_their_own_ledger(tmp_path: Path) -> None:
    book = Ledger(Progress(tmp_path))
    row = book.fill("pipeline", two_ranks())
    view = "application/vnd.jupyter.widget-view+json"
    for shown in (book, row):
        data, _ = shown._repr_mimebundle_()
        assert view in data
        assert data["text/plain"] == repr(shown)
        assert "2 GFLOP" in data["text/html"]
    assert repr(LedgerTable(book.rows)) == "LedgerTable(rows=10)"
