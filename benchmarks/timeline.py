"""How long from an input to pixels, in JupyterLab's timeline: ``python benchmarks/timeline.py``.

Claims: with 10,000 events at most 50 ms, with 100,000 at most 150 ms, for zoom (wheel and key), pan
(drag) and hover. A real input is sent to Chromium through its debugging protocol. The clock starts
with the event's own time stamp (when the browser got it) and stops in the second animation frame
after its handler, when what the first one drew has gone to the screen. Both stamps are the page's.
A page at rest measures the floor: two frames, 33 ms at 60 Hz at most, are no work of ours.

And with a cluster: at most 120 ms from a key on the latency slider, through the kernel that retimes
10,000 events, to pixels. Here the clock stops in the second frame after the new times were drawn.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from labkit.cli import find_chromium  # noqa: E402
from tests.browser.lab import FLAGS, Lab, Server  # noqa: E402

RETIMED = 120.0  # ms, for RETIMED_EVENTS
RETIMED_EVENTS = 10_000
LIMITS = {10_000: 50.0, 100_000: 150.0}  # events -> ms
INPUTS = {"wheel": "wheel", "key": "keydown", "drag": "pointermove", "hover": "pointermove"}

WATCH = """(canvas) => {
    window.taken = [];
    const watch = (event) => {
        if (event.type !== window.wanted) return;
        const began = event.timeStamp;
        requestAnimationFrame(() => requestAnimationFrame(() => {
            window.taken.push(performance.now() - began);
        }));
    };
    for (const type of ["wheel", "keydown", "pointermove"]) canvas.addEventListener(type, watch);
    canvas.focus();
}"""
WATCH_SLIDER = """(slider) => {
    window.taken = [];
    let began = 0;
    const canvas = slider.closest(".labkit-timeline").querySelector("canvas[data-taken]");
    slider.addEventListener("input", (event) => { began = event.timeStamp; });
    new MutationObserver(() => requestAnimationFrame(() => requestAnimationFrame(() => {
        window.taken.push(performance.now() - began);
    }))).observe(canvas, { attributeFilter: ["data-taken"] });
    slider.focus();
}"""
IDLE = """(repeats) => new Promise((done) => {
    const taken = [];
    const once = () => {
        const began = performance.now();
        requestAnimationFrame(() => requestAnimationFrame(() => {
            taken.push(performance.now() - began);
            if (taken.length === repeats) done(taken);
            else setTimeout(once, 20 + Math.random() * 20);
        }));
    };
    once();
})"""


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[49], medians[1949]


def send(page: Page, kind: str, turn: int, box: dict[str, float]) -> None:
    """One input; each differs from the one before, so that there is something to draw."""
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    if kind == "wheel":  # in and out around the whole trace, where most is drawn
        page.mouse.wheel(0, -120 if turn % 2 else 120)
    elif kind == "key":
        page.keyboard.press(("+", "-")[turn % 2])
    else:
        away = 7 + 13 * (turn % 20)
        page.mouse.move(x + (away if turn % 2 else -away), y + 5 * (turn % 9))


def measure(page: Page, kind: str, repeats: int) -> list[float]:
    canvas = page.locator("canvas[data-events]")
    box = canvas.bounding_box()
    assert box is not None
    canvas.focus()
    page.keyboard.press("0")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    if kind == "drag":  # twofold zoom leaves room to move
        page.keyboard.press("+")
        page.mouse.down()
    page.evaluate("(type) => { window.wanted = type; window.taken = []; }", INPUTS[kind])
    for turn in range(repeats):
        send(page, kind, turn, box)
        page.wait_for_function("(n) => window.taken.length > n", arg=turn)
    if kind == "drag":
        page.mouse.up()
    taken: list[float] = page.evaluate("window.taken")
    return taken[:repeats]


def run(events: int, repeats: int, server: Server, page_of: Lab) -> bool:
    code = (
        "from tests.widgets.traces import many\n"
        "from labkit.widgets import Timeline\n"
        f"Timeline(many({events}))"
    )
    page_of.open(server.write(f"events-{events}.ipynb", code))
    page_of.run_all()
    page = page_of.page
    page.wait_for_selector("canvas[data-draw-ms]")
    canvas = page.locator("canvas[data-events]")
    canvas.evaluate(WATCH)
    shown = canvas.get_attribute("data-events")
    floor = interval(page.evaluate(IDLE, repeats))
    print(
        f"\n{shown} events; the page at rest: {floor[0]:.1f} ms ({floor[1]:.1f} to {floor[2]:.1f})"
    )
    kept = True
    for kind in INPUTS:
        middle, low, high = interval(measure(page, kind, repeats))
        drawn = float(canvas.get_attribute("data-draw-ms") or "nan")
        fits = middle <= LIMITS[events]
        kept &= fits
        print(
            f"  {kind:6} median {middle:6.1f} ms, 95 % interval {low:.1f} to {high:.1f}, "
            f"{repeats} repeats, last drawing {drawn:.1f} ms; "
            f"claim {LIMITS[events]:.0f} ms {'holds' if fits else 'FAILS'}"
        )
    return kept


def run_retimed(kind: str, repeats: int, server: Server, page_of: Lab) -> bool:
    """A slider of a timeline of a `kind` of trace that benchmarks/retime.py makes."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from retime import H100, {kind}\n"
        f"shown = {kind}({RETIMED_EVENTS}).timeline(cluster=H100, clock='modelled')\n"
        "shown"
    )
    page_of.open(server.write(f"retimed-{kind}.ipynb", code))
    page_of.run_all()
    page = page_of.page
    slider = page.get_by_role("slider", name="latency")
    slider.evaluate(WATCH_SLIDER)
    for turn in range(repeats):
        page.keyboard.press(("ArrowRight", "ArrowLeft")[turn % 7 == 6])
        page.wait_for_function("(n) => window.taken.length > n", arg=turn)
    events = page.locator("canvas[data-events]").get_attribute("data-events")
    middle, low, high = interval(page.evaluate("window.taken"))
    fits = middle <= RETIMED
    print(
        f"\n{events} bars, {kind}, a slider that retimes: median {middle:.1f} ms, 95 % interval "
        f"{low:.1f} to {high:.1f}, {repeats} repeats; "
        f"claim {RETIMED:.0f} ms {'holds' if fits else 'FAILS'}"
    )
    return fits


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=60)
    options.add_argument("--events", type=int, nargs="*", choices=LIMITS, default=list(LIMITS))
    chosen = options.parse_args()
    path = find_chromium()
    if path is None:
        print("needs Chromium: sudo apt-get install -y chromium")
        return 1
    kept = True
    with tempfile.TemporaryDirectory() as home, sync_playwright() as play:
        server = Server(Path(home))
        try:
            flags = [*FLAGS, *(["--no-sandbox"] if os.getuid() == 0 else [])]
            browser = play.chromium.launch(executable_path=path, args=flags)
            for events in chosen.events:
                lab = Lab(browser, server)
                kept &= run(events, chosen.repeats, server, lab)
                lab.close()
            for kind in ("data_parallel", "pipeline"):
                lab = Lab(browser, server)
                kept &= run_retimed(kind, chosen.repeats, server, lab)
                lab.close()
            browser.close()
        finally:
            server.stop()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
