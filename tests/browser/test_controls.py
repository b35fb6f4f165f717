"""The timeline's controls: the clock, sliders that retime, a prediction, the path, two runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

from labkit.trace import CLUSTERS
from tests.browser.lab import Lab, Server
from tests.browser.test_timeline import Shown, fresh
from tests.widgets.traces import data_parallel

CELLS = (
    """
import time
from tests.widgets.traces import data_parallel, trace_of
from labkit.trace import CLUSTERS, DEVICES, Cluster, Link
from labkit.widgets import Timeline
paced = data_parallel(clock="paced")
H100 = CLUSTERS["H100"]
links = Link(5e-6, 50e9, "NVLink"), Link(5e-5, 1e9, "network")
two = Cluster(DEVICES["H100"], links, per_node=2)
""",
    "paced.timeline()",
    "one = paced.timeline(cluster=H100, compute='cpu', title='Retimed')\none",
    "both = paced.timeline(cluster=two, compute='cpu')\nboth",
    """
slow = paced.timeline(cluster=H100, compute='cpu')
look, looks = slow._look, []
def late():
    looks.append(slow.latency)
    time.sleep(0.3)
    return look()
slow._look = late
slow
""",
    """
half = [{"rank": 0, "kind": "compute", "name": "forward", "start": 0, "end": 1}]
never = trace_of(half, ranks=2).timeline(cluster=H100)
never
""",
    "told = paced.timeline(prediction=paced.retime(two, 'cpu'), step=1)\ntold",
    "locked = paced.timeline(prediction=0.045, step=1)\nlocked",
    "Timeline.compare(paced, data_parallel(layers=1), titles=('four buckets', 'one bucket'))",
)
PLAIN, ONE, TWO, SLOW, NEVER, TOLD, LOCKED, COMPARED = range(1, 9)  # cells


@pytest.fixture(scope="module")
def opened(server: Server, browser: Browser) -> Iterator[Lab]:
    lab = Lab(browser, server)
    lab.open(server.write("controls.ipynb", *CELLS))
    lab.run_all()
    yield lab
    lab.close()


def slider(shown: Shown, what: str, place: str = "inside a node") -> Locator:
    return shown.root.get_by_role("slider", name=f"{what} {place}")


def clock(shown: Shown, name: str) -> Locator:
    return shown.root.get_by_role("radio", name=name)


def recorded(lab: Lab, cell: int, name: str) -> Shown:
    """The timeline of a cell, on its recorded clock, with the cluster's own links."""
    lab.evaluate_in_kernel(
        f"[setattr({name}, 'latency', {name}._retiming.latency),"
        f" setattr({name}, 'bandwidth', {name}._retiming.bandwidth),"
        f" setattr({name}, 'path', False), setattr({name}, 'clock', 'paced')]"
    )
    shown = fresh(lab, cell)
    expect(shown.canvas).to_have_attribute("data-clock", "paced")
    return shown


def test_cells_run_and_nothing_is_fetched_from_outside(opened: Lab) -> None:
    assert (opened.errors(), opened.problems, opened.outside) == ([], [], [])


def test_a_plain_timeline_has_no_controls(opened: Lab) -> None:
    shown = fresh(opened, PLAIN)
    for role in ("slider", "radio"):
        expect(shown.root.get_by_role(role)).to_have_count(0)
    expect(shown.root.get_by_role("button", name="critical path")).to_have_count(0)
    expect(shown.root.locator(".labkit-timeline-clock")).to_have_text("paced")


def test_the_clock_is_switched_by_keyboard_and_its_word_is_on_the_picture(opened: Lab) -> None:
    shown = recorded(opened, ONE, "one")
    word = shown.root.locator(".labkit-timeline-clock")
    expect(word).to_have_text("paced")
    before = shown.number("to")
    clock(shown, "paced").focus()
    opened.page.keyboard.press("ArrowRight")
    expect(word).to_have_text("modelled")
    expect(shown.root.locator(".labkit-timeline-note")).to_contain_text("on H100 (NVLink 4")
    assert ", modelled" in (shown.canvas.get_attribute("aria-label") or "")
    assert opened.evaluate_in_kernel("one.clock") == "'modelled'"
    assert (
        opened.evaluate_in_kernel("one.still() == one.modelled.timeline(title='Retimed').still()")
        == "True"
    )
    assert shown.number("to") < before / 2  # no room for that much nothing
    clock(shown, "paced").check(force=True)
    expect(word).to_have_text("paced")
    shown.settle()
    assert shown.number("to") == before


