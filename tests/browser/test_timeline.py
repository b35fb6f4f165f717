"""The timeline in JupyterLab: what a learner sees, points at and types."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.lab import Lab, Server
from tests.widgets.traces import skewed

MADE = """
from tests.widgets.traces import data_parallel, many, pipeline, skewed
from labkit.widgets import Timeline
import labkit.widgets.timeline
"""
HOSTILE = """
from tests.widgets.traces import trace_of
evil = "<img src=x onerror=\\"window.broken = true\\">"
Timeline(trace_of([
    {"rank": 0, "kind": "compute", "name": evil, "start": 0.0, "end": 1.0, "where": evil,
     "tags": {evil: evil, "loss": float("nan")}},
]), title=evil)
"""
LATE = """
span = {"rank": 0, "kind": "span", "name": "step"}
Timeline(trace_of([
    {"rank": 0, "kind": "compute", "name": "compute", "start": 0.0, "end": 5.0},
    {"rank": 0, "kind": "compute", "name": "forward", "start": 5.0, "end": 5.02},
    span | {"start": 5.0, "end": 5.01, "tags": {"step": 0}},
    span | {"start": 5.01, "end": 5.02, "tags": {"step": 1}},
]))
"""
CELLS = (
    MADE,
    "first = Timeline(data_parallel(cores=2), title='Data parallel')\nfirst",
    "Timeline(pipeline())",
    HOSTILE,
    "Timeline(data_parallel(ranks=32, steps=1))",
    LATE,
    "Timeline(skewed(), title='A title of many words, as lessons give them to their pictures')",
)
RECORDED, SCHEDULE, HOSTILE_NAMES, MANY_RANKS, LATE_STEPS, SKEWED = range(1, 7)  # cells


class Shown:
    """One timeline on a page."""

    def __init__(self, page: Page, root: Locator) -> None:
        self.page = page
        self.root = root
        self.canvas = self.root.locator("canvas[data-events]")
        self.status = self.root.get_by_role("status")

    def data(self, name: str) -> str:
        return self.canvas.get_attribute(f"data-{name}") or ""

    def number(self, name: str) -> float:
        return float(self.data(name))

    def settle(self) -> None:
        """Wait until what was typed or moved is on the screen."""
        self.page.evaluate(
            "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.canvas.press(key)
        self.settle()

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A point of the page, from a share of the canvas's width and pixels from its top."""
        box = self.canvas.bounding_box()
        assert box is not None
        return box["x"] + x * box["width"], box["y"] + y

    def find(self, x: float, y: float) -> None:
        self.page.mouse.move(*self.at(x, y))
        self.settle()

    def pixel(self, x: float, y: float) -> list[int]:
        """Red, green, blue and opacity of the picture at such a point."""
        picture = self.root.locator("canvas.labkit-timeline-picture")
        found: list[int] = picture.evaluate(
            """(canvas, [x, y]) => {
                const ratio = canvas.width / canvas.clientWidth;
                const pen = canvas.getContext("2d");
                return [...pen.getImageData(x * canvas.width, y * ratio, 1, 1).data];
            }""",
            [x, y],
        )
        return found


@pytest.fixture(scope="module")
def opened(server: Server, browser: Browser) -> Iterator[Lab]:
    lab = Lab(browser, server)
    lab.open(server.write("timeline.ipynb", *CELLS))
    lab.run_all()
    yield lab
    lab.close()


@pytest.fixture
def recorded(opened: Lab) -> Shown:
    """The data-parallel recording, as it was when the cell ran."""
    return fresh(opened, RECORDED)


@pytest.fixture
def schedule(opened: Lab) -> Shown:
    return fresh(opened, SCHEDULE)


def fresh(lab: Lab, cell: int) -> Shown:
    """The timeline of a cell, all steps shown, no table, with the keyboard's focus."""
    lab.page.mouse.move(2, 2)
    shown = Shown(lab.page, lab.output_of(cell).locator(".labkit-timeline"))
    expect(shown.canvas).to_have_attribute("data-draw-ms", re.compile("."))
    shown.canvas.scroll_into_view_if_needed()
    selector = shown.root.get_by_label("Step shown")
    if selector.count():
        selector.select_option("")
    if shown.root.locator("table").count() and shown.root.locator("table").first.is_visible():
        shown.root.get_by_role("button", name="Show the events as a table").click()
    shown.canvas.focus()
    shown.press("0")
    return shown


