"""What is read off a trace: where each rank's time went, and how many bytes moved.

Time. A rank's step is cut into five parts that add up to it: *busy* (its main thread computes),
*skew* (it stands in a call, a wait or a join, and the last rank has not arrived), *transfer* (the
same, after that), *unsplit* (the same, and the trace does not say when the others arrived) and
*idle* (nothing was recorded). Skew, transfer and unsplit together are the *exposed* communication:
what computation did not hide. A collective has arrived when its last rank has issued it, a message
when both ends have, a join when all operations that it waits for have.

The bubble is in `bubble`, bytes are in `traffic`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.arrivals import arrivals
from labkit.trace.bubble import Bubble, bubble, steps_table
from labkit.trace.events import BLOCKING, KINDS, About, Step, Trace
from labkit.trace.memory import PARTS, Held, held
from labkit.trace.tables import Table, html, plain, size, time
from labkit.trace.traffic import Traffic, Wire, traffic, wire

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RankTime", "Summary", "rank_times", "step_times", "summarise"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class RankTime:
    """Where the time of one rank's steps went; the parts add up to `elapsed`. Seconds."""

    rank: int
    elapsed: float
    busy: float
    skew: float
    transfer: float
    unsplit: float
    idle: float

    @property
    def exposed(self) -> float:
        return self.skew + self.transfer + self.unsplit


@dataclass(frozen=True, repr=False)
class Summary:
    """All measures of a trace, shown as tables.

    `steps` are pairs (number, time from the first rank's start to the last rank's end); `wire` is
    None when it was not recorded; `memory` is empty where no rank left memory marks.
    """

    about: About
    steps: tuple[tuple[int, float], ...]
    times: tuple[RankTime, ...]
    bubble: Bubble
    traffic: tuple[Traffic, ...]
    wire: tuple[Wire, ...] | None
    memory: tuple[Held, ...] = ()

    def __repr__(self) -> str:
        # Only what is the same in every run, so that a stored output can be compared.
        calls: dict[str, int] = defaultdict(int)
        for row in self.traffic:
            calls[row.operation] += row.calls
        parts = [f"ranks={self.about.ranks}", self.about.clock, f"steps={len(self.steps)}"]
        parts += [f"{name}={count}" for name, count in sorted(calls.items())]
        return f"Summary({', '.join(parts)})"

    def __str__(self) -> str:
        return "\n\n".join(plain(table) for table in self._tables())

    def _repr_html_(self) -> str:
        return "\n".join(html(table) for table in self._tables())

    def _tables(self) -> list[Table]:
        unit = self.about.unit
        steps = Table(
            f"Step time, {self.about.clock}",
            ("step", "time"),
            [(str(index), time(seconds, unit)) for index, seconds in self.steps],
        )
        names = ["elapsed", "busy", "skew", "transfer", "unsplit", "idle"]
        if not any(row.unsplit for row in self.times):
            names.remove("unsplit")
        missing = self.about.ranks - len(self.times)
        times = Table(
            "Time by rank" + (f" ({missing} left no record)" if missing else ""),
            ("rank", *names),
            [
                (str(row.rank), *(time(getattr(row, name), unit) for name in names))
                for row in self.times
            ],
        )
        moved = Table(
            "Bytes by operation and rank",
            ("operation", "rank", "calls", "payload", "closed form"),
            [
                (
                    row.operation, str(row.rank), str(row.calls), size(row.payload),
                    "unknown" if row.closed_form is None else size(row.closed_form),
                )
                for row in self.traffic
            ],
            labels=2,
        )  # fmt: skip
        counted = Table(
            "On the wire, all operations" + ("" if self.wire is not None else ": not recorded"),
            ("rank", "sent", "received"),
            [(str(w.rank), size(w.sent), size(w.received)) for w in self.wire or ()],
        )
        tables = [steps, times, steps_table(self.bubble), moved, counted]
        peaks = Table(
            "Memory at each rank's peak",
            ("rank", *PARTS, "total"),
            [
                (str(row.rank), *(size(part) for part in (*row.parts.values(), row.total)))
                for row in self.memory
            ],
        )
        return tables + ([peaks] if self.memory else [])


