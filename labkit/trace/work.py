"""How long a rank's own work takes: three sources, one of which the picture has to name.

cpu     CPU time as it was recorded, of calls and waits too: what the rank would have taken alone
flops   FLOPs as they were counted, at a share of the device's peak. What counts none takes no time,
        or a stated multiple of its CPU time: how many bytes it moved in memory was not recorded
set     what spans say: ``span("forward", seconds=0.02)``. A row takes part in the innermost span
        around it that says `seconds`; these are spread over the span's rows by their FLOPs, or by
        their CPU time where none of them counts any; of a paced run, as the pace spread them. Rows
        outside such spans take their FLOPs, as above

A paced run (`runtime.pace`) sleeps by the rule of "set", so that "set" retells it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS
from labkit.trace.graph import Graph
from labkit.trace.hardware import Device

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SOURCES", "durations"]

SOURCES = ("flops", "cpu", "set")

_COMPUTE, _SPAN = KINDS.index("compute"), KINDS.index("span")


def durations(
    graph: Graph,
    compute: str,
    device: Device,
    efficiency: float | None = None,
    dtype: str | None = None,
    without_flops: float = 0.0,
) -> tuple[NDArray[np.float64], str]:
    """Seconds of each row of ``graph.main``, and in words where they come from.

    Raises
    ------
    ValueError : `compute` is none of the three, a rate that the device does not have, a span whose
        `seconds` are no time or have no row to go to, "set" where no span says any and nothing
        counted FLOPs
    """
    if compute not in SOURCES:
        raise ValueError(f"compute={compute!r}: use one of {', '.join(SOURCES)}")
    if compute == "cpu":
        return _own(graph, "cpu"), "compute: CPU time as recorded"
    if efficiency is not None and not 0 < efficiency <= 1:
        raise ValueError(f"efficiency={efficiency}: give a share above 0, at most 1")
    if not 0 <= without_flops < math.inf:
        raise ValueError(f"without_flops={without_flops}: give a factor, 0 or more")
    if compute == "set":
        return _set(graph, device, efficiency, dtype)
    dtype = dtype or device.dtype()
    rate = device.flops(dtype, efficiency)
    share = device.efficiency(dtype) if efficiency is None else efficiency
    flops = _own(graph, "flops")
    seconds = flops / rate
    words = f"compute: FLOPs at {share:.0%} of the {dtype} peak, and what counts none takes "
    if without_flops:
        plain = (flops == 0) & (graph.trace.columns["kind"][graph.main] == _COMPUTE)
        seconds = np.where(plain, without_flops * _own(graph, "cpu"), seconds)
        return seconds, f"{words}{without_flops:g} × its CPU time"
    return seconds, f"{words}no time (which bytes it moved in memory was not recorded)"


def _own(graph: Graph, what: str) -> NDArray[np.float64]:
    """What each row added to a running count; of a row that holds others, only the rest."""
    c = graph.trace.columns
    start, end = c[f"{what}_start"][graph.main], c[f"{what}_end"][graph.main]
    own = np.zeros(len(graph.main))
    for a, b in pairwise(graph.edges):
        seen = np.maximum.accumulate(end[a:b])
        before = np.concatenate([start[a : a + 1], seen[:-1]])
        own[a:b] = np.maximum(end[a:b] - np.maximum(start[a:b], before), 0)
    return own


def _set(
    graph: Graph, device: Device, efficiency: float | None, dtype: str | None
) -> tuple[NDArray[np.float64], str]:
    trace, main = graph.trace, graph.main
    c = trace.columns
    paced = trace.about.clock == "paced"
    owner = _owners(graph)
    flops, cpu = _own(graph, "flops"), _own(graph, "cpu")
    rows_of: dict[int, list[int]] = {}
    for place, span in enumerate(owner):
        if span >= 0:
            rows_of.setdefault(span, []).append(place)
    saying = _saying(graph)
    outside = np.where(np.array(owner) < 0, flops, 0.0)
    words = "compute: as the spans say"
    if not saying and not outside.any() and not paced:
        raise ValueError(
            "compute='set': no span of this trace says how long it lasts, and nothing counted "
            "FLOPs; write span('forward', seconds=0.02), or use 'cpu'"
        )
    seconds = np.zeros(len(main))
    if outside.any():
        seconds = outside / device.flops(dtype, efficiency)
        words += f", elsewhere FLOPs at the rate of {device.name}"
    # How a paced run spread a span's seconds shows in how long its rows were.
    lasted = c["end"][main] - c["start"][main] if paced else np.zeros(len(main))
    for span in saying:
        value = trace.tags[trace.columns["tags"][span]]["seconds"]
        told = f"span {trace.strings[trace.columns['name'][span]]!r} of rank " + str(
            trace.columns["rank"][span]
        )
        if isinstance(value, bool | str) or value is None or not 0 <= value < math.inf:
            raise ValueError(f"{told}: seconds={value!r}: give seconds, 0 or more")
        if span not in rows_of:
            raise ValueError(f"{told}: seconds={value!r}, and no compute of its own to take them")
        rows = np.array(rows_of[span])
        sources = (lasted[rows], flops[rows], cpu[rows])
        weights = next((w for w in sources if w.any()), np.ones(len(rows)))
        seconds[rows] = value * (weights / weights.sum())
    return seconds, words


def _saying(graph: Graph) -> list[int]:
    """Rows of the main threads' spans that say `seconds`."""
    c = graph.trace.columns
    says = np.array([*("seconds" in tags for tags in graph.trace.tags), False])
    mask: NDArray[Any] = (c["kind"] == _SPAN) & (c["thread"] == 0) & says[c["tags"]]
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


def _owners(graph: Graph) -> list[int]:
    """The row of the innermost span around each compute row that says `seconds`, or -1."""
    c = graph.trace.columns
    owner = [-1] * len(graph.main)
    saying = _saying(graph)
    if not saying:
        return owner
    place = np.full(len(graph.trace), -1)
    place[graph.main] = np.arange(len(graph.main))
    rows = np.concatenate([graph.main, np.array(saying, int)])
    rows.sort()
    start, rank, kind = c["start"].tolist(), c["rank"].tolist(), c["kind"].tolist()
    places = place.tolist()
    around: list[int] = []
    # Backwards: a span's row stands where it ended, behind the rows that it holds.
    for row in reversed(rows.tolist()):
        while around and (rank[around[-1]] != rank[row] or start[row] < start[around[-1]]):
            around.pop()
        if kind[row] == _SPAN:
            around.append(row)
        elif kind[row] == _COMPUTE and around:
            owner[places[row]] = around[-1]
    return owner