def test_cells_run_and_nothing_is_fetched_from_outside(opened: Lab) -> None:
    assert opened.errors() == []
    assert opened.problems == []
    assert opened.outside == []


def test_the_picture_says_ranks_clock_and_shared_cores(recorded: Shown) -> None:
    assert recorded.canvas.get_attribute("role") == "application"
    label = recorded.canvas.get_attribute("aria-label") or ""
    assert "4 ranks" in label
    assert "measured" in label
    expect(recorded.root).to_contain_text("measured")
    expect(recorded.root).to_contain_text("4 ranks share 2 cores")
    assert recorded.number("events") > 100


def test_bars_have_the_colours_of_their_kinds(schedule: Shown) -> None:
    assert schedule.pixel(0.15, 50) == [0x56, 0xB4, 0xE9, 255]  # F0 of rank 0, beside its label
    assert schedule.pixel(0.5, 5)[3] == 0  # nothing is painted there: the page shows


def test_keys_walk_along_events_and_the_live_line_tells_them(recorded: Shown) -> None:
    recorded.press("ArrowRight")
    expect(recorded.status).to_contain_text(
        "Rank 0: forward (compute), starts at 0 s, lasts 10 ms."
    )
    recorded.press("ArrowRight")
    expect(recorded.status).to_contain_text("backward")
    recorded.press("ArrowDown")
    expect(recorded.status).to_contain_text("all_reduce (collective)")
    for part in ("float32, sum", "ranks 0, 1, 2, 3", "train.py:31", "call returned after 200 µs"):
        expect(recorded.status).to_contain_text(part)
    recorded.press("p")  # the same all_reduce on the next rank, or its wait
    assert "all_reduce" in recorded.status.inner_text()
    recorded.press("Home", "ArrowLeft")
    first = recorded.number("focus")
    recorded.press("End")
    assert recorded.number("focus") > first


def test_enter_zooms_to_the_event_and_zero_shows_all(recorded: Shown) -> None:
    recorded.press("ArrowRight", "Enter")
    assert recorded.number("zoom") > 5
    assert recorded.number("from") <= 0.010 <= recorded.number("to")
    recorded.press("0")
    assert recorded.number("zoom") == 1


def test_plus_minus_and_the_buttons_zoom(recorded: Shown) -> None:
    recorded.press("+", "+")
    assert recorded.number("zoom") == pytest.approx(1.6**2, rel=1e-3)
    recorded.root.get_by_role("button", name="Zoom out").click()
    recorded.settle()
    assert recorded.number("zoom") == pytest.approx(1.6, rel=1e-3)
    recorded.root.get_by_role("button", name="Show all").click()
    recorded.settle()
    assert recorded.number("zoom") == 1
    recorded.press("-")
    assert recorded.number("zoom") == 1  # there is nothing outside


def test_the_wheel_zooms_only_a_picture_that_was_chosen(recorded: Shown) -> None:
    recorded.canvas.evaluate("(canvas) => canvas.blur()")
    recorded.find(0.5, 100)
    recorded.page.mouse.wheel(0, -200)
    recorded.settle()
    assert recorded.number("zoom") == 1
    recorded.canvas.scroll_into_view_if_needed()
    recorded.page.mouse.click(*recorded.at(0.5, 100))
    before = recorded.number("from"), recorded.number("to")
    recorded.page.mouse.wheel(0, -200)
    recorded.page.wait_for_function(
        "(canvas) => Number(canvas.dataset.zoom) > 1.2", arg=recorded.canvas.element_handle()
    )
    assert before[0] < recorded.number("from") < recorded.number("to") < before[1]
    recorded.page.mouse.move(2, 2)
    recorded.find(0.5, 100)
    zoomed = recorded.number("zoom")
    recorded.page.mouse.wheel(0, -200)
    recorded.settle()
    assert recorded.number("zoom") == zoomed  # the page has its wheel back


def test_the_wheel_scrolls_on_where_all_is_in_view(recorded: Shown) -> None:
    recorded.page.mouse.click(*recorded.at(0.5, 100))
    taken = """(canvas, by) => !canvas.dispatchEvent(
        new WheelEvent("wheel", { deltaY: by, cancelable: true, bubbles: true }))"""
    assert recorded.canvas.evaluate(taken, 100) is False
    assert recorded.canvas.evaluate(taken, -100) is True
    recorded.settle()
    assert recorded.canvas.evaluate(taken, 100) is True