def summarise(trace: Trace, step: int | None = None) -> Summary:
    """All measures of `trace`, or of one step of it.

    Without `step`, times are of the steps, and bytes are of the whole trace: what ranks sent before
    the first step is in there.

    Raises
    ------
    KeyError : there is no such step
    """
    part = trace if step is None else trace.step(step)
    steps = [s for s in trace.steps if step is None or s.index == step]
    return Summary(
        trace.about,
        tuple((s.index, s.duration) for s in steps),
        rank_times(trace, steps),
        bubble(trace, step),
        traffic(part),
        wire(trace, None if step is None else steps[0]),
        held(trace, step),
    )


def rank_times(trace: Trace, steps: Sequence[Step] | None = None) -> tuple[RankTime, ...]:
    """Where the time of `steps` went, by rank; without `steps`, of all the trace's.

    `elapsed` is the sum of the rank's own steps, from its start of each to its end. A rank without
    rows is left out.
    """
    sums = {rank: np.zeros(6) for rank in sorted(set(trace.columns["rank"].tolist()))}
    for times in step_times(trace, trace.steps if steps is None else steps):
        for t in times:
            sums[t.rank] += (t.elapsed, t.busy, t.skew, t.transfer, t.unsplit, t.idle)
    return tuple(RankTime(rank, *parts.tolist()) for rank, parts in sums.items())


def step_times(trace: Trace, steps: Sequence[Step]) -> tuple[tuple[RankTime, ...], ...]:
    """Of each of `steps`, where the time of the ranks that ran it went."""
    c = trace.columns
    arrived = arrivals(trace)
    kinds = c["kind"]
    main = c["thread"] == 0
    computing = main & (kinds == KINDS.index("compute"))
    standing = main & np.isin(kinds, [KINDS.index(kind) for kind in BLOCKING])
    layers: dict[int, list[NDArray[Any]]] = {}
    edges = [0, *(np.flatnonzero(np.diff(c["rank"])) + 1).tolist(), len(trace)]
    for first, beyond in zip(edges, edges[1:] if len(trace) else [], strict=False):
        rows = first + np.flatnonzero(computing[first:beyond])
        busy = np.stack([c["start"][rows], c["end"][rows]])
        rows = first + np.flatnonzero(standing[first:beyond])
        start, end, last = c["start"][rows], c["end"][rows], arrived[rows]
        known = ~np.isnan(last)
        split = np.clip(np.where(known, last, start), start, end)
        skew = np.stack([start, split])[:, known]
        transfer = np.stack([split, end])[:, known]
        unsplit = np.stack([start, end])[:, ~known]
        layers[int(c["rank"][first])] = [busy, skew, transfer, unsplit]
    return tuple(
        tuple(
            _split(rank, layers[rank], window)
            for rank, window in sorted(step.spans.items())
            if rank in layers
        )
        for step in steps
    )


def _split(rank: int, layers: Sequence[NDArray[Any]], window: Interval) -> RankTime:
    # Each part is what it covers beyond the parts before it: no moment counts twice.
    elapsed = window[1] - window[0]
    covered = [_length(layers[: i + 1], window) for i in range(4)]
    # Rounding may leave a hair less than nothing.
    parts = np.maximum(np.diff([0.0, *covered, elapsed]), 0.0)
    return RankTime(rank, elapsed, *parts.tolist())


def _length(layers: Sequence[NDArray[Any]], window: Interval) -> float:
    """The length of the union of intervals, inside `window`."""
    start, end = np.clip(np.concatenate(layers, axis=1), *window)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.maximum.accumulate(np.concatenate([[window[0]], end[:-1]])) if len(end) else end
    return float(np.maximum(end - np.maximum(start, before), 0.0).sum())
