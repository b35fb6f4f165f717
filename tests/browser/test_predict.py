"""Predictions and the ledger in JupyterLab: answered by key and pointer, told after the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from labkit.practice.content import find
from tests.browser.lab import Lab, Server

CELLS = (
    "import labkit\nfrom tests.practice.test_figures import two_ranks",
    "four = labkit.predict('00.four_ranks')\nfour",
    "time = labkit.predict('00.four_ranks_time')\ntime",
    "own = labkit.predict(question='<img src=x onerror=\"window.broken = true\">',\n"
    "                     number={'unit': 'GB', 'low': -5, 'high': 5})\nown",
    "labkit.ledger.fill('data parallel', two_ranks(clock='paced'), note='hides in the backward')",
    "labkit.ledger",
)
FOUR, TIME, OWN, FILLED, LEDGER = range(1, 6)
SAID_LATER = [
    *(choice.because for choice in find("00.four_ranks").choices),
    *(one.because for one in find("00.four_ranks_time").known),
    find("00.four_ranks_time").because,
]


class Asked:
    """One prediction on a page."""

    def __init__(self, lab: Lab, cell: int) -> None:
        self.page: Page = lab.page
        self.root: Locator = lab.output_of(cell).locator(".labkit-predict")
        expect(self.root).to_have_count(1)
        self.lock = self.root.get_by_role("button", name="Lock my prediction")
        self.status = self.root.get_by_role("status")
        self.sure = self.root.get_by_role("checkbox", name="I am sure")
        self.slider = self.root.get_by_role("slider")
        self.number = self.root.get_by_role("spinbutton")

    def state(self, wanted: str) -> None:
        expect(self.root).to_have_attribute("data-state", wanted)


@pytest.fixture(scope="module")
def opened(server: Server, browser: Browser) -> Iterator[Lab]:
    lab = Lab(browser, server)
    lab.open(server.write("predict.ipynb", *CELLS))
    lab.run_all()
    yield lab
    lab.close()


@pytest.fixture
def four(opened: Lab) -> Asked:
    """The choice, open."""
    opened.evaluate_in_kernel("four.again()")
    asked = Asked(opened, FOUR)
    asked.state("open")
    return asked


@pytest.fixture
def time(opened: Lab) -> Asked:
    """The number, open."""
    opened.evaluate_in_kernel("time.again()")
    asked = Asked(opened, TIME)
    asked.state("open")
    return asked


def test_cells_run_and_nothing_is_fetched_from_outside(opened: Lab) -> None:
    assert opened.errors() == []
    assert opened.problems == []
    assert opened.outside == []


def test_the_page_holds_no_key_until_the_run_is_over(opened: Lab, four: Asked) -> None:
    """Neither what is drawn, nor the widgets' state in the browser, nor the outputs."""
    content = opened.page.content() + held(opened)
    assert "How fast is a step with four ranks" in content
    assert not [text for text in SAID_LATER if text in content]
    four.root.get_by_role("radio", name="4 times as fast").check()
    four.lock.click()
    four.state("locked")
    content = opened.page.content() + held(opened)
    assert not [text for text in SAID_LATER if text in content]
    opened.evaluate_in_kernel("four.compare(0.95)")
    four.state("closed")
    content = opened.page.content()
    told = find("00.four_ranks")
    assert told.choice("four").because in content
    assert told.choice("slower").because in content
    assert told.choice("two").because not in content + held(opened)


def held(lab: Lab) -> str:
    """The notebook as the page holds it, and what the kernel has sent it of the widgets."""
    notebook: str = lab.page.evaluate(
        """() => {
            const panel = [...window.jupyterapp.shell.widgets("main")].find((w) => w.context);
            return JSON.stringify(panel.content.model.toJSON());
        }"""
    )
    sent = "[p._widget.get_state(['asked', 'state']) for p in (four, time)]"
    return notebook + lab.evaluate_in_kernel(sent)


def test_the_keyboard_alone_locks_a_choice(opened: Lab, four: Asked) -> None:
    cells = opened.cells()
    radios = four.root.get_by_role("radio")
    radios.first.focus()
    four.page.keyboard.press("Space")
    expect(radios.nth(0)).to_be_checked()
    four.page.keyboard.press("ArrowDown")
    four.page.keyboard.press("ArrowDown")
    expect(radios.nth(2)).to_be_checked()
    four.page.keyboard.press("Tab")
    expect(four.sure).to_be_focused()
    four.page.keyboard.press("Space")
    four.page.keyboard.press("Tab")
    expect(four.lock).to_be_focused()
    for key in ("b", "x", "d", "d", "a"):  # JupyterLab's own, for cells
        four.page.keyboard.press(key)
    four.page.keyboard.press("Enter")
    four.state("locked")
    expect(four.status).to_have_text("Locked: “as fast as one rank”, sure.")
    assert opened.evaluate_in_kernel("four.value, four.sure") == "('same', True)"
    assert opened.cells() == cells
    expect(radios.nth(1)).to_be_disabled()
    expect(four.sure).to_be_disabled()
    expect(four.lock).to_be_hidden()
    assert four.page.evaluate("document.activeElement.closest('.labkit-predict') !== null")


