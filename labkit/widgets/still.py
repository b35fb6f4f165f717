"""The timeline as a PNG, for GitHub, print and notebooks that nobody has trusted yet.

Drawn by matplotlib on a `Figure` of its own, without pyplot, so that no global state is touched.
Bars narrower than a pixel are merged, pixel by pixel, into the kind that fills most of it: a trace
of 100,000 events draws as fast as one of 1,000.
"""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from PIL import Image

from labkit.widgets.palette import STYLES
from labkit.widgets.picture import COMMUNICATION, COMPUTE, SPANS, Lane, Picture
from labkit.widgets.rows import Row, rows_of
from labkit.widgets.words import clock_note, scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from labkit.trace.events import About, Step
    from labkit.widgets.window import Window

WIDTH = 1000  # pixels on the page; the file holds 1.5 times as many
_LEFT, _RIGHT, _TOP, _LEGEND = 136, 14, 34, 30  # pixels around the lanes
_INK, _LINE, _FAINT = "#1a1a1a", "#333333", "#e3e3e3"
_HATCH = {"/": "////", "\\": "\\\\\\\\", "x": "xxx", ".": "....", "-": "---", "": None}
_NOTE = 17  # pixels, a further line of the note
_ABOVE = 15  # pixels over the first rank, for the steps' numbers
_CHARACTER = 6.1  # pixels, mean width of a character of the bars' labels
_MOST_ARROWS = 150  # above it a message is a plain line


def draw(
    picture: Picture, about: About, title: str, shown: Window, steps: Sequence[Step] = ()
) -> bytes:
    """A PNG of the part of `picture` that `shown` names, with the starts of `steps`."""
    start, origin = shown.start, shown.origin
    end = start + (shown.end - start) * 1.005 if shown.end > start else start + 1.0
    rows = rows_of(picture, about.ranks)
    lanes_height = rows[-1].bottom + 8
    axis_height, legend_lines = 38, _legend_lines(_used(picture))
    notes = (len(_note_lines(about, title)) - 1) * _NOTE
    above = _ABOVE if len(steps) > 1 and not shown.spans else 5
    height = _TOP + notes + above + lanes_height + axis_height + _LEGEND * legend_lines
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes(
        (
            _LEFT / WIDTH,
            (axis_height + _LEGEND * legend_lines) / height,
            (WIDTH - _LEFT - _RIGHT) / WIDTH,
            (lanes_height + above) / height,
        )
    )
    factor, word = scale_of(about.unit, end - start)
    axes.set_xlim((start - origin) * factor, (end - origin) * factor)
    axes.set_ylim(lanes_height, -above)
    view = _View(axes, origin, factor, start, end, (WIDTH - _LEFT - _RIGHT) / (end - start))
    since = "time" if shown.step is None else f"time since the start of step {shown.step}"
    _frame(axes, rows, about, f"{since} ({word})" if word else since)
    for lane in picture.lanes:
        _lane(view, picture, lane, rows[lane.rank])
    _arrows(view, picture, rows)
    _veil(view, rows, shown)
    if not shown.spans:
        _steps(view, rows, steps)
    _head(figure, about, title, height)
    _legend(figure, _used(picture), height)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    """A PNG with a palette: a third of the size, since notebooks are kept in git."""
    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    flat = Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    flat.save(out, format="png", optimize=True)
    return out.getvalue()


@dataclass(frozen=True)
class _View:
    axes: Axes
    origin: float
    factor: float
    start: float
    end: float
    pixels: float  # per unit of time

    def x(self, time: Any) -> Any:
        return (np.clip(time, self.start, self.end) - self.origin) * self.factor


def _used(picture: Picture) -> list[int]:
    return sorted(set(picture.bars["style"].tolist()))


