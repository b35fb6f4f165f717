"""Bars, their texts and the arrows between them, in a still.

Bars narrower than a pixel are merged, pixel by pixel, into the kind that fills most of it: a trace
of 100,000 events draws as fast as one of 1,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import FancyArrowPatch

from labkit.widgets.palette import STYLES
from labkit.widgets.picture import SPANS, Lane, Picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from labkit.widgets.rows import Row

INK, LINE = "#1a1a1a", "#333333"
HATCH = {"/": "////", "\\": "\\\\\\\\", "x": "xxx", ".": "....", "-": "---", "": None}
_CHARACTER = 6.1  # pixels, mean width of a character of the bars' labels
_MOST_ARROWS = 150  # above it a message is a plain line
_MOST_LINES = 3000


@dataclass(frozen=True)
class View:
    axes: Axes
    origin: float
    factor: float
    start: float
    end: float
    pixels: float  # per unit of time

    def x(self, time: Any) -> Any:
        return (np.clip(time, self.start, self.end) - self.origin) * self.factor


def draw_lane(view: View, picture: Picture, lane: Lane, row: Row) -> None:
    bars = slice(lane.first, lane.stop)
    start, end = picture.bars["start"][bars], picture.bars["end"][bars]
    style, labels = picture.bars["style"][bars], picture.bars["label"][bars].tolist()
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
                    _label(view, x, wide, top, tall, picture.words[labels[bar]], kind)


def _merged(
    view: View, start: NDArray[Any], end: NDArray[Any], style: NDArray[Any]
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
    view: View, boxes: Sequence[tuple[float, float]], top: float, tall: float, kind: int,
    outlined: bool,
) -> None:  # fmt: skip
    style = STYLES[kind]
    corners = [
        [(x, top), (x + width, top), (x + width, top + tall), (x, top + tall)] for x, width in boxes
    ]
    edge = LINE if outlined else "none"
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
            hatch=HATCH[style.hatch],
        )  # fmt: skip
        view.axes.add_collection(hatched)


def _label(
    view: View, x: float, width: float, top: float, tall: float, label: tuple[str, str], kind: int
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


def draw_arrows(view: View, picture: Picture, rows: Sequence[Row]) -> None:
    bars, pairs = picture.bars, picture.arrows
    leave, arrive = bars["start"][pairs[:, 0]], bars["end"][pairs[:, 1]]
    seen = pairs[(arrive >= view.start) & (leave <= view.end)]
    lines = []
    for send, recv in seen[:: every(len(seen))].tolist():
        ends = []
        for bar, time in ((send, bars["start"][send]), (recv, bars["end"][recv])):
            top, tall = rows[bars["rank"][bar]].lane(int(bars["lane"][bar]))
            ends.append((float(view.x(time)), top + tall / 2))
        lines.append(ends)
    if len(lines) > _MOST_ARROWS:
        view.axes.add_collection(LineCollection(lines, colors=INK, linewidths=0.4, alpha=0.5))
        return
    for (x0, y0), (x1, y1) in lines:
        view.axes.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=6, linewidth=0.8,
                color=INK, zorder=4, shrinkA=0, shrinkB=0,
            )
        )  # fmt: skip


def every(messages: int) -> int:
    """Of how many messages one has its arrow."""
    return -(-messages // _MOST_LINES) or 1
