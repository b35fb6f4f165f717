"""Some work or some operations of a trace, picked by name, rank, step and tags; and their factors.

What a `Pick` names may be a span (all the work inside it), an operation ("all_reduce", "message":
how long it lasts or is under way) or nothing (all work of a rank, a step, a tag).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS, Trace
from labkit.trace.graph import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Factors", "Pick", "factors", "names"]

_COMPUTE = KINDS.index("compute")
_MESSAGES = ("message", "send", "recv")


@dataclass(frozen=True, init=False)
class Pick:
    """Some work or some operations of a trace: those for which all that is said here holds.

    Parameters
    ----------
    name : of a span or of compute ("backward"), of a collective ("all_reduce"), or "message"
    rank : work of this rank; messages that it sends ("recv": receives); collectives of its groups
    step : what began in this step
    tags : of a span, as in ``Pick("forward", microbatch=3)``
    """

    name: str | None
    rank: int | None
    step: int | None
    tags: tuple[tuple[str, Any], ...]

    def __init__(
        self, name: str | None = None, rank: int | None = None, step: int | None = None, **tags: Any
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name={name!r}: give the name of a span or of an operation")
        values = {"name": name, "rank": rank, "step": step, "tags": tuple(sorted(tags.items()))}
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __str__(self) -> str:
        text = self.name or "all work"
        text += "".join(f" {key}={value}" for key, value in self.tags)
        text += "" if self.rank is None else f" of rank {self.rank}"
        return text + ("" if self.step is None else f" in step {self.step}")


@dataclass(frozen=True, eq=False)
class Factors:
    """How many times as long each row of `Graph.main`, message and collective takes."""

    work: NDArray[np.float64]
    messages: NDArray[np.float64]
    collectives: NDArray[np.float64]
    words: tuple[str, ...]


def factors(graph: Graph, scale: Mapping[Pick | str, float]) -> Factors:
    """Factors of all rows and operations; where several picks meet, they multiply.

    Raises
    ------
    ValueError : a factor is no finite number from 0 up; a pick that nothing fits
    """
    work, messages = np.ones(len(graph.main)), np.ones(len(graph.sends))
    collectives = np.ones(len(graph.collectives))
    words: list[str] = []
    for key, factor in scale.items():
        pick = Pick(key) if isinstance(key, str) else key
        if not isinstance(pick, Pick):
            raise TypeError(f"{key!r}: give a Pick or the name of a span or an operation")
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 <= factor < math.inf:
            raise ValueError(f"{pick}: factor {factor!r}: give a number, 0 or more (0.5: half)")
        masks = (_work(graph, pick), _messages(graph, pick), _collectives(graph, pick))
        if not any(mask.any() for mask in masks):
            raise ValueError(
                f"nothing in this trace is {pick}; there are {', '.join(names(graph))}"
            )
        for array, mask in zip((work, messages, collectives), masks, strict=True):
            array[mask] *= float(factor)
        words.append(f"{pick} takes {float(factor):g} × as long")
    return Factors(work, messages, collectives, tuple(words))


def names(graph: Graph) -> list[str]:
    """What can be picked by name: spans and compute, collectives, messages."""
    trace = graph.trace
    c, strings = trace.columns, trace.strings
    own = graph.main[c["kind"][graph.main] == _COMPUTE]
    rows = np.concatenate([own, graph.spans, graph.entries[0]])
    used = np.unique(c["name"][rows]).tolist()
    found = sorted({strings[i] for i in used if i >= 0} - {"step"})
    return found + (["message"] if len(graph.sends) else [])


def _work(graph: Graph, pick: Pick) -> NDArray[np.bool_]:
    """The rows of `main` whose work is meant."""
    c, n = graph.trace.columns, len(graph.main)
    if pick.name is None and not pick.tags:
        mask = np.ones(n, bool)
    else:
        inside = _inside(graph, _fits(graph.trace, graph.spans, pick))
        own = _fits(graph.trace, graph.main, pick) & (c["kind"][graph.main] == _COMPUTE)
        mask = inside | own
    if pick.rank is not None:
        mask &= c["rank"][graph.main] == pick.rank
    return mask & _in_step(graph, pick.step)


def _fits(trace: Trace, rows: NDArray[np.int64], pick: Pick) -> NDArray[np.bool_]:
    """Which rows bear the name and the tags of a pick."""
    c = trace.columns
    names = np.array([pick.name in (None, text) for text in (*trace.strings, None)])
    wanted = dict(pick.tags)
    tags = [all(k in t and t[k] == v for k, v in wanted.items()) for t in trace.tags]
    fits: NDArray[np.bool_] = (
        names[c["name"][rows]] & np.array([*tags, not wanted])[c["tags"][rows]]
    )
    return fits


def _inside(graph: Graph, spans: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rows of `main` inside any of some spans."""
    depth = np.zeros(len(graph.main) + 1, int)
    kept = spans & (graph.span_from <= graph.span_to)
    np.add.at(depth, graph.span_from[kept], 1)
    np.add.at(depth, graph.span_to[kept] + 1, -1)
    return np.cumsum(depth)[:-1] > 0


def _in_step(graph: Graph, step: int | None) -> NDArray[np.bool_]:
    if step is None:
        return np.ones(len(graph.main), bool)
    c, main = graph.trace.columns, graph.main
    inside = np.zeros(len(main), bool)
    for rank, (start, end) in graph.trace.find_step(step).spans.items():
        begun = (c["start"][main] >= start) & ((c["start"][main] < end) | (c["end"][main] <= end))
        inside |= begun & (c["rank"][main] == rank)
    return inside


def _messages(graph: Graph, pick: Pick) -> NDArray[np.bool_]:
    mask = np.zeros(len(graph.sends), bool)
    if pick.name in _MESSAGES and not pick.tags and len(mask):
        mask[:] = True
        rank = graph.trace.columns["peer" if pick.name == "recv" else "rank"]
        if pick.rank is not None:
            mask &= rank[graph.ops[graph.sends]] == pick.rank
        mask &= _in_step(graph, pick.step)[graph.at[graph.sends]]
    return mask


def _collectives(graph: Graph, pick: Pick) -> NDArray[np.bool_]:
    trace, (rows, first) = graph.trace, graph.entries
    if pick.tags or pick.name not in trace.strings or not len(first):
        return np.zeros(len(first), bool)
    names, groups = trace.columns["name"][rows[first]], trace.columns["group"][rows[first]]
    mask: NDArray[np.bool_] = names == trace.strings.index(pick.name)
    if pick.rank is not None:
        mask &= np.array([pick.rank in group.ranks for group in trace.groups])[groups]
    begun = _in_step(graph, pick.step)[graph.at[[members[0] for members in graph.collectives]]]
    return mask & begun
