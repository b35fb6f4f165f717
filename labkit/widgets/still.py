"""The timeline as a PNG, for GitHub, print and notebooks that nobody has trusted yet.

Drawn by matplotlib on a `Figure` of its own, without pyplot, so that no global state is touched.
Runs lie one above the other, on one scale of time, each with its clock's word.
"""

from __future__ import annotations

import base64
import io
import textwrap
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from labkit.widgets.bars import HATCH, INK, LINE
from labkit.widgets.palette import STYLES
from labkit.widgets.panel import LEFT, RIGHT, Panel
from labkit.widgets.words import clock_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from labkit.trace.events import About

WIDTH = 1000  # pixels on the page; the file holds 1.5 times as many
_HEAD, _AXIS, _LEGEND = 34, 38, 30  # pixels: over a run, under it, a line of the legend
_NOTE = 17  # pixels, a further line of text
_UNDER = 7  # pixels between a head's first line, with the frame of its word, and the next
_DASHED = {"measured": "solid", "paced": "solid", "modelled": "dashed"}


def draw(*panels: Panel) -> bytes:
    """A PNG of runs, the first one on top."""
    used = sorted({style for panel in panels for style in _used(panel)})
    length = max(panel.length for panel in panels)
    inner = WIDTH - LEFT - RIGHT
    heads = [_head_height(panel) for panel in panels]
    saids = [[line for said in p.said for line in textwrap.wrap(said, 150)] for p in panels]
    tails = [_AXIS + _NOTE * len(said) for said in saids]
    height = sum(heads) + sum(tails) + sum(p.height for p in panels) + _LEGEND * _legend_lines(used)
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    top = 0.0
    for panel, head, tail, said in zip(panels, heads, tails, saids, strict=True):
        _head(figure, panel, top, height)
        bottom = top + head + panel.height
        where = (LEFT / WIDTH, 1 - bottom / height, inner / WIDTH, panel.height / height)
        panel.draw(figure.add_axes(where), length, inner)
        for number, line in enumerate(said):
            y = bottom + _AXIS + _NOTE * number + 4
            figure.text(8 / WIDTH, 1 - y / height, line, fontsize=8.5, color=INK, va="center",
                        parse_math=False)  # fmt: skip
        top = bottom + tail
    _legend(figure, used, height)
    # Beside what a path leaves pale, each colour is there twice.
    return png(figure, 255 if any(panel.path for panel in panels) else 128)


def _used(panel: Panel) -> list[int]:
    """Styles of which there is something to see."""
    bars = panel.picture.bars
    styles: list[int] = bars["style"][bars["end"] > bars["start"]].tolist()
    return styles


def png(figure: Figure, colours: int = 128) -> bytes:
    """A PNG with a palette: a third of the size, since notebooks are kept in git."""
    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    flat = Image.open(drawn).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
    flat.save(out, format="png", optimize=True)
    return out.getvalue()


def beside(
    bundle: tuple[dict[str, Any], dict[str, Any]] | None, text: str, draw: Callable[[], bytes]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What a widget hands to a notebook, with a line and a still for where widgets cannot live."""
    if bundle is None:
        return None
    data, metadata = bundle
    picture = base64.b64encode(draw()).decode()
    return (
        {**data, "text/plain": text, "image/png": picture},
        {**metadata, "image/png": {"width": WIDTH}},
    )


def _note_lines(about: About, title: str) -> list[str]:
    """The note beside the clock's word; below it, in lines, where it is too long for that."""
    note = clock_note(about)
    if 10 * len(title) + 110 + 6.4 * len(note) <= WIDTH:
        return [note]
    return ["", *textwrap.wrap(note, 150)]


def _head_height(panel: Panel) -> float:
    further = len(_note_lines(panel.about, panel.title)) - 1
    return _HEAD + (_UNDER + _NOTE * further if further else 0)


def _head(figure: Figure, panel: Panel, top: float, height: float) -> None:
    about, title = panel.about, panel.title
    y = 1 - (top + 17) / height
    x = 8.0
    if title:
        text = figure.text(
            x / WIDTH, y, title, fontsize=11, fontweight="bold", color=INK, va="center",
            parse_math=False,
        )  # fmt: skip
        x += text.get_window_extent().width / figure.dpi * 100 + 16
    badge = figure.text(
        (x + 6) / WIDTH, y, about.clock, fontsize=10.5, color=INK, va="center", fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": INK, "boxstyle": "round,pad=0.3",
              "linestyle": _DASHED[about.clock]},
    )  # fmt: skip
    x += 6 + badge.get_window_extent().width / figure.dpi * 100 + 16
    for number, line in enumerate(_note_lines(about, title)):
        down = _UNDER + number * _NOTE if number else 0
        figure.text(
            (x if number == 0 else 8) / WIDTH, y - down / height, line, fontsize=8.5,
            color=INK, va="center", parse_math=False,
        )  # fmt: skip


def _legend_places(used: Sequence[int]) -> list[tuple[int, int, float]]:
    """(style, line, x in pixels) of each entry of the legend."""
    places, line, x = [], 0, float(LEFT)
    for kind in used:
        wide = 36 + 6.4 * len(STYLES[kind].words)
        if x + wide > WIDTH and x > LEFT:
            line, x = line + 1, float(LEFT)
        places.append((kind, line, x))
        x += wide + 10
    return places


def _legend_lines(used: Sequence[int]) -> int:
    return 1 + max((line for _, line, _ in _legend_places(used)), default=0)


def _legend(figure: Figure, used: Sequence[int], height: float) -> None:
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    for kind, line, x in _legend_places(used):
        style = STYLES[kind]
        y = height - _LEGEND * (_legend_lines(used) - line) + 6
        face = Rectangle((x, y), 22, 15, facecolor=style.colour, edgecolor=LINE, linewidth=0.6)
        axes.add_patch(face)
        if style.hatch:
            faint = (*(int(style.ink[i : i + 2], 16) / 255 for i in (1, 3, 5)), 0.28)
            axes.add_patch(
                Rectangle(
                    (x, y), 22, 15, facecolor="none", edgecolor=faint, linewidth=0,
                    hatch=HATCH[style.hatch],
                )
            )  # fmt: skip
        if style.letter:
            axes.text(
                x + 11, y + 7.5, style.letter, fontsize=7.5, color=style.ink, ha="center",
                va="center_baseline",
                bbox={"facecolor": style.colour, "edgecolor": "none", "boxstyle": "square,pad=0.1"},
            )  # fmt: skip
        axes.text(x + 28, y + 7.5, style.words, fontsize=8.5, color=INK, va="center_baseline")
