"""A trace on a cluster whose links can be changed: what a timeline's sliders move.

The graph is compiled once (`Trace.retime`); each change only evaluates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit.trace.events import KINDS, OPERATIONS
from labkit.trace.hardware import Cluster, Link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from labkit.trace.events import Trace

__all__ = ["Figures", "Retiming"]

_PLACES = ("inside a node", "between nodes", "between pods")
Figures = tuple[float, ...]  # one a level in use


@dataclass(frozen=True)
class Retiming:
    """`trace` on `cluster`.

    Parameters
    ----------
    compute : as `Trace.retime` takes it
    how : its further arguments

    Raises
    ------
    TypeError : `cluster` is none
    """

    trace: Trace
    cluster: Cluster
    compute: str = "flops"
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, Cluster):
            raise TypeError(
                f"cluster={self.cluster!r}: give a Cluster, one's own or one of "
                f"labkit.trace.CLUSTERS (CLUSTERS['H100'])"
            )

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Which of the cluster's links the trace's operations pass over."""
        if self.how.get("group_size"):
            return tuple(range(len(self.cluster.links)))
        # A cluster whose links say which they are.
        named = [Link(float(level), 1.0) for level in range(len(self.cluster.links))]
        probe = replace(self.cluster, links=tuple(named))
        c = self.trace.columns
        kind = c["kind"]
        groups = set(c["group"][kind == KINDS.index("collective")].tolist()) - {-1}
        rings = [self.trace.groups[group].ranks for group in groups]
        ends = (kind != KINDS.index("collective")) & (c["peer"] >= 0)
        ends &= (kind == KINDS.index(OPERATIONS[0])) | (kind == KINDS.index(OPERATIONS[1]))
        rings += sorted(set(zip(c["rank"][ends].tolist(), c["peer"][ends].tolist(), strict=True)))
        crossed = (link for ring in rings for link in probe.crossed(ring))
        return tuple(sorted({int(link.latency) for link in crossed}))

    @property
    def latency(self) -> Figures:
        """Seconds of a step, by level in use, as the cluster has them."""
        return tuple(self.cluster.links[level].latency for level in self.levels)

    @property
    def bandwidth(self) -> Figures:
        """Bytes a second, by level in use, as the cluster has them."""
        return tuple(self.cluster.links[level].bandwidth for level in self.levels)

    def on(self, latency: Figures, bandwidth: Figures) -> Trace:
        """The trace on the cluster with these links, on the clock "modelled".

        Raises
        ------
        ValueError : the trace could not have happened, or no such time can be computed
        """
        links = list(self.cluster.links)
        for level, seconds, rate in zip(self.levels, latency, bandwidth, strict=True):
            old = links[level]
            if (seconds, rate) != (old.latency, old.bandwidth):
                # No longer the link that its name and its source speak of.
                links[level] = Link(seconds, rate, source="set by hand", base=old.base)
        cluster = replace(self.cluster, links=tuple(links))
        return self.trace.retime(cluster, self.compute, **self.how)

    def described(self) -> list[dict[str, Any]]:
        """By level in use: where its link lies, its name, its figures."""
        links = [(level, self.cluster.links[level]) for level in self.levels]
        return [
            {
                "place": _PLACES[level] if len(self.cluster.links) > 1 else "between ranks",
                "name": link.name,
                "base": link.base,
                "given": [link.latency, None if math.isinf(link.bandwidth) else link.bandwidth],
            }
            for level, link in links
        ]


def figures(value: object, name: str, levels: int) -> Figures:
    """`value`, a number for all levels or one for each, as one for each; None is no limit.

    Raises
    ------
    ValueError : it is no such thing
    """
    several: Sequence[Any] = value if isinstance(value, list | tuple) else [value] * levels
    if len(several) != levels:
        raise ValueError(f"{name}={value!r}: give one number, or {levels} (a link each)")
    found = []
    for each in several:
        number = math.inf if each is None else each
        if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
            raise ValueError(f"{name}={value!r}: give numbers")
        if name == "latency" and not 0 <= number < math.inf:
            raise ValueError(f"latency={value!r}: give seconds, 0 or more")
        if name == "bandwidth" and not number > 0:
            raise ValueError(f"bandwidth={value!r}: give bytes a second, above 0")
        found.append(float(number))
    return tuple(found)
