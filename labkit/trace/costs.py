"""What the operations of a graph cost on a cluster, before anybody waits for anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from labkit.trace.events import Group
from labkit.trace.graph import Graph
from labkit.trace.hardware import Cluster, Link

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Costs", "costs_of"]


@dataclass(frozen=True, eq=False)
class Costs:
    """Arrays, of each message or of each collective of a graph.

    Parameters
    ----------
    occupied, latency : of messages: seconds on their link, and how much later they arrive
    lasts : of collectives: seconds, from when the last rank is there
    message_cpu, collective_cpu : share of that time which takes the ranks' processors
    """

    occupied: NDArray[np.float64]
    latency: NDArray[np.float64]
    lasts: NDArray[np.float64]
    message_cpu: NDArray[np.float64]
    collective_cpu: NDArray[np.float64]

    def times(self, messages: NDArray[np.float64], collectives: NDArray[np.float64]) -> Costs:
        """The same with each message and each collective so many times as long."""
        return replace(
            self, occupied=self.occupied * messages, latency=self.latency * messages,
            lasts=self.lasts * collectives,
        )  # fmt: skip


def costs_of(graph: Graph, cluster: Cluster, group_size: Mapping[str, int]) -> Costs:
    """What the messages and the collectives of `graph` cost on `cluster`.

    Raises
    ------
    ValueError : no group is called so, or a group would have no rank
    """
    c, ranks = graph.trace.columns, graph.trace.about.ranks
    sizes = _sizes(graph.trace.groups, group_size)
    sent = graph.ops[graph.sends]
    ends = c["rank"][sent].astype(np.int64) * ranks + c["peer"][sent]
    pairs, which = np.unique(ends, return_inverse=True)
    ways = [divmod(pair, ranks) for pair in pairs.tolist()]
    found = _as_shared(cluster, [((a,), (b,)) for a, b in ways])
    links = [on.link(a, b) for on, (a, b) in zip(found, ways, strict=True)] or [Link(0, 1)]
    figures = np.array([(k.bandwidth, k.base + k.latency, k.cpu) for k in links]).T
    bandwidth, latency, cpu = figures[:, which if len(sent) else np.zeros(0, int)]

    lasts, held = np.zeros(len(graph.collectives)), np.zeros(len(graph.collectives))
    rows, first = graph.entries
    if len(first):
        # The ring is as slow as its largest piece.
        payload = np.maximum.reduceat(c["bytes"][rows], first).astype(float)
        names, groups = c["name"][rows[first]], c["group"][rows[first]]
        kinds = np.stack([names, groups])
        used = np.unique(groups).tolist()
        members_of = [graph.trace.groups[group].ranks for group in used]
        seen = dict(zip(used, _as_shared(cluster, [(m, m) for m in members_of]), strict=True))
        for name, group in np.unique(kinds, axis=1).T.tolist():
            those = (names == name) & (groups == group)
            operation, members = graph.trace.strings[name], graph.trace.groups[group].ranks
            spread = _spread(members, sizes[group])
            lasts[those] = seen[group].collective(operation, payload[those], spread, len(members))
            held[those] = max((k.cpu for k in cluster.carrying(operation, spread)), default=0.0)
    return Costs(c["bytes"][sent] / bandwidth, latency, lasts, cpu, held)


def _as_shared(
    cluster: Cluster, flows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> list[Cluster]:
    """The cluster as each of some flows, from ranks to ranks, finds it."""
    if not cluster.shared:
        return [cluster] * len(flows)
    crossed = [cluster.left(*flow) for flow in flows]
    load = Counter(place for places in crossed for place in places)
    return [
        cluster.divided([
            max((load[place] for place in places if place[0] == link), default=1)
            for link in range(len(cluster.links))
        ])
        for places in crossed
    ]  # fmt: skip


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
