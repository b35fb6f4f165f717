"""The same events on other hardware: a trace's graph evaluated on a cluster.

One pass over floats in topological order, and no queue of events, so ties cannot matter: the same
input gives the same bits. Assumptions:

* All ranks begin at 0, and a rank's work follows without a gap.
* A message leaves when it was posted and its ordered pair's link is free, occupies that link for
  bytes/bandwidth, and arrives one latency later: latencies overlap.
* Only waits and joins hold a rank: for a receive until the message has arrived, for a send until
  its receive is posted (a rendezvous), for a collective until its end. What is never waited for
  never holds anybody.
* A collective starts when its last rank has posted it and its group's previous one has ended, and
  lasts as `hardware.ring` says on the slowest link that the ring crosses.
* Links are not shared between groups, nor between messages and collectives.

Cost: about 0.3 µs a row, after the graph was compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from labkit.trace.events import Group, Trace
from labkit.trace.graph import Code, Graph
from labkit.trace.hardware import Cluster
from labkit.trace.whatif import Factors, Pick, factors
from labkit.trace.work import durations

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Times", "evaluate", "retime"]

_MESSAGE, _COLLECTIVE, _HOLD = int(Code.MESSAGE), int(Code.COLLECTIVE), int(Code.HOLD)


@dataclass(frozen=True, eq=False)
class Times:
    """When each row of a trace starts, ends and is done. Seconds; `done` is NaN where none is.

    `left` is of each message of the graph: when it got its link.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    done: NDArray[np.float64]
    left: NDArray[np.float64]

    @property
    def makespan(self) -> float:
        """The end of the last rank's last row."""
        return float(self.end.max(initial=0.0))


def retime(
    graph: Graph,
    cluster: Cluster,
    compute: str = "flops",
    *,
    group_size: Mapping[str, int] | None = None,
    efficiency: float | None = None,
    dtype: str | None = None,
    without_flops: float = 0.0,
    scale: Mapping[Pick | str, float] | None = None,
) -> Trace:
    """The graph's trace on `cluster`; parameters and errors as `Trace.retime` says."""
    if not isinstance(cluster, Cluster):
        raise TypeError(
            f"cluster={cluster!r}: give a Cluster, one's own or one of labkit.trace.CLUSTERS "
            f"(CLUSTERS['H100'])"
        )
    work, words = durations(graph, compute, cluster.device, efficiency, dtype, without_flops)
    scaled = factors(graph, scale) if scale else None
    times = evaluate(graph, work, cluster, group_size, scaled)
    old = graph.trace
    notes = [f"on {cluster}", words, "links are not shared between groups"]
    notes += [f"group {name} counted as {n} ranks" for name, n in (group_size or {}).items()]
    notes += [f"what if {words}" for words in (scaled.words if scaled else ())]
    about = replace(old.about, clock="modelled", error=0.0, cores=0, note="; ".join(notes))
    columns = {**old.columns, "start": times.start, "end": times.end, "done": times.done}
    result = Trace(columns, old.strings, old.groups, old.tags, about)
    result.__dict__["_left"] = times.left  # for the critical path; no column holds it
    return result


def evaluate(
    graph: Graph,
    work: NDArray[np.float64],
    cluster: Cluster,
    group_size: Mapping[str, int] | None = None,
    scaled: Factors | None = None,
) -> Times:
    """When everything happens if the rows of ``graph.main`` take `work` seconds each.

    `scaled` says which rows, messages and collectives take another multiple of their time.

    Raises
    ------
    ValueError : no group is called so, or a group would have no rank
    """
    if scaled is not None:
        work = work * scaled.work
    begin, end = _offsets(graph, work)
    post = begin[graph.at] + graph.share * work[graph.at] if len(graph.ops) else np.zeros(0)
    occupied, latency, lasts = _costs(graph, cluster, group_size or {})
    if scaled is not None:
        occupied, latency = occupied * scaled.messages, latency * scaled.messages
        lasts = lasts * scaled.collectives
    base, arrived, left = _follow(graph, begin, work, post, occupied, latency, lasts)
    return _times(graph, base, arrived, left, begin, end, post)


