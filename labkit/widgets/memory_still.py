"""The memory bar as a PNG, for GitHub, print and notebooks that nobody has trusted yet."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.widgets.bars import HATCH, INK, LINE
from labkit.widgets.palette import MEMORY
from labkit.widgets.still import WIDTH, png
from labkit.widgets.words import in_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from labkit.trace.memory import Held

__all__ = ["OVER", "WIDTH", "draw"]

OVER = "#b3261e"  # the budget's line, and what is beyond it
FAINT = "#e3e3e3"
_RIGHT, _ROW, _BAR = 170, 34, 22  # pixels: beside the bars, from row to row, a bar
_HEAD, _AXIS, _LEGEND = 46, 40, 28
_CHARACTER = 6.4  # pixels, mean width of a character of the labels


def draw(rows: Sequence[tuple[str, Held]], budget: int | None, title: str, words: str) -> bytes:
    """A PNG of `rows` (label, what is held), with the line of `budget` bytes."""
    left = min(260.0, 20 + 7.2 * max(len(label) for label, _ in rows))
    lines = textwrap.wrap(words, 150)
    head = _HEAD + (20 if title else 0) + 16 * (len(lines) - 1)
    tall = _ROW * len(rows) + (18 if budget is not None else 4)
    height = head + tall + _AXIS + _LEGEND
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    box = (
        left / WIDTH, (_AXIS + _LEGEND) / height, (WIDTH - left - _RIGHT) / WIDTH, tall / height
    )  # fmt: skip
    axes = figure.add_axes(box)
    most = max(held.total for _, held in rows)
    full = max(most, budget or 0, 1) * 1.03
    axes.set_xlim(0, full)
    axes.set_ylim(_ROW * len(rows), _ROW * len(rows) - tall)
    pixels = (WIDTH - left - _RIGHT) / full
    _frame(axes, full)
    for number, (label, held) in enumerate(rows):
        top = _ROW * number + (_ROW - _BAR) / 2
        _bar(axes, held, budget, top, pixels)
        _beside(axes, held, budget, label, top + _BAR / 2)
        if budget is not None and held.total > budget:
            over = Rectangle((budget, top - 2), held.total - budget, _BAR + 4)
            over.set(facecolor="none", edgecolor=OVER, linewidth=1.6, zorder=4)
            axes.add_patch(over)
    if budget is not None:
        axes.axvline(budget, color=OVER, linewidth=2, linestyle=(0, (4, 2)), zorder=5)
        beyond = budget > 0.8 * full
        axes.text(
            budget + (-6 if beyond else 6) / pixels, -9, f"budget {in_bytes(budget)}", fontsize=8.5,
            color=OVER, fontweight="bold", ha="right" if beyond else "left", va="center",
        )  # fmt: skip
    y = 1 - 16 / height
    if title:
        figure.text(
            8 / WIDTH, y, title, fontsize=11, fontweight="bold", color=INK, va="center",
            parse_math=False,
        )  # fmt: skip
        y -= 22 / height
    for number, line in enumerate(lines):
        figure.text(
            8 / WIDTH, y - 16 * number / height, line, fontsize=9, color=INK, va="center",
            parse_math=False,
        )  # fmt: skip
    _legend(figure, left, height)
    return png(figure)


def _frame(axes: Axes, full: float) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=full > 8))
    axes.xaxis.set_major_formatter(lambda size, _: in_bytes(size))
    axes.tick_params(axis="x", labelsize=8, colors=INK, length=3)
    axes.set_yticks([])


def _bar(axes: Axes, held: Held, budget: int | None, top: float, pixels: float) -> None:
    start = 0
    for style in MEMORY:
        size = held.parts[style.key]
        if not size:
            continue
        face = Rectangle((start, top), size, _BAR, facecolor=style.colour, edgecolor=LINE)
        face.set(linewidth=0.6, zorder=2)
        axes.add_patch(face)
        if style.hatch:
            faint = (0, 0, 0, 0.25)
            hatched = Rectangle((start, top), size, _BAR, facecolor="none", edgecolor=faint)
            hatched.set(linewidth=0, hatch=HATCH[style.hatch], zorder=2.1)
            axes.add_patch(hatched)
        # The label keeps to one side of the budget's line.
        within = size if budget is None else min(size, max(0, budget - start))
        roomy = max(within, size - within)
        middle = start + within / 2 if within >= size - within else start + (within + size) / 2
        named = (f"{style.key} {in_bytes(size)}", in_bytes(size), style.letter)
        text = next((t for t in named if _CHARACTER * len(t) + 6 <= roomy * pixels), None)
        if text is not None:
            axes.text(
                middle, top + _BAR / 2, text, fontsize=8, color=style.ink, ha="center",
                va="center_baseline", zorder=3,
                bbox={"facecolor": style.colour, "edgecolor": "none", "boxstyle": "square,pad=0.1"},
            )  # fmt: skip
        start += size


def _beside(axes: Axes, held: Held, budget: int | None, label: str, y: float) -> None:
    axes.annotate(
        label, (0, y), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
        ha="right", va="center", fontsize=8.5, fontweight="bold", color=INK,
        annotation_clip=False, parse_math=False,
    )  # fmt: skip
    over = held.total - budget if budget is not None else 0
    axes.annotate(
        in_bytes(held.total) + (f", {in_bytes(over)} over" if over > 0 else ""), (1, y), (8, 0),
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="left", va="center",
        fontsize=8.5, color=OVER if over > 0 else INK, annotation_clip=False,
    )  # fmt: skip


def _legend(figure: Figure, left: float, height: float) -> None:
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    x, y = left, height - _LEGEND + 4
    for style in MEMORY:
        face = Rectangle((x, y), 22, 15, facecolor=style.colour, edgecolor=LINE, linewidth=0.6)
        axes.add_patch(face)
        if style.hatch:
            hatched = Rectangle((x, y), 22, 15, facecolor="none", edgecolor=(0, 0, 0, 0.25))
            hatched.set(linewidth=0, hatch=HATCH[style.hatch])
            axes.add_patch(hatched)
        axes.text(
            x + 11, y + 7.5, style.letter, fontsize=7.5, color=style.ink, ha="center",
            va="center_baseline",
            bbox={"facecolor": style.colour, "edgecolor": "none", "boxstyle": "square,pad=0.1"},
        )  # fmt: skip
        axes.text(x + 28, y + 7.5, style.key, fontsize=8.5, color=INK, va="center_baseline")
        x += 46 + 6.4 * len(style.key)