def test_a_slider_retimes_in_the_kernel_and_says_the_step_time(opened: Lab) -> None:
    shown = recorded(opened, ONE, "one")
    latency = slider(shown, "latency")
    expect(latency).to_have_attribute("aria-valuetext", "0.6 µs")
    latency.focus()
    for _ in range(30):
        opened.page.keyboard.press("ArrowRight")
    expect(latency).to_have_attribute("aria-valuetext", "20 µs")
    expect(shown.canvas).to_have_attribute("data-clock", "modelled")  # a slider asks for the model
    links = (CLUSTERS["H100"].links[0].bandwidth,)
    steps = data_parallel().timeline(cluster=CLUSTERS["H100"], compute="cpu")
    steps.latency, steps.bandwidth = (2e-5,), links
    mean = sum(s.duration for s in steps.modelled.steps) / 3
    told = shown.root.locator(".labkit-timeline-told")
    expect(told).to_contain_text(f"step, on average: {1e3 * mean:.4g} ms, modelled (paced: ")
    assert opened.evaluate_in_kernel("one.latency") == "(2e-05,)"
    expect(shown.root.locator("legend", has_text="changed by hand")).to_have_count(1)


def test_the_ends_of_the_sliders_are_no_latency_and_no_limit(opened: Lab) -> None:
    shown = recorded(opened, ONE, "one")
    slider(shown, "latency").press("Home")
    slider(shown, "bandwidth").press("End")
    expect(slider(shown, "latency")).to_have_attribute("aria-valuetext", "0 s")
    expect(slider(shown, "bandwidth")).to_have_attribute("aria-valuetext", "no limit")
    told = shown.root.locator(".labkit-timeline-told")
    expect(told).to_contain_text("modelled")
    assert opened.evaluate_in_kernel("(one.latency, one.bandwidth)") == "((0.0,), (inf,))"


def test_two_levels_of_links_have_a_pair_of_sliders_each(opened: Lab) -> None:
    shown = recorded(opened, TWO, "both")
    expect(shown.root.get_by_role("slider")).to_have_count(4)
    slider(shown, "bandwidth", "between nodes").press("ArrowLeft")
    expect(shown.canvas).to_have_attribute("data-clock", "modelled")
    assert opened.evaluate_in_kernel("both.bandwidth") == "(50000000000.0, 890000000.0)"


def test_python_moves_the_sliders_too(opened: Lab) -> None:
    shown = recorded(opened, ONE, "one")
    opened.evaluate_in_kernel("setattr(one, 'latency', 1e-3)")
    expect(slider(shown, "latency")).to_have_attribute("aria-valuetext", "1 ms")
    expect(shown.canvas).to_have_attribute("data-clock", "modelled")


def test_a_picture_that_grows_is_seen_to_grow(opened: Lab) -> None:
    shown = recorded(opened, TWO, "both")
    clock(shown, "modelled").check(force=True)
    expect(shown.canvas).to_have_attribute("data-clock", "modelled")
    shown.press("0")
    taken, first = shown.number("taken"), shown.number("to")
    slider(shown, "bandwidth", "between nodes").press("ArrowRight")
    expect(shown.canvas).not_to_have_attribute("data-taken", f"{taken:.0f}")
    shown.settle()
    assert shown.number("to") == pytest.approx(first)  # a faster link: the same scale
    shown.press("0")
    assert shown.number("to") < first


def test_while_the_kernel_is_busy_the_newest_wins_and_no_queue_builds_up(opened: Lab) -> None:
    shown = recorded(opened, SLOW, "slow")
    opened.evaluate_in_kernel("looks.clear()")
    latency = slider(shown, "latency")
    latency.focus()
    for _ in range(40):
        opened.page.keyboard.press("ArrowRight")
    expect(latency).to_have_attribute("aria-valuetext", "63 µs")
    shown.page.wait_for_timeout(1500)
    assert opened.evaluate_in_kernel("looks[-1]") == "(6.3e-05,)"
    assert int(opened.evaluate_in_kernel("len(looks)")) < 15
    expect(latency).to_have_attribute("aria-valuetext", "63 µs")


def test_what_cannot_be_modelled_is_told_and_the_recording_stays(opened: Lab) -> None:
    shown = fresh(opened, NEVER)
    clock(shown, "modelled").check(force=True)
    expect(shown.root.get_by_role("alert")).to_contain_text("rank 1 left no rows")
    expect(clock(shown, "measured")).to_be_checked()
    expect(shown.root.locator(".labkit-timeline-clock")).to_have_text("measured")
    assert opened.evaluate_in_kernel("never.clock") == "'measured'"


def test_a_prediction_is_drawn_over_the_run_with_the_gap_in_words(opened: Lab) -> None:
    shown = Shown(opened.page, opened.output_of(TOLD).locator(".labkit-timeline"))
    expect(shown.root).to_contain_text("predicted 24.8 ms, paced 54.9 ms: 12")
    shown = Shown(opened.page, opened.output_of(LOCKED).locator(".labkit-timeline"))
    expect(shown.root).to_contain_text("predicted 45.0 ms, paced 54.9 ms: 22 % more.")
    expect(shown.canvas).to_have_attribute("data-draw-ms", re.compile("."))
    box = shown.canvas.bounding_box()
    assert box is not None
    inner = box["width"] - 136 - 10
    share = 0.045 / (shown.number("to") - shown.number("from"))
    at = (136 + share * inner) / box["width"]
    column = [
        shown.pixel(at + dx / box["width"], y) for y in range(30, 200, 3) for dx in (-1, 0, 1)
    ]
    assert column.count([0xA3, 0x00, 0x4F, 255]) > 20  # the dashed line


