"""What if this took half as long: a trace retimed with some of its work or messages scaled.

A `Pick` says which. What it names may be a span (all the work inside it), an operation
("all_reduce", "message": how long it lasts or is under way) or nothing (all work of a rank, a step,
a tag). The graph is compiled once; a question costs one evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.trace.events import KINDS, About, Trace
from labkit.trace.graph import Graph
from labkit.trace.hardware import Cluster
from labkit.trace.tables import Table, brief, html, plain, time

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Factors", "Pick", "Sensitivity", "WhatIf", "factors", "sensitivity", "what_if"]

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


@dataclass(frozen=True, repr=False)
class WhatIf:
    """A question and its answer.

    Parameters
    ----------
    words : the question
    trace : the trace as it would be, on the clock "modelled"
    steps : of each step by number, its time before and after
    """

    words: tuple[str, ...]
    trace: Trace
    steps: Mapping[int, tuple[float, float]]

    @property
    def before(self) -> float:
        """Time of a step, the mean of all, as the model has it without the change."""
        return sum(before for before, _ in self.steps.values()) / max(len(self.steps), 1)

    @property
    def after(self) -> float:
        """The same with the change."""
        return sum(after for _, after in self.steps.values()) / max(len(self.steps), 1)

    @property
    def sentence(self) -> str:
        unit = self.trace.about.unit
        changed = f"{brief(self.before, unit)} → {brief(self.after, unit)}"
        return f"If {' and '.join(self.words)}: a step {changed} ({_change(self)})."

    def __repr__(self) -> str:
        return f"WhatIf({self.sentence})"

    def __str__(self) -> str:
        return self.sentence


def _change(it: WhatIf) -> str:
    return f"{(it.after / it.before - 1) * 100:+.1f} %" if it.before else "no step takes any time"


def what_if(
    trace: Trace, cluster: Cluster, scale: Mapping[Pick | str, float], compute: str = "flops",
    **options: Any,
) -> WhatIf:  # fmt: skip
    """`trace` retimed twice on `cluster`: as it is, and with `scale`.

    Parameters
    ----------
    scale : how many times as long what is picked takes: {"all_reduce": 0.5}, or
        {Pick("backward", rank=1): 0.5}
    compute, options : as `Trace.retime` takes them

    Raises
    ------
    ValueError : as `factors` and `Trace.retime` say
    """
    if not scale:
        raise ValueError("scale is empty: name what changes, as in {'backward': 0.5}")
    before = trace.retime(cluster, compute, **options)
    after = trace.retime(cluster, compute, scale=scale, **options)
    steps = {
        old.index: (old.duration, new.duration)
        for old, new in zip(before.steps, after.steps, strict=True)
    }
    return WhatIf(factors(trace._graph, scale).words, after, steps)


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """What a step gains by each thing, one at a time.

    Parameters
    ----------
    factor : how many times as long each thing takes, in its turn
    before : time of a step without a change
    after : by what changed, the time of a step then; the largest gain first
    """

    about: About
    factor: float
    before: float
    after: Mapping[str, float]

    def __repr__(self) -> str:
        return f"Sensitivity({len(self.after)} changes, {self.factor:g} ×)"

    def __str__(self) -> str:
        return plain(self._table())

    def _repr_html_(self) -> str:
        return html(self._table())

    def _table(self) -> Table:
        unit = self.about.unit
        gain = {name: self.before - after for name, after in self.after.items()}
        return Table(
            f"Time of a step, modelled, if one thing takes {self.factor:g} × as long",
            ("what", "time", "gain", "share"),
            [
                ("as it is", time(self.before, unit), "", ""),
                *(
                    (
                        name, time(after, unit), time(gain[name], unit),
                        f"{gain[name] / self.before:.1%}" if self.before else "",
                    )
                    for name, after in self.after.items()
                ),
            ],
        )  # fmt: skip


def sensitivity(
    trace: Trace, cluster: Cluster, compute: str = "flops", factor: float = 0.5, **options: Any
) -> Sensitivity:
    """Which single thing, if it took `factor` times as long, would shorten a step most.

    Tried in turn: each name of a span, of compute and of an operation, and the links' latency and
    their bandwidth. `compute` and `options` as `Trace.retime` takes them.

    Raises
    ------
    ValueError : `factor` is not above 0, and what `Trace.retime` raises
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor={factor}: give a number above 0 (0.5: half as long)")

    def mean(on: Cluster, **more: Any) -> float:
        steps = trace.retime(on, compute, **options, **more).steps
        return sum(step.duration for step in steps) / max(len(steps), 1)

    after = {name: mean(cluster, scale={name: factor}) for name in names(trace._graph)}
    after["latency of the links"] = mean(cluster.scaled(latency=factor))
    after["bytes over bandwidth"] = mean(cluster.scaled(bandwidth=1 / factor))
    ordered = dict(sorted(after.items(), key=lambda it: (it[1], it[0])))
    return Sensitivity(trace.about, factor, mean(cluster), ordered)