def test_dragging_moves_the_window(recorded: Shown) -> None:
    recorded.press("+", "+", "+")
    before = recorded.number("from")
    recorded.page.mouse.move(*recorded.at(0.6, 100))
    recorded.page.mouse.down()
    recorded.page.mouse.move(*recorded.at(0.5, 100), steps=4)
    recorded.page.mouse.up()
    recorded.settle()
    assert recorded.number("from") > before
    recorded.press("Shift+ArrowLeft", "Shift+ArrowLeft")
    assert recorded.number("from") < before + 0.1


def test_the_pointer_gets_the_facts_of_an_event(schedule: Shown) -> None:
    tip = schedule.root.locator(".labkit-timeline-tip")
    expect(tip).to_be_hidden()
    schedule.find(0.135, 40)
    expect(tip).to_be_visible()
    for part in ("forward", "compute", "microbatch=0", "duration"):
        expect(tip).to_contain_text(part)
    focus = schedule.data("focus")
    schedule.page.mouse.click(*schedule.at(0.135, 40))
    schedule.settle()
    assert schedule.data("focus") != focus
    expect(schedule.canvas).to_be_focused()
    schedule.find(0.9, 5)
    expect(tip).to_be_hidden()


def test_a_message_tells_its_partner(schedule: Shown) -> None:
    schedule.press("ArrowRight", "ArrowDown")
    expect(schedule.status).to_contain_text("send")
    expect(schedule.status).to_contain_text("to rank 1")
    expect(schedule.status).to_contain_text("4.1 kB")
    schedule.press("p")
    expect(schedule.status).to_contain_text("Rank 1: recv, ")
    expect(schedule.status).to_contain_text("from rank 0")


def test_a_chosen_step_is_shown_and_reaches_python(opened: Lab, recorded: Shown) -> None:
    selector = recorded.root.get_by_label("Step shown")
    assert selector.locator("option").all_inner_texts() == [
        "all steps",
        "step 0",
        "step 1",
        "step 2",
    ]
    selector.select_option("1")
    recorded.settle()
    assert recorded.data("step") == "1"
    assert recorded.number("from") == pytest.approx(0.064)
    assert recorded.number("to") < 0.13
    assert opened.evaluate_in_kernel("first.step") == "1"
    recorded.press("-")
    assert recorded.number("zoom") < 1  # what lies around the step can be seen too
    opened.evaluate_in_kernel("setattr(first, 'step', 2)")
    expect(recorded.canvas).to_have_attribute("data-step", "2")


def test_what_came_before_the_first_step_is_one_choice_away(opened: Lab) -> None:
    shown = fresh(opened, LATE_STEPS)
    selector = shown.root.get_by_label("Step shown")
    assert "whole run" in selector.locator("option").all_inner_texts()
    assert shown.number("from") == 5
    shown.press("ArrowRight")
    expect(shown.status).to_contain_text("starts at 0 s, lasts 20 ms")  # counted from step 0
    selector.select_option("run")
    shown.settle()
    assert shown.number("from") == 0
    shown.press("ArrowRight", "ArrowRight")
    expect(shown.status).to_contain_text("starts at 5 s, lasts 20 ms")


def test_ranks_that_do_not_fit_are_scrolled_to(opened: Lab) -> None:
    shown = fresh(opened, MANY_RANKS)
    box = shown.canvas.bounding_box()
    assert box is not None
    assert box["height"] < 600
    assert shown.number("top") == 0
    shown.press("Shift+ArrowDown")
    assert shown.number("top") == 40
    shown.press("Shift+ArrowUp", "ArrowRight", *["ArrowDown"] * 60)
    expect(shown.status).to_contain_text(re.compile(r"Rank 1\d:"))
    assert shown.number("top") > 40  # the picture followed the focus