def test_the_pointer_locks_and_the_run_tells_the_gap(opened: Lab, time: Asked) -> None:
    box = time.slider.bounding_box()
    assert box is not None
    time.page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    value = time.number.input_value()
    assert 60 < float(value) < 110  # logarithmic, 20 to 2,000
    expect(time.slider).to_have_attribute("aria-valuetext", f"{value} ms")
    time.sure.check()
    time.lock.click()
    time.state("locked")
    opened.evaluate_in_kernel("time.compare(335)")
    time.state("closed")
    told = time.root.get_by_role("group", name="What the run gave")
    expect(told).to_contain_text("times as long")
    expect(told).to_contain_text("so this is the one to look at twice")


def test_slider_and_field_follow_each_other(opened: Lab, time: Asked) -> None:
    expect(time.number).to_have_value("")
    expect(time.slider).to_have_attribute("aria-valuetext", "not set")
    time.number.fill("200")
    assert time.slider.input_value() == "200"  # halfway of 400 places: √(20 · 2000)
    time.slider.focus()
    time.page.keyboard.press("ArrowRight")
    assert float(time.number.input_value()) == pytest.approx(202, abs=1.5)
    time.page.keyboard.press("Home")
    expect(time.number).to_have_value("20")
    time.number.fill("80")
    time.lock.click()
    time.state("locked")
    assert opened.evaluate_in_kernel("time.value, time.sure, time.seconds") == "(80.0, False, 0.08)"
    expect(time.status).to_have_text("Locked: 80 ms, not sure.")


def test_without_an_answer_nothing_is_locked(opened: Lab, four: Asked, time: Asked) -> None:
    time = Asked(opened, TIME)
    time.lock.click()
    expect(time.status).to_have_text("Name a number first.")
    expect(time.number).to_be_focused()
    time.number.fill("9000")
    time.lock.click()
    expect(time.status).to_have_text("Name a number from 20 to 2000 ms.")
    time.state("open")
    four = Asked(opened, FOUR)
    four.lock.click()
    expect(four.status).to_have_text("Choose an answer first.")
    expect(four.root.get_by_role("radio").first).to_be_focused()
    assert opened.evaluate_in_kernel("four.locked, time.locked") == "(False, False)"


def test_a_lock_after_the_run_has_begun_is_refused_on_the_page(opened: Lab, four: Asked) -> None:
    opened.evaluate_in_kernel("labkit.launch(int, ranks=1, backend='gloo', trace=False)")
    four.root.get_by_role("radio", name="slower than one rank").check()
    for _ in range(2):
        four.lock.click()
        expect(four.status).to_contain_text("A run has begun since this was asked")
    four.state("open")
    assert opened.evaluate_in_kernel("four.locked") == "False"


def test_who_locks_nothing_is_told_all_the_same(opened: Lab, four: Asked) -> None:
    opened.evaluate_in_kernel("four.compare('slower')")
    four.state("closed")
    told = four.root.get_by_role("group", name="What the run gave")
    expect(told).to_contain_text("No prediction was locked.")
    expect(told).to_contain_text("80 ms of computing")
    expect(four.root.get_by_role("radio").first).to_be_disabled()


def test_predict_again_is_a_button(opened: Lab, four: Asked) -> None:
    again = four.root.get_by_role("button", name="Predict again")
    expect(again).to_be_hidden()
    four.root.get_by_role("radio", name="slower").check()
    four.lock.click()
    four.state("locked")
    expect(again).to_be_hidden()  # before the run, a locked answer is locked
    opened.evaluate_in_kernel("four.compare('slower')")
    four.state("closed")
    again.click()
    four.state("open")
    expect(four.root.get_by_role("radio", checked=True)).to_have_count(0)
    assert opened.evaluate_in_kernel("four.locked") == "False"


def test_text_is_never_markup_and_zero_is_an_answer(opened: Lab) -> None:
    opened.evaluate_in_kernel("own.again()")
    own = Asked(opened, OWN)
    assert own.root.locator("img").count() == 0
    assert opened.page.evaluate("window.broken") is None
    own.number.fill("0")
    own.lock.click()
    own.state("locked")
    expect(own.status).to_have_text("Locked: 0 GB, not sure.")


def test_the_ledger_is_a_table_with_the_filled_row_marked(opened: Lab) -> None:
    for cell in (FILLED, LEDGER):
        table = opened.output_of(cell).locator(".labkit-ledger table")
        expect(table.locator("tbody th[scope=row]")).to_have_count(10)
        row = table.locator("tbody tr", has_text="data parallel")
        expect(row).to_contain_text("2 GFLOP, step 1,000 ms")
        expect(row).to_contain_text("paced, 2 ranks")
        expect(row).to_contain_text("hides in the backward")
        expect(table.locator("tr", has_text="pipeline")).to_contain_text("run 04")
        expect(table.locator(".labkit-ledger-marked")).to_have_count(int(cell == FILLED))


@pytest.mark.parametrize("width", [800, 1280])
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_each_theme_and_width_is_readable_and_axe_finds_nothing(
    opened: Lab, four: Asked, theme: str, width: int
) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.command("apputils:change-theme", theme=theme)
    dark = theme.endswith("Dark")
    wanted = f"body[data-jp-theme-light={'false' if dark else 'true'}]"
    opened.page.wait_for_selector(wanted, state="attached")
    try:
        for cell in (FOUR, TIME, FILLED):
            root = opened.output_of(cell).locator(".labkit-card")
            expect(root).to_be_visible()
            assert root.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
            found = Axe().run(opened.page, context=".labkit-card")
            assert [v["id"] for v in found.response["violations"]] == []
    finally:
        opened.command("apputils:change-theme", theme="JupyterLab Light")
        opened.page.set_viewport_size({"width": 1280, "height": 900})
