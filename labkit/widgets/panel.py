"""One run in a still: its lanes, what lies over them, and the lines under them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.widgets.bars import INK, LINE, View, draw_arrows, draw_lane, every
from labkit.widgets.over import draw_path, draw_prediction, draw_steps, draw_veil
from labkit.widgets.picture import COMMUNICATION, COMPUTE, Picture
from labkit.widgets.rows import Row, rows_of
from labkit.widgets.words import scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from labkit.trace.events import About, Step
    from labkit.widgets.path import Path
    from labkit.widgets.prediction import Box, Predicted
    from labkit.widgets.window import Window

LEFT, RIGHT = 136, 14  # pixels beside the lanes
_FAINT = "#e3e3e3"
_ABOVE = 15  # pixels over the first rank, for the steps' numbers


@dataclass(frozen=True)
class Panel:
    """What is drawn of one run.

    Parameters
    ----------
    shown : the stretch of time
    steps : whose starts are marked
    predicted, path : a prediction and a critical path, if any
    remarks : what the picture cannot show
    """

    picture: Picture
    about: About
    title: str
    shown: Window
    steps: Sequence[Step] = ()
    predicted: Predicted | None = None
    path: Path | None = None
    remarks: Sequence[str] = ()

    @property
    def rows(self) -> list[Row]:
        return rows_of(self.picture, self.about.ranks)

    @property
    def above(self) -> float:
        """Pixels over the first rank."""
        return _ABOVE if len(self.steps) > 1 and not self.shown.spans else 5

    @property
    def height(self) -> float:
        """Pixels of the lanes and what is above them."""
        return self.rows[-1].bottom + 8 + self.above

    @property
    def said(self) -> list[str]:
        """Lines of text that belong under the lanes."""
        step = self.shown.step if self.shown.spans else None
        lines = []
        if self.predicted is not None and step in self.predicted.said:
            lines.append(self.predicted.said[step])
        if self.path is not None:
            lines.append(self.path.said)
        if (n := every(len(self.picture.arrows))) > 1:
            lines.append(f"Of every {n} messages one has its arrow.")
        return [*lines, *self.remarks]

    @property
    def length(self) -> float:
        """The time that has to be in view: the window, and what was predicted for it."""
        ends = [self.shown.end, *(box.end for box in self._boxes())]
        length = max(ends) - self.shown.start
        return length * 1.005 if length > 0 else 1.0

    def _boxes(self) -> list[Box]:
        boxes = () if self.predicted is None else self.predicted.boxes
        one = self.shown.step if self.shown.spans else None
        return [box for box in boxes if one in (None, box.step)]

    def draw(self, axes: Axes, length: float, width: float) -> None:
        """Draw into `axes`, `width` pixels wide, `length` of time."""
        start, origin = self.shown.start, self.shown.origin
        end, rows = start + length, self.rows
        factor, word = scale_of(self.about.unit, length)
        axes.set_xlim((start - origin) * factor, (end - origin) * factor)
        axes.set_ylim(rows[-1].bottom + 8, -self.above)
        view = View(axes, origin, factor, start, end, width / length)
        zero = self.shown.step
        since = "time" if zero is None else f"time since the start of step {zero}"
        _frame(axes, rows, self.about, f"{since} ({word})" if word else since)
        for lane in self.picture.lanes:
            draw_lane(view, self.picture, lane, rows[lane.rank])
        draw_arrows(view, self.picture, rows)
        draw_veil(view, rows, self.shown)
        if not self.shown.spans:
            draw_steps(view, rows, self.steps)
        draw_prediction(view, rows, self._boxes())
        if self.path is not None:
            draw_path(view, rows, self.path)


def _frame(axes: Axes, rows: Sequence[Row], about: About, label: str) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=_FAINT, linewidth=0.7)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(axis="x", labelsize=8, colors=INK, length=3)
    axes.set_xlabel(label, fontsize=8.5, color=INK, labelpad=2)
    axes.set_yticks([])
    for rank, row in enumerate(rows):
        every = max(1, about.ranks // 24)
        if rank % every == 0:
            top, tall = row.lane(COMPUTE)
            _left(axes, LEFT - 8, top + tall / 2, f"rank {rank}", 8.5, first=True)
        if about.ranks <= 8:
            _left(axes, 8, row.lane(COMPUTE)[0] + row.compute / 2, "compute", 7)
            if not row.number:
                continue
            middle = (row.lane(COMMUNICATION)[0] + row.bottom) / 2
            _left(axes, 8, middle, "communication", 7)
        if rank:
            y = (rows[rank - 1].bottom + row.top) / 2
            axes.axhline(y, color=_FAINT, linewidth=0.8, zorder=0.5)


def _left(axes: Axes, pixels: float, y: float, text: str, size: float, first: bool = False) -> None:
    axes.annotate(
        text, (0, y), (-pixels * 0.72, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="center", ha="left" if first else "right",
        fontsize=size, color=INK, fontweight="bold" if first else "normal", annotation_clip=False,
    )  # fmt: skip