def test_the_table_says_what_the_picture_says(recorded: Shown) -> None:
    button = recorded.root.get_by_role("button", name="Show the events as a table")
    assert button.get_attribute("aria-expanded") == "false"
    recorded.press("t")
    assert button.get_attribute("aria-expanded") == "true"
    tables = recorded.root.locator("table")
    expect(tables).to_have_count(2)
    expect(tables.nth(0).locator("caption")).to_contain_text("Each rank")
    assert tables.nth(0).locator("tbody th[scope=row]").all_inner_texts() == [
        f"rank {r}" for r in range(4)
    ]
    events = tables.nth(1)
    count = int(recorded.number("events"))
    expect(events.locator("caption")).to_contain_text(f"{count} events")
    expect(events.locator("tbody tr")).to_have_count(count)
    assert events.locator("thead th[scope=col]").all_inner_texts() == [
        "rank", "name", "kind", "waits for", "start", "duration", "bytes", "partner", "where",
        "tags",
    ]  # fmt: skip
    row = events.locator("tbody tr", has_text="1.05 MB (float32, sum)").first
    expect(row).to_contain_text("ranks 0, 1, 2, 3")
    recorded.press("ArrowRight", "Enter")  # the table follows the window
    expect(events.locator("caption")).not_to_contain_text(f"{count} events")


def test_the_table_of_a_step_counts_that_step_alone(opened: Lab) -> None:
    shown = fresh(opened, SKEWED)
    shown.root.get_by_label("Step shown").select_option("1")
    shown.press("t")
    each = shown.root.locator("table").first
    expect(each.locator("caption")).to_have_text("Each rank, step 1 (measured)")
    summary = skewed().summary(step=1)
    wanted = [
        [
            f"{1e3 * t.busy:.4g} ms",
            f"{1e3 * t.skew:.4g} ms" if t.skew else "0 s",
            f"{1e3 * t.transfer:.4g} ms" if t.transfer else "0 s",
            str(m.calls),
            f"{m.payload / 1e3:g} kB",
        ]
        for t, m in zip(summary.times, summary.traffic, strict=True)
    ]
    assert wanted[0] == ["700 ms", "300 ms", "0 s", "1", "2 kB"]
    rows = each.locator("tbody tr").all()
    assert [row.locator("td").all_inner_texts() for row in rows] == wanted


def test_home_and_end_stay_in_the_step(opened: Lab) -> None:
    shown = fresh(opened, SKEWED)
    shown.root.get_by_label("Step shown").select_option("1")
    shown.press("ArrowRight", "Home")
    expect(shown.status).to_contain_text("forward (compute), starts at 0 s")
    shown.press("End")
    expect(shown.status).to_contain_text("loss (compute), starts at 900 ms")


def test_the_keyboard_sends_the_pointers_facts_away(recorded: Shown) -> None:
    tip = recorded.root.locator(".labkit-timeline-tip")
    recorded.find(0.2, 50)
    expect(tip).to_be_visible()
    recorded.press("ArrowRight")
    expect(tip).to_be_hidden()
    expect(recorded.status).to_contain_text("Rank 0")
    for key in ("Escape", "0"):
        recorded.press("ArrowRight", key)
        expect(recorded.status).not_to_contain_text("Rank 0")
        assert recorded.number("focus") == -1


def test_a_place_is_told_by_the_end_of_its_path(opened: Lab) -> None:
    shown = fresh(opened, SKEWED)
    shown.press("ArrowRight", "ArrowDown", "t")
    expect(shown.status).to_contain_text("where lab/train.py:7")
    whole = shown.root.locator("td", has_text="/home/me/course/lab/train.py:7")
    expect(whole.first).to_be_visible()


def test_the_help_says_what_the_picture_shows(recorded: Shown) -> None:
    recorded.press("?")
    terms = recorded.root.locator("dl dt").all_inner_texts()
    recorded.press("?")
    assert {"compute", "communication", "skew", "transfer", "faded bars", "negative times"} <= set(
        terms
    )