def _offsets(
    graph: Graph, work: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Begin and end of each row of `main`, from the begin of its segment."""
    before, after = np.zeros(len(work)), np.zeros(len(work))
    for a, b in pairwise(graph.edges):
        after[a:b] = np.cumsum(work[a:b])
        before[a + 1 : b] = after[a : b - 1]
    at_first = before[graph.first]
    return before - at_first, after - at_first


def _costs(
    graph: Graph, cluster: Cluster, group_size: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of messages, how long they occupy their link and how much later they arrive; of collectives,
    how long they last."""
    c = graph.trace.columns
    sizes = _sizes(graph.trace.groups, group_size)
    sent = graph.ops[graph.sends]
    ends = c["rank"][sent].astype(np.int64) * graph.trace.about.ranks + c["peer"][sent]
    pairs, which = np.unique(ends, return_inverse=True)
    links = [cluster.link(*divmod(pair, graph.trace.about.ranks)) for pair in pairs.tolist()]
    bandwidth = np.array([link.bandwidth for link in links])
    late = np.array([link.base + link.latency for link in links])
    occupied = c["bytes"][sent] / bandwidth[which] if len(sent) else np.zeros(0)
    latency = late[which] if len(sent) else np.zeros(0)

    lasts = np.zeros(len(graph.collectives))
    rows, first = graph.entries
    if len(first):
        # The ring is as slow as its largest piece.
        payload = np.maximum.reduceat(c["bytes"][rows], first).astype(float)
        names, groups = c["name"][rows[first]], c["group"][rows[first]]
        kinds = np.stack([names, groups])
        for name, group in np.unique(kinds, axis=1).T.tolist():
            those = (names == name) & (groups == group)
            operation, ranks = graph.trace.strings[name], graph.trace.groups[group].ranks
            spread = _spread(ranks, sizes[group])
            lasts[those] = cluster.collective(operation, payload[those], spread, len(ranks))
    return occupied, latency, lasts


def _sizes(groups: Sequence[Group], group_size: Mapping[str, int]) -> list[int]:
    known = {group.description or group.name for group in groups}
    for name, size in group_size.items():
        if name not in known:
            raise ValueError(
                f"group_size: no group is called {name!r} ({', '.join(sorted(known)) or 'none'})"
            )
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(f"group_size={{{name!r}: {size}}}: give a whole number, 1 or more")
    return [group_size.get(g.description or g.name, len(g.ranks)) for g in groups]


def _spread(ranks: tuple[int, ...], size: int) -> Sequence[int] | range:
    """Where a group of `size` ranks would lie, as far apart as the ranks it stands for."""
    if size == len(ranks):
        return ranks
    gaps = [abs(b - a) for a, b in pairwise(ranks)]
    gap = min(gaps, default=1)
    return range(ranks[0], ranks[0] + gap * size, gap)


def _follow(
    graph: Graph,
    begin: NDArray[np.float64],
    work: NDArray[np.float64],
    post: NDArray[np.float64],
    occupied: NDArray[np.float64],
    latency: NDArray[np.float64],
    lasts: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Run the program: when each segment begins, the time in each slot, when messages leave."""
    posts: list[float] = post.tolist()
    held: list[float] = begin[graph.holds].tolist()
    after: list[float] = work[graph.holds].tolist()
    taken, late, length = occupied.tolist(), latency.tolist(), lasts.tolist()
    messages = len(taken)
    base = [0.0] * graph.segments
    value = [0.0] * (graph.slots + 1)  # the last one: what comes before the first
    free = [0.0] * (messages + 1)
    left = [0.0] * messages
    for code, slot, segment, which, last in graph.program:
        if code == _HOLD:
            t = base[segment] + held[slot]
            for i in which:
                if value[i] > t:
                    t = value[i]
            base[segment + 1] = t + after[slot]
        elif code == _COLLECTIVE:
            t = value[last]
            for s, op in which:
                at = base[s] + posts[op]
                if at > t:
                    t = at
            value[slot] = t + length[slot - messages]
        elif code == _MESSAGE:
            t = base[segment] + posts[which]
            if free[last] > t:
                t = free[last]
            left[slot] = t
            t += taken[slot]
            free[slot] = t
            value[slot] = t + late[slot]
        else:
            value[slot] = base[segment] + posts[which]
    return np.array(base), np.array(value[:-1]), np.array(left)


def _times(
    graph: Graph,
    base: NDArray[np.float64],
    value: NDArray[np.float64],
    left: NDArray[np.float64],
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    post: NDArray[np.float64],
) -> Times:
    """The times of all rows, from those of segments and slots."""
    n = len(graph.trace)
    times = Times(np.zeros(n), np.zeros(n), np.full(n, np.nan), left)
    start, stop, done = times.start, times.end, times.done
    if not len(graph.main):
        return times
    at = base[graph.segment]
    begin, end = at + begin, at + end
    end[graph.holds] = base[graph.segment[graph.holds] + 1]
    start[graph.main], stop[graph.main] = begin, end

    posted = base[graph.segment[graph.at]] + post if len(graph.ops) else post
    start[graph.ops] = posted
    stop[graph.ops] = np.maximum(stop[graph.ops], posted)
    messages = len(graph.sends)
    there = graph.receives >= 0
    sends, receives = graph.sends[there], graph.receives[there]
    done[graph.ops[receives]] = np.maximum(value[:messages][there], posted[receives])
    done[graph.ops[sends]] = np.maximum(posted[sends], posted[receives])
    rows, first = graph.entries
    if len(first):
        many = np.diff([*first.tolist(), len(rows)])
        done[rows] = np.repeat(value[messages : messages + len(first)], many)
    _place_the_rest(graph, times, begin, end)
    return times


def _place_the_rest(
    graph: Graph, times: Times, begin: NDArray[np.float64], end: NDArray[np.float64]
) -> None:
    """Spans around their rows; marks and other threads where the main thread was."""
    c = graph.trace.columns
    start, stop = times.start, times.end
    # An empty span stands where it ended.
    stop[graph.spans] = end[graph.span_to]
    inside = graph.span_from <= graph.span_to
    start[graph.spans] = stop[graph.spans]
    start[graph.spans[inside]] = begin[graph.span_from[inside]]
    for a, b, rows in graph.passive:
        old = np.stack([c["start"][graph.main[a:b]], c["end"][graph.main[a:b]]], axis=1).ravel()
        new = np.stack([begin[a:b], end[a:b]], axis=1).ravel()
        old = np.maximum.accumulate(old)
        start[rows] = np.interp(c["start"][rows], old, new)
        stop[rows] = np.maximum(np.interp(c["end"][rows], old, new), start[rows])
