"""What lies over the bars in a still: where steps begin, a prediction, the critical path."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matplotlib.collections import PolyCollection
from matplotlib.patches import FancyArrowPatch, Rectangle

from labkit.widgets.bars import INK
from labkit.widgets.picture import COMMUNICATION, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labkit.trace.events import Step
    from labkit.widgets.bars import View
    from labkit.widgets.path import Path
    from labkit.widgets.prediction import Box
    from labkit.widgets.rows import Row
    from labkit.widgets.window import Window

_PREDICTED = "#a3004f"


def draw_veil(view: View, rows: Sequence[Row], shown: Window) -> None:
    """Pale what a rank did before and after the one step that is shown."""
    for rank, (first, last) in shown.spans.items():
        top, bottom = rows[rank].top - 1, rows[rank].bottom + 1
        for start, end in ((view.start, first), (last, view.end)):
            if end > start:
                x = float(view.x(start))
                pale = Rectangle((x, top), float(view.x(end)) - x, bottom - top)
                pale.set(facecolor="white", edgecolor="none", alpha=0.7, zorder=5)
                view.axes.add_patch(pale)


def draw_steps(view: View, rows: Sequence[Row], steps: Sequence[Step]) -> None:
    """Where each rank's steps begin, numbered above the first rank."""
    if len(steps) < 2:
        return
    apart = (view.end - view.start) / len(steps) * view.pixels
    for step in steps:
        for rank, (start, _) in step.spans.items():
            if not view.start <= start <= view.end or apart < 6:
                continue
            x, row = float(view.x(start)), rows[rank]
            view.axes.vlines(x, row.top - 4, row.bottom + 2, color=INK, linewidth=0.7, zorder=4)
            if rank == 0 and apart > 50:
                view.axes.text(x, row.top - 5, f"step {step.index}", fontsize=7, color=INK)


def draw_prediction(view: View, rows: Sequence[Row], boxes: Sequence[Box]) -> None:
    """Dashed outlines around what was predicted; a line where only a time was."""
    named = False
    for box in boxes:
        left, right = float(view.x(box.start)), float(view.x(box.end))
        look: dict[str, Any] = {"edgecolor": _PREDICTED, "linestyle": (0, (4, 2)), "zorder": 6}
        if not view.start <= box.end <= view.end:
            continue
        if box.rank is None:
            top, bottom = rows[0].top - 3, rows[-1].bottom + 6
            view.axes.vlines(right, top, bottom, color=_PREDICTED, linewidth=1.6,
                             linestyle=(0, (4, 2)), zorder=6)  # fmt: skip
        else:
            top, bottom = rows[box.rank].top - 3, rows[box.rank].bottom + 2
            outline = Rectangle((left, top), right - left, bottom - top)
            view.axes.add_patch(outline)
            outline.set(facecolor="none", linewidth=1.3, **look)
        if not named:
            away = -4 if (box.end - view.start) * view.pixels > 80 else 4
            view.axes.annotate(
                "predicted", (right, top), (away, -1), textcoords="offset points", fontsize=7.5,
                color=_PREDICTED, ha="right" if away < 0 else "left", va="top", zorder=7,
                fontweight="bold", annotation_clip=False,
                bbox={"facecolor": "white", "edgecolor": "none", "boxstyle": "square,pad=0.1"},
            )  # fmt: skip
            named = True


def draw_path(view: View, rows: Sequence[Row], path: Path) -> None:
    """Thick outlines around the path's pieces, the rest pale, arrows where it changes the rank."""
    boxes = []
    pieces = [p for p in path.pieces if p.end > view.start and p.start < view.end]
    for piece in pieces:
        top, tall = rows[piece.rank].lane(piece.lane)
        left, right = float(view.x(piece.start)), float(view.x(piece.end))
        boxes.append((left, top, right - left, tall))
    for rank, row in enumerate(rows):
        # Pale stripes between the pieces, lane by lane, so that the path keeps its colours.
        for number in (COMPUTE, *range(COMMUNICATION, COMMUNICATION + row.number)):
            top, tall = row.lane(number)
            at = float(view.x(view.start))
            mine = [
                box for piece, box in zip(pieces, boxes, strict=True)
                if (piece.rank, piece.lane) == (rank, number)
            ]  # fmt: skip
            for left, _, wide, _ in [*sorted(mine), (float(view.x(view.end)), 0, 0, 0)]:
                if left > at:
                    pale = Rectangle((at, top - 0.5), left - at, tall + 1)
                    pale.set(facecolor="white", edgecolor="none", alpha=0.65, zorder=5)
                    view.axes.add_patch(pale)
                at = max(at, left + wide)
    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
    view.axes.add_collection(
        PolyCollection(corners, facecolor="none", edgecolor="black", linewidth=1.6, zorder=6)
    )
    both = list(zip(pieces, boxes, strict=True))
    for (before, one), (after, two) in pairwise(both):
        if before.rank == after.rank or not view.start <= after.start <= view.end:
            continue
        ends = (one[0] + one[2], one[1] + one[3] / 2), (two[0], two[1] + two[3] / 2)
        arrow = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0)
        arrow.set(color="black", linewidth=1.6, zorder=6.5)
        view.axes.add_patch(arrow)
