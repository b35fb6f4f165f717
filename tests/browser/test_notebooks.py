"""Every committed notebook, run from top to bottom in JupyterLab, and its timeline used."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import ROOT, Lab

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_timeline_works(lab: Lab, path: Path) -> None:
    shutil.copytree(path.parent, lab.server.folder / "notebooks", dirs_exist_ok=True)
    lab.open(f"notebooks/{path.name}")
    lab.run_all(timeout=240)
    assert lab.errors() == []
    assert lab.problems == []
    assert lab.outside == []

    timelines = [n for n, text in lab.texts() if text.startswith("Timeline(")]
    if any(".timeline(" in source for source in lab.cells()):
        assert timelines
    for number in timelines:
        work(lab.output_of(number).locator(".labkit-timeline").first)


def work(root: Locator) -> None:
    """Zoom, walk along the events and read the table."""
    canvas = root.locator("canvas[data-events]").first  # of two runs, the upper one
    expect(canvas).to_have_attribute("data-draw-ms", re.compile(r"\d"))
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    canvas.press("+")
    expect(canvas).to_have_attribute("data-zoom", "1.600")
    canvas.press("0")
    canvas.press("ArrowRight")
    expect(root.get_by_role("status")).to_contain_text(re.compile(r"Rank \d+: .+ starts at "))
    canvas.press("t")
    ranks = root.locator("table").filter(has_text="Each rank").first
    events = root.locator("table").filter(has_text=re.compile(r": .*\d events")).first
    expect(ranks).to_be_visible()
    assert ranks.locator("tbody tr").count() > 0
    shown = events.locator("tbody tr").count()
    counted = re.search(
        r": (?:first (\d+) of )?([\d,]+) events", events.locator("caption").inner_text()
    )
    assert counted is not None
    assert shown == int(counted[1] or counted[2].replace(",", ""))
    canvas.press("t")
