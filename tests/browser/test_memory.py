"""The memory bar in JupyterLab: what a learner sees, points at and types."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

from tests.browser.lab import Lab, Server

MADE = """
import labkit
from labkit.trace import Held
four = [Held(r, 5_757_696, 5_757_696, 11_515_556, 0) for r in range(4)]
"""
EVIL = """
labkit.MemoryBar({"<img src=x onerror=window.broken=true>": four[0]}, title="<b>bold</b>")
"""
CELLS = (
    MADE,
    "bar = labkit.MemoryBar(four, budget=20_000_000, title='Four ranks, one budget')\nbar",
    "labkit.MemoryBar({'FP32': Held(0, 5_757_696, 5_757_696, 11_515_556, 20_258_820),\n"
    "'BF16 with FP32 masters': Held(0, 2_878_848, 2_878_848, 17_273_252, 10_129_412)},\n"
    "budget=40_000_000)",
    EVIL,
    "labkit.MemoryBar([Held(r, 1000, 2000 * (r % 3), 0, 50 * r) for r in range(32)], budget=9000)",
)
FOUR, COMPARED, HOSTILE, MANY = range(1, 5)  # cells


@pytest.fixture(scope="module")
def opened(server: Server, browser: Browser) -> Iterator[Lab]:
    lab = Lab(browser, server)
    lab.open(server.write("memory.ipynb", *CELLS))
    lab.run_all()
    yield lab
    lab.close()


def shown(lab: Lab, cell: int) -> Locator:
    """The bars of a cell, with nothing chosen and the keyboard's focus on them."""
    lab.page.mouse.move(2, 2)
    root = lab.output_of(cell).locator(".labkit-memory")
    expect(root.locator("[data-rows]")).to_be_visible()
    plot(root).focus()
    plot(root).press("Escape")
    return root


def plot(root: Locator) -> Locator:
    return root.locator(".labkit-memory-plot")


def box(node: Locator) -> tuple[float, float]:
    """Left and right edge on the page."""
    found = node.bounding_box()
    assert found is not None
    return found["x"], found["x"] + found["width"]


def keep(lab: Lab, name: str) -> None:
    """A screenshot to look at, where somebody asks for it."""
    folder = os.environ.get("LABKIT_SCREENSHOTS")
    if folder:
        lab.page.screenshot(path=Path(folder) / f"{name}.png")


def test_cells_run_and_nothing_is_fetched_from_outside(opened: Lab) -> None:
    assert opened.errors() == []
    assert opened.problems == []
    assert opened.outside == []