def test_the_critical_path_is_told_drawn_and_tabled(opened: Lab) -> None:
    shown = recorded(opened, ONE, "one")
    button = shown.root.get_by_role("button", name="critical path")
    expect(button).to_have_attribute("aria-pressed", "false")
    plain = shown.pixel(0.145, 55)
    shown.press("c")
    said = shown.root.locator(".labkit-timeline-said")
    expect(said).to_contain_text("The critical path lasts")
    expect(button).to_have_attribute("aria-pressed", "true")
    shown.settle()
    assert any(shown.pixel(x / 100, 55) != plain for x in range(15, 30))
    shown.press("t")
    expect(shown.root.locator("caption", has_text="Critical path (paced)")).to_have_count(1)
    shown.root.get_by_label("Step shown").select_option("1")  # the path of that step
    expect(said).to_contain_text("lasts 54.9 ms")
    clock(shown, "modelled").check(force=True)
    expect(shown.root.locator("caption", has_text="Critical path (modelled)")).to_have_count(1)
    shown.press("t", "c")
    expect(said).to_have_text("")


def test_two_runs_share_their_scale_and_move_together(opened: Lab) -> None:
    root = opened.output_of(COMPARED).locator(".labkit-timeline")
    expect(root.locator("canvas[data-events]")).to_have_count(2)
    expect(root.locator(".labkit-timeline-run")).to_contain_text(
        ["four bucketspaced", "one bucketmeasured"]
    )
    above, below = (Shown(opened.page, root) for _ in range(2))
    above.canvas, below.canvas = (root.locator("canvas[data-events]").nth(n) for n in (0, 1))
    for shown in (above, below):
        expect(shown.canvas).to_have_attribute("data-draw-ms", re.compile("."))
    assert above.number("to") - above.number("from") == below.number("to") - below.number("from")
    below.press("+", "+", "Shift+ArrowRight")
    assert above.number("zoom") == below.number("zoom") > 2
    assert above.number("from") == pytest.approx(below.number("from"))
    root.get_by_role("button", name="Show all").click()
    above.settle()
    assert above.number("zoom") == below.number("zoom") == 1
    below.press("ArrowRight")
    expect(root.get_by_role("status")).to_contain_text("Rank 0: forward")
    above.press("t")
    expect(root.locator("caption", has_text="Each rank")).to_have_count(2)
    above.press("t")


def test_waits_say_what_for(opened: Lab) -> None:
    shown = fresh(opened, PLAIN)
    for part in ("skew: waits for a rank", "transfer: waits for bytes"):
        expect(shown.root.get_by_role("list", name="Legend")).to_contain_text(part)
    shown.press("t")
    table = shown.root.locator("table").last
    expect(table.locator("td", has_text="another rank to arrive (skew)").first).to_be_visible()
    shown.press("t")


def test_keys_on_the_controls_stay_out_of_jupyterlab(opened: Lab) -> None:
    shown = recorded(opened, ONE, "one")
    cells = opened.cells()
    for control in (slider(shown, "latency"), clock(shown, "paced")):
        control.focus()
        for key in ("b", "x", "d", "d", "a", "ArrowDown"):
            opened.page.keyboard.press(key)
    assert opened.cells() == cells
    assert shown.page.evaluate("document.activeElement.closest('.labkit-timeline') !== null")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_axe_finds_nothing_in_the_controls(opened: Lab, theme: str) -> None:
    opened.command("apputils:change-theme", theme=theme)
    light = "false" if theme.endswith("Dark") else "true"
    opened.page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")
    try:
        for cell, name in ((ONE, "one"), (TWO, "both")):
            shown = recorded(opened, cell, name)
            shown.press("c")
            found = Axe().run(opened.page, context=".labkit-timeline")
            assert [v["id"] for v in found.response["violations"]] == []
    finally:
        opened.command("apputils:change-theme", theme="JupyterLab Light")


def test_a_narrow_page_holds_the_controls(opened: Lab) -> None:
    opened.page.set_viewport_size({"width": 800, "height": 900})
    try:
        shown = recorded(opened, TWO, "both")
        inside = """(node) => {
            const right = (n) => n.getBoundingClientRect().right;
            return right(node) <= right(node.closest(".jp-OutputArea-output")) + 1;
        }"""
        for part in shown.root.locator("button, input, select, .labkit-timeline-told").all():
            assert part.evaluate(inside)
    finally:
        opened.page.set_viewport_size({"width": 1280, "height": 900})
