"""The bubble: time in which ranks could have computed and did not, in both conventions.

*Ideal* is the busiest rank's compute: no order of the work is shorter. *Span* is the longest, over
ranks, of last end − first start of compute. The bubble is what lies between, and it is told as a
share of one or of the other, which differ:

of the total, (span − ideal) / span     GPipe, Zero Bubble; (p−1)/(m+p−1) for p equal stages
of the ideal, (span − ideal) / ideal    Megatron, Llama 3; (p−1)/m there

Each step counts by itself, and what lies between steps does not. Compute is what main threads
computed, wherever the trace comes from: on ranks that share cores a measured compute is longer than
the work in it, and the bubble with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from labkit.trace.events import About, Trace
from labkit.trace.tables import Table, html, plain, time

__all__ = ["Bubble", "StepBubble", "bubble"]


@dataclass(frozen=True)
class StepBubble:
    """The bubble of one step, or of several together.

    Parameters
    ----------
    span : the longest, over ranks, of last end − first start of compute
    ideal : the busiest rank's compute
    """

    span: float
    ideal: float

    @property
    def of_total(self) -> float:
        """(span − ideal) / span, as GPipe and Zero Bubble count it."""
        return (self.span - self.ideal) / self.span if self.span else 0.0

    @property
    def of_ideal(self) -> float:
        """(span − ideal) / ideal, as Megatron and Llama 3 count it."""
        return (self.span - self.ideal) / self.ideal if self.ideal else 0.0


@dataclass(frozen=True, repr=False)
class Bubble(StepBubble):
    """The bubble of a trace: sums over its steps, and what lies behind them.

    Parameters
    ----------
    steps : by number
    busy, idle : by rank; together they are `span` on every rank that computed
    """

    about: About
    steps: Mapping[int, StepBubble]
    busy: Mapping[int, float]
    idle: Mapping[int, float]

    def __repr__(self) -> str:
        return f"Bubble(ranks={self.about.ranks}, {self.about.clock}, steps={len(self.steps)})"

    def __str__(self) -> str:
        return "\n\n".join(plain(table) for table in (steps_table(self), self._ranks_table()))

    def _repr_html_(self) -> str:
        return "\n".join(html(table) for table in (steps_table(self), self._ranks_table()))

    def _ranks_table(self) -> Table:
        unit = self.about.unit
        return Table(
            "Idle by rank, of the longest rank's span",
            ("rank", "busy", "idle"),
            [
                (str(rank), time(busy, unit), time(self.idle[rank], unit))
                for rank, busy in self.busy.items()
            ],
        )


def steps_table(found: Bubble) -> Table:
    """A row a step, and a head a convention."""
    unit = found.about.unit
    rows: list[tuple[str, StepBubble]] = [(str(i), step) for i, step in found.steps.items()]
    if len(rows) > 1:
        rows.append(("all", found))
    return Table(
        f"Bubble, {found.about.clock}: span − ideal, the busiest rank's compute",
        ("step", "span", "ideal", "of the total (÷ span)", "of the ideal (÷ ideal)"),
        [
            (
                name,
                time(b.span, unit),
                time(b.ideal, unit),
                f"{b.of_total:.1%}",
                f"{b.of_ideal:.1%}",
            )
            for name, b in rows
        ],
    )


def bubble(trace: Trace, step: int | None = None) -> Bubble:
    """The bubble of `trace`, step by step, or of one step of it.

    Raises
    ------
    KeyError : there is no such step
    """
    c = trace.columns
    computing = trace.where("compute") & (c["thread"] == 0) & (c["end"] > c["start"])
    ranks = sorted(set(c["rank"].tolist()))
    rows = {rank: np.flatnonzero(computing & (c["rank"] == rank)) for rank in ranks}
    rows = {rank: its[np.argsort(c["start"][its], kind="stable")] for rank, its in rows.items()}
    busy, idle = dict.fromkeys(ranks, 0.0), dict.fromkeys(ranks, 0.0)
    steps: dict[int, StepBubble] = {}
    for each in trace.steps if step is None else [trace.find_step(step)]:
        spans, works = {}, {}
        for rank, window in each.spans.items():
            start, end = (np.clip(c[name][rows[rank]], *window) for name in ("start", "end"))
            inside = end > start
            start, end = start[inside], np.maximum.accumulate(end[inside])
            spans[rank] = float(end[-1] - start[0]) if len(end) else 0.0
            # A moment that two rows cover counts once.
            seen = np.concatenate([start[:1], end[:-1]])
            works[rank] = float(np.maximum(end - np.maximum(start, seen), 0.0).sum())
        found = StepBubble(max(spans.values(), default=0.0), max(works.values(), default=0.0))
        steps[each.index] = found
        for rank, work in works.items():
            busy[rank] += work
            idle[rank] += found.span - work
    return Bubble(
        sum(s.span for s in steps.values()), sum(s.ideal for s in steps.values()),
        trace.about, steps, busy, idle,
    )  # fmt: skip
