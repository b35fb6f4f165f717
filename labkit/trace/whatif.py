"""What if this took half as long: a trace retimed with some of its work or messages scaled.

`Pick` says which. The graph is compiled once; a question costs one evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.trace.events import About, Trace
from labkit.trace.hardware import Cluster
from labkit.trace.pick import Pick, factors, names
from labkit.trace.tables import Table, brief, html, plain, time

__all__ = ["Sensitivity", "WhatIf", "sensitivity", "what_if"]


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