@pytest.mark.parametrize("width", [1280, 800])
def test_lengths_are_bytes_and_the_budget_stands_at_its_own(opened: Lab, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    try:
        root = shown(opened, FOUR)
        bar = root.locator(".labkit-memory-bar").first
        left, right = box(bar)
        full = 23_030_948 * 1.03
        start = 0
        for part in bar.locator(".labkit-memory-part").all():
            size = int(part.get_attribute("data-bytes") or 0)
            for edge, at in zip(box(part), (start, start + size), strict=True):
                assert edge == pytest.approx(left + (right - left) * at / full, abs=1.5)
            start += size
        assert start == 23_030_948
        line = box(root.locator("[data-budget]"))[0]
        assert line == pytest.approx(left + (right - left) * 20_000_000 / full, abs=1.5)
        over = root.locator(".labkit-memory-over").first
        assert box(over)[0] == pytest.approx(line, abs=2)
        assert over.get_attribute("data-bytes") == "3030948"
        output = box(opened.output_of(FOUR))
        assert box(root)[1] <= output[1] + 1
        assert box(root.locator(".labkit-memory-total").first)[1] <= box(root)[1] + 1
        keep(opened, f"memory-{width}")
    finally:
        opened.page.set_viewport_size({"width": 1280, "height": 900})


def test_a_part_without_room_gets_a_shorter_label(opened: Lab) -> None:
    labels = shown(opened, FOUR).locator(".labkit-memory-part span").all_inner_texts()
    assert labels[:3] == ["weights 5.76 MB", "gradients 5.76 MB", "optimizer 11.5 MB"]
    opened.page.set_viewport_size({"width": 800, "height": 900})
    try:
        bars = shown(opened, COMPARED)
        expect(bars.locator("[data-part=weights] span").first).to_have_text("W")
        for part in bars.locator(".labkit-memory-part").all():
            assert part.evaluate("(n) => n.firstChild.scrollWidth <= n.clientWidth")
        four = shown(opened, FOUR)
        line = box(four.locator("[data-budget]"))[0]
        for label in four.locator("[data-part=optimizer] span").all():
            assert box(label)[1] <= line  # the budget crosses no word
    finally:
        opened.page.set_viewport_size({"width": 1280, "height": 900})


def test_what_the_picture_says_stands_above_it_in_words(opened: Lab) -> None:
    root = shown(opened, FOUR)
    expect(root).to_contain_text(
        "Ranks 0 to 3 hold 23 MB each, 3.03 MB more than the budget of 20 MB."
    )
    assert root.locator(".labkit-memory-total").all_inner_texts() == ["23 MB, 3.03 MB over"] * 4
    expect(root.locator("[data-budget]")).to_have_text("budget 20 MB")


def test_arrow_keys_walk_the_parts_and_the_live_line_tells_them(opened: Lab) -> None:
    root = shown(opened, COMPARED)
    status = root.get_by_role("status")
    plot(root).press("ArrowRight")
    expect(status).to_contain_text("FP32: weights 5,757,696 B (5.76 MB), 13 % of 43,289,768 B")
    expect(status).to_contain_text("3,289,768 B (3.29 MB) over the budget")
    plot(root).press("End")
    expect(status).to_contain_text("BF16 with FP32 masters: activations")
    expect(status).not_to_contain_text("over the budget")
    plot(root).press("ArrowUp")
    expect(status).to_contain_text("FP32: activations 20,258,820 B")
    plot(root).press("Escape")
    expect(status).to_contain_text("Press Tab")


def test_the_pointer_tells_a_part_too(opened: Lab) -> None:
    root = shown(opened, FOUR)
    root.locator(".labkit-memory-bar").nth(2).locator("[data-part=optimizer]").hover()
    expect(root.get_by_role("status")).to_contain_text("rank 2: optimizer 11,515,556 B")
    opened.page.mouse.move(2, 2)
    expect(root.get_by_role("status")).to_contain_text("Press Tab")


def test_the_table_says_what_the_picture_says(opened: Lab) -> None:
    root = shown(opened, FOUR)
    button = root.get_by_role("button", name="Show the bytes as a table")
    assert button.get_attribute("aria-expanded") == "false"
    plot(root).press("t")
    assert button.get_attribute("aria-expanded") == "true"
    table = root.locator("table")
    assert table.locator("thead th").all_inner_texts()[1:] == [
        "weights", "gradients", "optimizer", "activations", "total", "over the budget",
    ]  # fmt: skip
    assert table.locator("tbody tr").nth(3).locator("th, td").all_inner_texts() == [
        "rank 3", "5,757,696 B (5.76 MB)", "5,757,696 B (5.76 MB)", "11,515,556 B (11.5 MB)",
        "0 B", "23,030,948 B (23 MB)", "3,030,948 B (3.03 MB)",
    ]  # fmt: skip
    button.click()
    expect(table).to_be_hidden()


def test_keys_stay_out_of_jupyterlab(opened: Lab) -> None:
    root, cells = shown(opened, FOUR), opened.cells()
    for key in ("b", "x", "d", "d", "a", "ArrowDown", "Enter"):
        plot(root).press(key)
    assert opened.cells() == cells
    assert opened.page.evaluate("document.activeElement.closest('.labkit-memory') !== null")


def test_many_rows_scroll_to_the_one_that_is_chosen(opened: Lab) -> None:
    root = shown(opened, MANY)
    assert plot(root).evaluate("(n) => n.clientHeight") <= 560
    plot(root).press("End")
    expect(root.get_by_role("status")).to_contain_text("rank 31")
    assert plot(root).evaluate("(n) => n.scrollTop") > 100
    keep(opened, "memory-many")


def test_names_are_text_and_never_markup(opened: Lab) -> None:
    root = shown(opened, HOSTILE)
    expect(root).to_contain_text("<b>bold</b>")
    expect(root.locator(".labkit-memory-label")).to_contain_text("<img src=x")
    assert root.locator("img, b").count() == 0
    assert opened.page.evaluate("window.broken") is None


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_each_theme_is_readable_and_axe_finds_nothing(opened: Lab, theme: str) -> None:
    opened.command("apputils:change-theme", theme=theme)
    dark = str(not theme.endswith("Dark")).lower()
    opened.page.wait_for_selector(f"body[data-jp-theme-light={dark}]", state="attached")
    root = shown(opened, FOUR)
    plot(root).press("t")
    plot(root).press("ArrowRight")
    try:
        keep(opened, f"memory-{theme.split()[-1].lower()}")
        found = Axe().run(opened.page, context=".labkit-memory")
        assert [v["id"] for v in found.response["violations"]] == []
    finally:
        plot(root).press("t")
        opened.command("apputils:change-theme", theme="JupyterLab Light")
    assert opened.problems == []