def _frame(axes: Axes, rows: Sequence[Row], about: About, label: str) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_FAINT, linewidth=0.7)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
    axes.tick_params(axis="x", labelsize=8, colors=_INK, length=3)
    axes.set_xlabel(label, fontsize=8.5, color=_INK, labelpad=2)
    axes.set_yticks([])
    for rank, row in enumerate(rows):
        every = max(1, about.ranks // 24)
        if rank % every == 0:
            top, tall = row.lane(COMPUTE)
            _left(axes, _LEFT - 8, top + tall / 2, f"rank {rank}", 8.5, first=True)
        if about.ranks <= 8:
            _left(axes, 8, row.lane(COMPUTE)[0] + row.compute / 2, "compute", 7)
            middle = (row.lane(COMMUNICATION)[0] + row.bottom) / 2
            _left(axes, 8, middle, "communication", 7)
        if rank:
            y = (rows[rank - 1].bottom + row.top) / 2
            axes.axhline(y, color=_FAINT, linewidth=0.8, zorder=0.5)


def _left(axes: Axes, pixels: float, y: float, text: str, size: float, first: bool = False) -> None:
    axes.annotate(
        text, (0, y), (-pixels * 0.72, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="center", ha="left" if first else "right",
        fontsize=size, color=_INK, fontweight="bold" if first else "normal", annotation_clip=False,
    )  # fmt: skip


def _lane(view: _View, picture: Picture, lane: Lane, row: Row) -> None:
    bars = slice(lane.first, lane.stop)
    start, end = picture.bars["start"][bars], picture.bars["end"][bars]
    style = picture.bars["style"][bars]
    seen = np.flatnonzero((end >= view.start) & (start <= view.end))
    top, tall = row.lane(lane.number)
    width = (end[seen] - start[seen]) * view.pixels
    narrow = seen[width < 1]
    for kind, boxes in _merged(view, start[narrow], end[narrow], style[narrow]).items():
        _boxes(view, boxes, top, tall, kind, outlined=False)
    for outlined, chosen in ((False, (width >= 1) & (width < 3)), (True, width >= 3)):
        for kind in np.unique(style[seen[chosen]]).tolist():
            mine = seen[chosen & (style[seen] == kind)]
            left, right = view.x(start[mine]), view.x(end[mine])
            boxes = list(zip(left.tolist(), (right - left).tolist(), strict=True))
            _boxes(view, boxes, top, tall, kind, outlined=outlined and lane.number != SPANS)
            if outlined and lane.number != SPANS and tall >= 8:
                for (x, wide), bar in zip(boxes, mine.tolist(), strict=True):
                    _label(view, x, wide, top, tall, picture.labels[lane.first + bar], kind)


def _merged(
    view: _View, start: NDArray[Any], end: NDArray[Any], style: NDArray[Any]
) -> dict[int, list[tuple[float, float]]]:
    """One box (x, width) a pixel, under the style that fills most of it."""
    if not len(start):
        return {}
    pixel = np.floor((start - view.start) * view.pixels).astype(int).clip(min=0)
    weight = np.zeros((pixel.max() + 1, len(STYLES)))
    np.add.at(weight, (pixel, style), end - start + 1e-12)
    filled = np.flatnonzero(weight.sum(axis=1) > 0)
    most = weight[filled].argmax(axis=1)
    x, width = view.x(view.start + filled / view.pixels), view.factor / view.pixels
    return {int(kind): [(float(at), width) for at in x[most == kind]] for kind in np.unique(most)}


def _boxes(
    view: _View, boxes: Sequence[tuple[float, float]], top: float, tall: float, kind: int,
    outlined: bool,
) -> None:  # fmt: skip
    style = STYLES[kind]
    corners = [
        [(x, top), (x + width, top), (x + width, top + tall), (x, top + tall)] for x, width in boxes
    ]
    edge = _LINE if outlined else "none"
    view.axes.add_collection(
        PolyCollection(
            corners, facecolor=style.colour, edgecolor=edge, linewidth=0.6, zorder=2,
            antialiased=outlined,
        )
    )  # fmt: skip
    if outlined and style.hatch:
        faint = (*(int(style.ink[i : i + 2], 16) / 255 for i in (1, 3, 5)), 0.28)
        hatched = PolyCollection(
            corners, facecolor="none", edgecolor=faint, linewidth=0, zorder=2.1,
            hatch=_HATCH[style.hatch],
        )  # fmt: skip
        view.axes.add_collection(hatched)


def _label(
    view: _View, x: float, width: float, top: float, tall: float, label: tuple[str, str], kind: int
) -> None:
    room = width / view.factor * view.pixels - 5
    size = 7.5 if tall >= 14 else 6.5 if tall >= 11 else 5.5
    per = _CHARACTER * size / 7.5
    text = next((t for t in label if t and len(t) * per <= room), None)
    if text is None:
        return
    style = STYLES[kind]
    box = (
        {"facecolor": style.colour, "edgecolor": "none", "boxstyle": "square,pad=0.1"}
        if style.hatch
        else None
    )
    view.axes.text(
        x + width / 2, top + tall / 2, text, fontsize=size, color=style.ink, ha="center",
        va="center_baseline", zorder=3, clip_on=True, bbox=box, parse_math=False,
    )  # fmt: skip


def _arrows(view: _View, picture: Picture, rows: Sequence[Row]) -> None:
    bars, pairs = picture.bars, picture.arrows
    leave, arrive = bars["start"][pairs[:, 0]], bars["end"][pairs[:, 1]]
    seen = pairs[(arrive >= view.start) & (leave <= view.end)]
    lines = []
    for send, recv in seen[:: max(1, len(seen) // 3000)].tolist():
        ends = []
        for bar, time in ((send, bars["start"][send]), (recv, bars["end"][recv])):
            top, tall = rows[bars["rank"][bar]].lane(int(bars["lane"][bar]))
            ends.append((float(view.x(time)), top + tall / 2))
        lines.append(ends)
    if len(lines) > _MOST_ARROWS:
        view.axes.add_collection(LineCollection(lines, colors=_INK, linewidths=0.4, alpha=0.5))
        return
    for (x0, y0), (x1, y1) in lines:
        view.axes.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=6, linewidth=0.8,
                color=_INK, zorder=4, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip


def _veil(view: _View, rows: Sequence[Row], shown: Window) -> None:
    """Pale what a rank did before and after the one step that is shown."""
    for rank, (first, last) in shown.spans.items():
        top, bottom = rows[rank].top - 1, rows[rank].bottom + 1
        for start, end in ((view.start, first), (last, view.end)):
            if end > start:
                x = float(view.x(start))
                pale = Rectangle((x, top), float(view.x(end)) - x, bottom - top)
                pale.set(facecolor="white", edgecolor="none", alpha=0.7, zorder=5)
                view.axes.add_patch(pale)


def _steps(view: _View, rows: Sequence[Row], steps: Sequence[Step]) -> None:
    """Where each rank's steps begin, numbered above the first rank."""
    if len(steps) < 2:
        return
    apart = (view.end - view.start) / len(steps) * view.pixels
    for step in steps:
        for rank, (start, _) in step.spans.items():
            if not view.start <= start <= view.end or apart < 6:
                continue
            x, row = float(view.x(start)), rows[rank]
            view.axes.vlines(x, row.top - 4, row.bottom + 2, color=_INK, linewidth=0.7, zorder=4)
            if rank == 0 and apart > 50:
                view.axes.text(x, row.top - 5, f"step {step.index}", fontsize=7, color=_INK)


def _note_lines(about: About, title: str) -> list[str]:
    """The note beside the clock's word; below it, in lines, where it is too long for that."""
    note = clock_note(about)
    if 10 * len(title) + 110 + 6.4 * len(note) <= WIDTH:
        return [note]
    return ["", *textwrap.wrap(note, 150)]


def _head(figure: Figure, about: About, title: str, height: float) -> None:
    y = 1 - 17 / height
    x = 8.0
    if title:
        text = figure.text(
            x / WIDTH, y, title, fontsize=11, fontweight="bold", color=_INK, va="center",
            parse_math=False,
        )  # fmt: skip
        x += text.get_window_extent().width / figure.dpi * 100 + 16
    badge = figure.text(
        (x + 6) / WIDTH, y, about.clock, fontsize=9, color=_INK, va="center",
        bbox={"facecolor": "white", "edgecolor": _INK, "boxstyle": "round,pad=0.3"},
    )  # fmt: skip
    x += 6 + badge.get_window_extent().width / figure.dpi * 100 + 16
    for number, line in enumerate(_note_lines(about, title)):
        figure.text(
            (x if number == 0 else 8) / WIDTH, y - number * _NOTE / height, line, fontsize=8.5,
            color=_INK, va="center", parse_math=False,
        )  # fmt: skip


def _legend_places(used: Sequence[int]) -> list[tuple[int, int, float]]:
    """(style, line, x in pixels) of each entry of the legend."""
    places, line, x = [], 0, float(_LEFT)
    for kind in used:
        wide = 36 + 6.4 * len(STYLES[kind].key)
        if x + wide > WIDTH and x > _LEFT:
            line, x = line + 1, float(_LEFT)
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
        face = Rectangle((x, y), 22, 15, facecolor=style.colour, edgecolor=_LINE, linewidth=0.6)
        axes.add_patch(face)
        if style.hatch:
            faint = (*(int(style.ink[i : i + 2], 16) / 255 for i in (1, 3, 5)), 0.28)
            axes.add_patch(
                Rectangle(
                    (x, y), 22, 15, facecolor="none", edgecolor=faint, linewidth=0,
                    hatch=_HATCH[style.hatch],
                )
            )  # fmt: skip
        if style.letter:
            axes.text(
                x + 11, y + 7.5, style.letter, fontsize=7.5, color=style.ink, ha="center",
                va="center_baseline",
                bbox={"facecolor": style.colour, "edgecolor": "none", "boxstyle": "square,pad=0.1"},
            )  # fmt: skip
        axes.text(x + 28, y + 7.5, style.key, fontsize=8.5, color=_INK, va="center_baseline")
