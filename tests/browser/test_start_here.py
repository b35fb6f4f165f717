"""The first notebook as a learner works through it, and the paced prediction of the next one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

from tests.browser.lab import ROOT, Lab, Server
from tests.browser.test_timeline import Shown

RANKS = (3, 4)


def opened(server: Server, browser: Browser, name: str) -> Lab:
    for folder in ("notebooks", "docs"):
        shutil.copytree(ROOT / folder, server.folder / folder, dirs_exist_ok=True)
    lab = Lab(browser, server)
    lab.open(f"notebooks/{name}.ipynb")
    return lab


@pytest.fixture(scope="module")
def lab(server: Server, browser: Browser) -> Iterator[Lab]:
    """Notebook 00 up to its timeline, "4 times as fast" locked by a click before the run."""
    lab = opened(server, browser, "00_start_here")
    lab.run("predict")
    lab.evaluate_in_kernel("four_ranks.again()")  # an earlier test may have locked it
    card = asked(lab, "predict")
    card.get_by_role("radio", name="4 times as fast").click()
    card.get_by_role("checkbox", name="I am sure").click()
    card.get_by_role("button", name="Lock my prediction").click()
    expect(card).to_have_attribute("data-state", "locked")
    lab.run("run", "compare", "see")
    yield lab
    lab.evaluate_in_kernel("four_ranks.again(), break_even.again()")
    lab.close()


def output(lab: Lab, name: str) -> Locator:
    return lab.output_of(lab.number(name))


def asked(lab: Lab, name: str, nth: int = 0) -> Locator:
    return output(lab, name).locator(".labkit-predict").nth(nth)


def timeline(lab: Lab, name: str) -> Shown:
    shown = Shown(lab.page, output(lab, name).locator(".labkit-timeline"))
    expect(shown.canvas.first).to_have_attribute("data-draw-ms", re.compile("."))
    return shown


def keep(lab: Lab, part: Locator, name: str) -> None:
    """A screenshot to look at, where somebody asks for it."""
    folder, size = os.environ.get("LABKIT_SCREENSHOTS"), lab.page.viewport_size
    if folder and size:
        lab.page.set_viewport_size({**size, "height": 2400})
        part.screenshot(path=Path(folder) / f"{name}.png")
        lab.page.set_viewport_size(size)


def test_an_answer_locked_by_a_click_is_told_its_gap(lab: Lab) -> None:
    for ranks, milliseconds in ((1, 320), (2, 330), (4, 335)):
        assert f"ranks: {ranks}, {milliseconds} ms a step" in lab.printed("run")
    told = output(lab, "compare")
    expect(told).to_contain_text("You said “4 times as fast”, sure. It was “slower than one rank”.")
    for words in ("Four times counts the computation alone", "the one to look at twice"):
        expect(told).to_contain_text(words)
        expect(asked(lab, "predict")).to_contain_text(words)
    keep(lab, asked(lab, "predict"), "start-predict")


def test_the_same_from_the_keyboard(lab: Lab) -> None:
    lab.evaluate_in_kernel("four_ranks.again()")
    card = asked(lab, "predict")
    expect(card).to_have_attribute("data-state", "open")
    card.get_by_role("radio").first.focus()
    for key in ("Space", "ArrowUp", "Tab", "Tab", "Enter"):  # the last answer; past "sure"
        lab.page.keyboard.press(key)
    expect(card.get_by_role("status")).to_have_text("Locked: “slower than one rank”, not sure.")
    lab.run("run", "compare")
    told = output(lab, "compare")
    expect(told).to_contain_text("You said “slower than one rank”, not sure. So it was.")
    expect(told).to_contain_text("now you can be")


def test_a_faster_network_makes_four_ranks_win_and_the_widget_says_so(lab: Lab) -> None:
    shown = timeline(lab, "see")
    word = shown.root.locator(".labkit-timeline-clock")
    told = shown.root.locator(".labkit-timeline-told")
    expect(word).to_have_text("paced")
    expect(told).to_contain_text("paced")
    keep(lab, shown.root, "start-paced")
    shown.root.get_by_role("radio", name="modelled").check(force=True)
    expect(word).to_have_text("modelled")
    expect(told).to_contain_text("step 3: 335.3 ms, modelled (paced: ")
    bandwidth = shown.root.get_by_role("slider", name="bandwidth")
    bandwidth.focus()
    before = bandwidth.input_value()
    lab.page.keyboard.press("ArrowRight")
    expect(told).to_contain_text("step 3: 320 ms, modelled")
    lab.page.keyboard.press("ArrowRight")
    expect(told).to_have_text(re.compile(r"step 3: (2\d\d|30\d|31\d)(\.\d)? ms, modelled"))
    for _ in range(2):
        lab.page.keyboard.press("ArrowLeft")
    assert bandwidth.input_value() == before
    expect(told).to_contain_text("step 3: 335.3 ms, modelled")  # the office's own 23.5 MB/s
    expect(word).to_have_text("modelled")
    keep(lab, shown.root, "start-modelled")


def test_the_critical_path_and_the_table_tell_the_step(lab: Lab) -> None:
    shown = timeline(lab, "see")
    shown.press("c")
    expect(shown.root.locator(".labkit-timeline-said")).to_contain_text("The critical path lasts")
    shown.press("t")
    expect(shown.root.locator("caption", has_text="Critical path")).to_have_count(1)
    ranks = shown.root.locator("table", has_text="Each rank")
    expect(ranks.locator("tbody tr")).to_have_count(4)
    keep(lab, shown.root, "start-table")
    shown.press("t", "c")


def test_a_number_is_locked_compared_and_the_memory_of_it_is_in_words(lab: Lab) -> None:
    lab.run("predict-break-even")
    lab.evaluate_in_kernel("break_even.again()")
    card = asked(lab, "predict-break-even")
    card.get_by_role("spinbutton").fill("240")
    card.get_by_role("button", name="Lock my prediction").click()
    expect(card.get_by_role("status")).to_have_text("Locked: 240 ms, not sure.")
    lab.run("bandwidths", "compare-break-even")
    told = output(lab, "compare-break-even")
    expect(told).to_contain_text("You said 240 ms, not sure. It took 160 ms: 33 % shorter.")
    expect(told).to_contain_text("between two it takes 1.5 times less")
    keep(lab, card, "start-number")


def test_the_first_line_gives_a_sum_and_the_second_the_mean(lab: Lab) -> None:
    lab.run("line")
    assert "'1.00', '1.73'" in lab.printed("line")
    for line, right in (("dist.all_reduce(g)", None), ("dist.all_reduce(g)\n    g /= ranks", 1.0)):
        old = "# what is missing" if right is None else "dist.all_reduce(g)"
        lab.edit("line", old, line)
        lab.run("line")
        for ranks in RANKS:
            ratios = [f"{right or ranks:.2f}"] * ranks
            assert f"{ranks} ranks: gradient / right one = {ratios}" in lab.printed("line")


def test_a_rank_that_forgets_is_named_with_the_line_and_the_kernel_goes_on(lab: Lab) -> None:
    lab.run("forgets", "works")
    said = lab.printed("forgets")
    assert "ranks 0, 2, 3 wait for a rank that has finished" in said
    assert "rank 1: has finished" in said
    for rank in (0, 2, 3):
        assert re.search(
            rf"rank {rank}: waits in all_reduce .* for rank 1, at cell \[\d+\], line 4", said
        )
    assert "[(30.0, 60.0), (0.0, 60.0), (10.0, 60.0), (20.0, 60.0)]" in lab.printed("works")


@pytest.mark.parametrize("theme", ["Light", "Dark"])
@pytest.mark.parametrize("width", [800, 1280])
def test_everything_fits_and_axe_finds_nothing(lab: Lab, theme: str, width: int) -> None:
    lab.page.set_viewport_size({"width": width, "height": 900})
    lab.command("apputils:change-theme", theme=f"JupyterLab {theme}")
    light = str(theme == "Light").lower()
    lab.page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
    lab.run("ledger")
    try:
        for name in ("predict", "see", "predict-break-even", "ledger"):
            area = output(lab, name)
            root = area.locator(".labkit-timeline, .labkit-card").first
            expect(root).to_be_visible()
            assert root.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
            root.evaluate("(node) => node.setAttribute('data-axe', '')")
            found = Axe().run(lab.page, context="[data-axe]")
            root.evaluate("(node) => node.removeAttribute('data-axe')")
            assert [v["id"] for v in found.response["violations"]] == []
            keep(lab, root, f"start-{name}-{width}-{theme.lower()}")
    finally:
        lab.command("apputils:change-theme", theme="JupyterLab Light")
        lab.page.set_viewport_size({"width": 1280, "height": 900})


def test_nothing_went_wrong_on_the_page(lab: Lab) -> None:
    assert (lab.errors(), lab.problems, lab.said, lab.outside) == ([], [], [], [])


def test_a_locked_time_is_drawn_dashed_over_the_paced_run(server: Server, browser: Browser) -> None:
    lab = opened(server, browser, "01_data_parallel")
    try:
        lab.run("predict")
        lab.evaluate_in_kernel("labkit.predict('01.overlapped').again()")
        card = asked(lab, "predict", 1)
        card.get_by_role("spinbutton").fill("160")
        card.get_by_role("button", name="Lock my prediction").click()
        expect(card).to_have_attribute("data-state", "locked")
        lab.run("see-paced")
        shown = timeline(lab, "see-paced")
        words = r"predicted 160(\.0)? ms, paced \d+(\.\d)? ms: \d+ % more"
        expect(shown.root).to_contain_text(re.compile(words))
        assert dashed(shown) > 200
        keep(lab, shown.root, "overlap-1280")
        lab.page.set_viewport_size({"width": 800, "height": 900})
        keep(lab, timeline(lab, "see-paced").root, "overlap-800")
        assert (lab.errors(), lab.problems, lab.said, lab.outside) == ([], [], [], [])
        lab.evaluate_in_kernel("labkit.predict('01.overlapped').again()")
    finally:
        lab.close()


def dashed(shown: Shown) -> int:
    """How many points of the upper picture have the colour of a prediction."""
    picture = shown.root.locator("canvas.labkit-timeline-picture").first
    found: int = picture.evaluate(
        """(canvas) => {
            const pen = canvas.getContext("2d");
            const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let i = 0; i < data.length; i += 4) {
                found += data[i] === 0xa3 && data[i + 1] === 0 && data[i + 2] === 0x4f;
            }
            return found;
        }"""
    )
    return found