@pytest.mark.parametrize(("width", "rows"), [(1280, 1), (800, 2)])
def test_the_controls_stay_together(opened: Lab, width: int, rows: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    try:
        shown = fresh(opened, SKEWED)
        bar = shown.root.locator(".labkit-timeline-bar")
        parts = bar.locator(".labkit-timeline-head, button, select").all()
        boxes = [part.bounding_box() for part in parts]
        middles = [round(box["y"] + box["height"] / 2) for box in boxes if box]
        assert len(set(middles[1:])) == 1
        assert len({m // 12 for m in middles}) <= rows
    finally:
        opened.page.set_viewport_size({"width": 1280, "height": 900})


def test_keys_stay_out_of_jupyterlab(opened: Lab, recorded: Shown) -> None:
    """b and x would add and cut cells, d d would delete one, the arrows would leave this one."""
    cells = opened.cells()
    recorded.press("b", "x", "d", "d", "a", "m", "ArrowDown", "Enter", "?")
    recorded.root.get_by_role("button", name="Zoom in").press("b")
    assert opened.cells() == cells
    assert recorded.page.evaluate("document.activeElement.closest('.labkit-timeline') !== null")
    expect(recorded.root.locator("dl")).to_be_visible()
    recorded.press("?")
    expect(recorded.root.locator("dl")).to_be_hidden()


def test_tab_leads_in_and_out(recorded: Shown) -> None:
    recorded.canvas.focus()
    recorded.page.keyboard.press("Shift+Tab")
    expect(recorded.root.get_by_role("button", name="Show the keys")).to_be_focused()
    recorded.page.keyboard.press("Tab")
    expect(recorded.canvas).to_be_focused()


def test_names_from_a_trace_are_text_and_never_markup(opened: Lab) -> None:
    shown = fresh(opened, HOSTILE_NAMES)
    shown.press("ArrowRight", "t")
    expect(shown.status).to_contain_text("<img src=x onerror=")
    expect(shown.root.locator("td", has_text="loss=nan")).to_have_count(1)
    shown.find(0.5, 40)
    assert shown.root.locator("img").count() == 0
    assert opened.page.evaluate("window.broken") is None


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_each_theme_is_readable_and_axe_finds_nothing(opened: Lab, theme: str) -> None:
    opened.command("apputils:change-theme", theme=theme)
    dark = theme.endswith("Dark")
    wanted = f"body[data-jp-theme-light={'false' if dark else 'true'}]"
    opened.page.wait_for_selector(wanted, state="attached")
    shown = fresh(opened, RECORDED)
    shown.press("ArrowRight", "t", "?")
    try:
        assert (ink(shown.root) > 128) is dark
        found = Axe().run(opened.page, context=".labkit-timeline")
        assert [v["id"] for v in found.response["violations"]] == []
    finally:
        shown.press("t", "?")
        opened.command("apputils:change-theme", theme="JupyterLab Light")


def ink(root: Locator) -> float:
    """Mean of red, green and blue of the text."""
    colour = root.evaluate("(node) => getComputedStyle(node).color")
    numbers = [float(n) for n in re.findall(r"[\d.]+", colour)[:3]]
    return sum(numbers) / 3


def test_a_narrow_page_holds_the_whole_picture(opened: Lab) -> None:
    opened.page.set_viewport_size({"width": 800, "height": 900})
    shown = fresh(opened, RECORDED)
    try:
        expect(shown.canvas).to_be_visible()
        inside = """(node) => {
            const right = (n) => n.getBoundingClientRect().right;
            return right(node) <= right(node.closest(".jp-OutputArea-output")) + 1;
        }"""
        for part in (shown.canvas, *shown.root.locator("button").all()):
            assert part.evaluate(inside)
        assert shown.canvas.evaluate(
            "(c) => c.width === Math.round(c.clientWidth * devicePixelRatio)"
        )
    finally:
        opened.page.set_viewport_size({"width": 1280, "height": 900})


def test_two_views_of_one_widget_have_a_window_each(opened: Lab, recorded: Shown) -> None:
    opened.command("notebook:move-cursor-up")
    opened.page.evaluate(
        """() => {
            const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
            panel.content.activeCellIndex = 1;
        }"""
    )
    opened.command("notebook:create-output-view")
    aside = opened.page.locator(".lm-DockPanel > :not(.jp-NotebookPanel) .labkit-timeline")
    expect(aside).to_have_count(1)
    second = Shown(opened.page, aside)
    expect(second.canvas).to_have_attribute("data-draw-ms", re.compile("."))
    second.press("+", "+")
    assert second.number("zoom") > 2
    assert recorded.number("zoom") == 1
    second.root.get_by_label("Step shown").select_option("2")
    expect(recorded.canvas).to_have_attribute("data-step", "2")  # the step is the widget's own
    opened.page.evaluate(
        """() => [...window.jupyterapp.shell.widgets("main")].find((w) => !w.context).dispose()"""
    )
    expect(aside).to_have_count(0)
    recorded.press("0", "+")
    assert recorded.number("zoom") > 1  # the one that is left still works
    assert opened.problems == []
