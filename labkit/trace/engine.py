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
* Where a link takes the processor (`Link.cpu`), that share of a transfer is work of the ranks at
  its ends, when they post it; the rest can be hidden.
* Links are not shared between groups, unless the cluster says so (`Cluster.shared`): then each
  has an equal part all the time, messages and collectives apart. Who meets whom in time would have
  to be decided by a clock, and a pass in topological order has none.

Cost: about 0.3 µs a row, after the graph was compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from labkit.trace.costs import Costs, costs_of
from labkit.trace.events import Trace
from labkit.trace.graph import Code, Graph
from labkit.trace.hardware import Cluster
from labkit.trace.pick import Factors, Pick, factors
from labkit.trace.work import durations

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Times", "evaluate", "retime"]

_MESSAGE, _COLLECTIVE, _HOLD = int(Code.MESSAGE), int(Code.COLLECTIVE), int(Code.HOLD)


@dataclass(frozen=True, eq=False)
class Times:
    """When each row of a trace starts, ends and is done. Seconds; `done` is NaN where none is.

    `left` is of each message of the graph: when it got its link, or was posted if that was free.
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
    shared = "each link out of a node is shared by all groups that leave it, in equal parts"
    notes = [f"on {cluster}", words]
    notes += [shared if cluster.shared else "links are not shared between groups"]
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
    costs = costs_of(graph, cluster, group_size or {})
    if scaled is not None:
        costs = costs.times(scaled.messages, scaled.collectives)
    at, held = graph.at, _held(graph, costs)
    if held is not None:
        work = work + np.bincount(at, held, len(work))
        costs = costs.times(1 - costs.message_cpu, 1 - costs.collective_cpu)
    begin, end = _offsets(graph, work)
    entered = begin[at] + graph.share * work[at] if len(at) else np.zeros(0)
    post = entered if held is None else np.minimum(entered + held, end[at])
    base, arrived, left = _follow(graph, begin, work, post, costs)
    return _times(graph, base, arrived, left, begin, end, entered, post)


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


def _held(graph: Graph, costs: Costs) -> NDArray[np.float64] | None:
    """How long each operation takes its rank's processor when it is posted; None: none does."""
    if not costs.message_cpu.any() and not costs.collective_cpu.any():
        return None
    held = np.zeros(len(graph.ops))
    under_way = (costs.occupied + costs.latency) * costs.message_cpu
    held[graph.sends] = under_way
    there = graph.receives >= 0
    held[graph.receives[there]] = under_way[there]
    for members, seconds in zip(graph.collectives, costs.lasts * costs.collective_cpu, strict=True):
        held[list(members)] = seconds
    return held


def _follow(
    graph: Graph,
    begin: NDArray[np.float64],
    work: NDArray[np.float64],
    post: NDArray[np.float64],
    costs: Costs,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Run the program: when each segment begins, the time in each slot, when messages leave."""
    posts: list[float] = post.tolist()
    held: list[float] = begin[graph.holds].tolist()
    after: list[float] = work[graph.holds].tolist()
    taken, late = costs.occupied.tolist(), costs.latency.tolist()
    length = costs.lasts.tolist()
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
    entered: NDArray[np.float64],
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

    if len(graph.ops):
        since = base[graph.segment[graph.at]]
        entered, post = since + entered, since + post
        left[:] = np.where(left > post[graph.sends], left, entered[graph.sends])
    start[graph.ops] = entered
    stop[graph.ops] = np.maximum(stop[graph.ops], entered)
    messages = len(graph.sends)
    there = graph.receives >= 0
    sends, receives = graph.sends[there], graph.receives[there]
    done[graph.ops[receives]] = np.maximum(value[:messages][there], post[receives])
    done[graph.ops[sends]] = np.maximum(post[sends], post[receives])
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
