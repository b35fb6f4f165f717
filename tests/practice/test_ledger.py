"""The ledger begins empty, is filled by runs, keeps what they said, and shows what is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import labkit
from labkit.practice import Ledger, Progress
from labkit.practice.figures import COLUMNS
from labkit.practice.ledger import TECHNIQUES
from labkit.trace.events import Group
from tests.practice.test_figures import step, two_ranks
from tests.widgets.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1))


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger(Progress(tmp_path / "home"))


def row_of(book: Ledger, technique: str) -> Any:
    (found,) = (row for row in book.rows if row.technique == technique)
    return found


def test_it_begins_empty_and_says_what_to_run() -> None:
    lines = repr(labkit.ledger).splitlines()
    assert lines[0] == "The ledger"
    assert [line.split("  ")[0] for line in lines[2:]] == list(TECHNIQUES)
    for line, lesson in zip(lines[2:], TECHNIQUES.values(), strict=True):
        assert line.count(f"run {lesson}") == len(COLUMNS)
    assert not Progress().path.exists()


def test_a_run_fills_its_row_and_no_other(book: Ledger) -> None:
    row = book.fill("data parallel", two_ranks(clock="paced"), note="hides under the backward")
    assert set(row.cells) == {"computation", "bytes", "cost"}
    assert row.note == "hides under the backward"
    cell = row.cells["bytes"]
    assert (cell.clock, cell.ranks, cell.figures["payload"]) == ("paced", 2, 1000)
    assert cell.stamp.startswith("paced, 2 ranks, 20")
    again = Ledger(book._own)  # another kernel
    assert row_of(again, "data parallel").cells == row.cells
    assert not row_of(again, "one rank").cells


def test_what_a_notebook_stores_holds_no_measured_number(book: Ledger) -> None:
    quick = book.fill("data parallel", two_ranks())
    slow = trace_of([row for rank in range(2) for row in step(rank, 0.0, 2 * 10**9, 0, wait=0.45)])
    texts = {repr(quick), repr(book.fill("data parallel", slow))}
    assert len(texts) == 1
    (text,) = texts
    assert text.splitlines() == [
        "The ledger, data parallel",
        "  computation: 2 GFLOP",
        "  memory a rank: not measured: launch with memory=",
        "  bytes a step: payload 1 kB, closed form 1 kB",
        "  what it costs you: measured",
    ]
    data, _ = quick._repr_mimebundle_()
    assert data["text/plain"] == text
    assert "ms" not in data["text/html"]
    assert "2 GFLOP" in data["text/html"]


def test_a_later_run_replaces_figures_and_keeps_what_it_says_nothing_of(book: Ledger) -> None:
    parts = {"weights": 4, "gradients": 4, "optimizer": 8, "activations": 0}
    stamp = {"clock": "measured", "ranks": 4, "when": "2026-11-30T09:00:00+00:00"}
    book._progress.put(
        "ledger", "pipeline", {"memory": {"figures": {"parts": parts}, **stamp}, "note": "mine"}
    )
    row = book.fill("pipeline", two_ranks())
    assert row.cells["memory"].stamp == "measured, 4 ranks, 2026-11-30 09:00 UTC"
    assert row.cells["bytes"].ranks == 2
    assert row.note == "mine"
    assert book.fill("pipeline", two_ranks(), note="other").note == "other"


def test_one_step_can_be_chosen(book: Ledger) -> None:
    row = book.fill("data parallel", two_ranks(), step=0)
    assert row.cells["computation"].figures["flops"] == 10**9
    with pytest.raises(KeyError, match="no step 9"):
        book.fill("data parallel", two_ranks(), step=9)


def test_a_row_that_is_not_there_is_told(book: Ledger) -> None:
    with pytest.raises(ValueError, match=r"no row 'data-parallel'. Did you mean 'data parallel'"):
        book.fill("data-parallel", two_ranks())
    with pytest.raises(ValueError, match="no row 'ZeRO'"):
        book.clear("ZeRO")
    assert not book._progress.path.exists()


def test_a_run_without_a_record_is_refused(book: Ledger) -> None:
    run = labkit.launch(int, ranks=1, backend="gloo", trace=False)
    with pytest.raises(ValueError, match="not recorded"):
        book.fill("one rank", run)


def test_a_real_run_fills_it(book: Ledger) -> None:
    def work() -> None:
        import torch
        import torch.distributed as dist

        from labkit import span

        with span("step", step=0):
            product = torch.ones(8, 16) @ torch.ones(16, 4)
            dist.all_reduce(product)

    run = labkit.launch(work, ranks=2, backend="gloo", threads=1)
    row = book.fill("data parallel", run)
    assert row.cells["computation"].figures["flops"] == 2 * 8 * 16 * 4
    assert row.cells["bytes"].exact == "payload 128 B, closed form 128 B"


def test_clear_empties_one_row_or_all(book: Ledger) -> None:
    book.fill("pipeline", two_ranks())
    book.fill("ZeRO 1", two_ranks())
    book.clear("pipeline")
    assert not row_of(book, "pipeline").cells
    assert row_of(book, "ZeRO 1").cells
    book.clear()
    assert not any(row.cells for row in book.rows)


@pytest.mark.parametrize(
    "record",
    [3, [], {"bytes": 3}, {"bytes": {"figures": {}}}, {"cost": {"figures": {"calls": "x"}}},
     {"computation": {"figures": {"flops": "many"}, "clock": 1, "ranks": "4", "when": None}}],
)  # fmt: skip
def test_what_cannot_be_read_is_an_empty_cell(book: Ledger, record: Any) -> None:
    book._progress.put("ledger", "pipeline", record)
    assert not row_of(book, "pipeline").cells
    assert book.fill("pipeline", two_ranks()).cells


def test_the_sheet_is_a_page_that_stands_alone(book: Ledger, tmp_path: Path) -> None:
    book.fill("data parallel", two_ranks(clock="paced"), note="<b>hides</b> | under it")
    path = book.sheet(tmp_path / "ledger.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "&lt;b&gt;hides" in text
    assert "<b>hides" not in text
    for part in ("2 GFLOP, step 1,000 ms", "paced, 2 ranks", "run 04", "what it costs you"):
        assert part in text
    assert "http" not in text
    markdown = book.sheet(tmp_path / "ledger.md").read_text(encoding="utf-8")
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(TECHNIQUES)
    assert {line.replace("\\|", "").count("|") for line in table} == {6}
    assert "- data parallel, bytes a step: paced, 2 ranks" in markdown


def test_a_sheet_of_another_kind_is_refused(book: Ledger, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.html or \.md"):
        book.sheet(tmp_path / "ledger.pdf")
