"""What happened, as data: the one event model that recordings, schedules and models share.

A `Trace` holds one table with a row an event, grouped by rank and, inside a rank, in the order in
which the rank met them. Times are seconds as float64 from the trace's own zero (the first stamp of
any rank), so a recording keeps nanoseconds and a schedule may use whatever unit it likes. Rows are
stored as columns (one NumPy array a field); `Trace.events` makes frozen views on demand.

Kinds
-----
compute     what a rank's main thread did between two other events; named by the innermost span
span        a named stretch of the program, may hold others (``step`` marks a training step)
send, recv  a message; ``start`` to ``end`` is the call, ``done`` when it was complete
collective  an operation of a group, named all_reduce, broadcast …; ``done`` as above
wait        the rank stands still for operation ``op``
join        the rank stands still at the end of a backward, for what C++ waits for (torch's DDP)
memory      a memory mark: ``bytes`` held for ``name`` at ``start``
wire        the kernel's counter for ``name`` (sent or received), in ``bytes``, at ``start``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

    from labkit.trace.graph import Graph
    from labkit.trace.hardware import Cluster
    from labkit.trace.memory import Held
    from labkit.trace.pick import Pick

KINDS = ("compute", "span", "send", "recv", "collective", "wait", "join", "memory", "wire")
OPERATIONS = ("send", "recv", "collective")
BLOCKING = ("send", "recv", "collective", "wait", "join")
CLOCKS = ("measured", "paced", "modelled")

# Every column with its type. -1 stands for "none" in integer columns, NaN in `done`.
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "rank": "i4",
        "kind": "i1",  # index into KINDS
        "name": "i4",  # index into Trace.strings
        "start": "f8",  # seconds
        "end": "f8",
        "done": "f8",  # completion of an operation, NaN if it was never seen
        "cpu_start": "f8",  # CPU seconds of the rank's thread
        "cpu_end": "f8",
        "flops_start": "i8",  # floating-point operations counted so far
        "flops_end": "i8",
        "thread": "i2",  # 0: the rank's main thread
        "op": "i4",  # number of the operation within its rank; of a wait, the one waited for
        "group": "i4",  # index into Trace.groups
        "seq": "i4",  # collectives: number in the group; messages: in (group, from, to, tag)
        "peer": "i4",  # global rank at the other end of a message, root of a rooted collective
        "tag": "i4",
        "bytes": "i8",  # payload: size of this rank's input (of the output, where it only receives)
        "count": "i8",  # elements of the payload
        "dtype": "i4",  # index into Trace.strings
        "reduction": "i4",  # index into Trace.strings
        "where": "i4",  # "file:line", index into Trace.strings
        "tags": "i4",  # index into Trace.tags
    }
)


@dataclass(frozen=True)
class Group:
    """A process group: its name in torch, its description, its global ranks."""

    name: str
    description: str = field(compare=False)  # ranks may describe a group in words of their own
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class About:
    """What has to be said beside every picture of a trace.

    Parameters
    ----------
    ranks : number of ranks
    clock : "measured", "paced" or "modelled"
    error : seconds by which stamps of two ranks may be off
    cores : cores that the ranks shared (0: does not apply)
    backend : "gloo", "nccl", … or "" for a schedule
    unit : "s", or what else the times mean
    """

    ranks: int
    clock: str = "measured"
    error: float = 0.0
    cores: int = 0
    backend: str = ""
    unit: str = "s"
    note: str = ""

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ValueError(f"clock={self.clock!r}: use one of {', '.join(CLOCKS)}")
        if self.ranks < 1:
            raise ValueError(f"ranks={self.ranks}: a trace has at least one rank")


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a trace. Times in seconds, sizes in bytes; None where a field does not apply."""

    rank: int
    kind: str
    name: str
    start: float
    end: float
    done: float | None
    cpu_start: float
    cpu_end: float
    flops_start: int
    flops_end: int
    thread: int
    op: int | None
    group: Group | None
    seq: int | None
    peer: int | None
    tag: int | None
    bytes: int
    count: int
    dtype: str | None
    reduction: str | None
    where: str | None
    tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration(self) -> float:
        return self.end - self.start

    @property
    def cpu(self) -> float:
        return self.cpu_end - self.cpu_start

    @property
    def flops(self) -> int:
        return self.flops_end - self.flops_start


@dataclass(frozen=True, slots=True)
class Step:
    """One training step: its number, and (start, end) in seconds of every rank that ran it."""

    index: int
    spans: Mapping[int, tuple[float, float]]

    @property
    def start(self) -> float:
        return min(a for a, _ in self.spans.values())

    @property
    def end(self) -> float:
        return max(b for _, b in self.spans.values())

    @property
    def duration(self) -> float:
        return self.end - self.start


class Trace:
    """What all ranks of a run did.

    Parameters
    ----------
    columns : one array a name of `COLUMNS`, all of one length; the rows of a rank stand together,
        in the order in which it met them (a span where it ended)
    strings, groups, tags : the tables that the columns index
    about : number of ranks, clock, error

    Raises
    ------
    ValueError : a column is missing, unknown, of another length, holds what its type cannot, or
        points outside its table; the rows of a rank do not stand together
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        strings: Sequence[str],
        groups: Sequence[Group],
        tags: Sequence[Mapping[str, Any]],
        about: About,
    ) -> None:
        _check(columns, strings, groups, tags, about)
        self.columns: Mapping[str, NDArray[Any]] = MappingProxyType(
            {name: _frozen(columns[name], kind) for name, kind in COLUMNS.items()}
        )
        self.strings = tuple(strings)
        self.groups = tuple(groups)
        self.tags = tuple(MappingProxyType(dict(t)) for t in tags)
        self.about = about

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def __repr__(self) -> str:
        steps = len(self.steps)
        return (
            f"Trace(ranks={self.about.ranks}, {self.about.clock}, "
            f"{steps} step{'s' if steps != 1 else ''})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings do not travel; plain ones do.
        parts = (dict(self.columns), self.strings, self.groups, [dict(t) for t in self.tags])
        return (Trace, (*parts, self.about))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return self.timeline()._repr_mimebundle_(include=include, exclude=exclude)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Frozen views of all rows, by rank and then in program order."""
        text = (*self.strings, None)  # -1 reads the None at the end
        group = (*self.groups, None)
        tags = (*self.tags, MappingProxyType({}))
        rows = zip(*(self.columns[name].tolist() for name in COLUMNS), strict=True)
        return tuple(
            Event(
                r[0], KINDS[r[1]], text[r[2]] or "", r[3], r[4], None if r[5] != r[5] else r[5],
                r[6], r[7], r[8], r[9], r[10], _none(r[11]), group[r[12]], _none(r[13]),
                _none(r[14]), _none(r[15]), r[16], r[17], text[r[18]], text[r[19]], text[r[20]],
                tags[r[21]],
            )
            for r in rows
        )  # fmt: skip

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The training steps marked by ``span("step", step=i)``; without any, the whole trace.

        A number that a rank uses twice means its first use.
        """
        found: dict[int, dict[int, tuple[float, float]]] = {}
        c = self.columns
        for i in np.flatnonzero(c["kind"] == KINDS.index("span")).tolist():
            if self.strings[c["name"][i]] != "step" or c["tags"][i] < 0:
                continue
            number = self.tags[c["tags"][i]].get("step")
            if isinstance(number, int) and not isinstance(number, bool):
                spans = found.setdefault(number, {})
                at = int(c["rank"][i])
                spans.setdefault(at, (float(c["start"][i]), float(c["end"][i])))
        if not found:
            if not len(self):
                return ()
            whole = {
                r: (float(c["start"][c["rank"] == r].min()), float(c["end"][c["rank"] == r].max()))
                for r in sorted(set(c["rank"].tolist()))
            }
            found = {0: whole}
        return tuple(Step(i, MappingProxyType(found[i])) for i in sorted(found))

    def find_step(self, index: int) -> Step:
        """Step `index`: when each rank ran it.

        Raises
        ------
        KeyError : there is no such step
        """
        step = next((s for s in self.steps if s.index == index), None)
        if step is None:
            known = ", ".join(str(s.index) for s in self.steps) or "none"
            raise KeyError(f"no step {index} in this trace (steps: {known})")
        return step

    def step(self, index: int) -> Trace:
        """The part of this trace that belongs to step `index`: rows that start in [start, end).

        Raises
        ------
        KeyError : there is no such step
        """
        step = self.find_step(index)
        c = self.columns
        keep = np.zeros(len(self), bool)
        for rank, (start, end) in step.spans.items():
            # What starts at the very end comes after the step: stamps are shared.
            inside = (c["start"] >= start) & ((c["start"] < end) | (c["end"] <= end))
            keep |= (c["rank"] == rank) & inside
        return self.select(keep)

    def select(self, keep: NDArray[np.bool_]) -> Trace:
        """The rows for which `keep` is true, on the same clock."""
        columns = {name: array[keep] for name, array in self.columns.items()}
        return Trace(columns, self.strings, self.groups, self.tags, self.about)

    def where(self, kind: str) -> NDArray[np.bool_]:
        """A mask of the rows of one kind."""
        mask: NDArray[np.bool_] = self.columns["kind"] == KINDS.index(kind)
        return mask

    # What is made of a trace stands in rooms of its own; these are the doors.

    def summary(self, step: int | None = None) -> Any:
        """Step time, busy, exposed communication and bytes, as a `measures.Summary`.

        Parameters
        ----------
        step : of this step alone; None: of all
        """
        from labkit.trace.measures import summarise

        return summarise(self, step)

    def memory(self, step: int | None = None) -> tuple[Held, ...]:
        """What each rank held at its peak, in four parts (`memory.held`); () without marks."""
        from labkit.trace.memory import held

        return held(self, step)

    def critical_path(self, step: int | None = None) -> Any:
        """What the time consists of, as a `critical.CriticalPath` (`.segments`, `.by_name`).

        Parameters
        ----------
        step : of this step alone; None: of the whole trace
        """
        from labkit.trace.critical import critical_path

        return critical_path(self, step)

    def gap(self, happened: Trace, step: int | None = None) -> Any:
        """This trace as a prediction of `happened`, as a `gap.Gap`; its `.sentence` tells it.

        Parameters
        ----------
        step : of this step alone; None: of all that both traces have
        """
        from labkit.trace.gap import gap

        return gap(self, happened, step)

    def bubble(self, step: int | None = None) -> Any:
        """How long ranks stood idle beside the busiest one, as a `bubble.Bubble`.

        Parameters
        ----------
        step : of this step alone; None: of all steps together
        """
        from labkit.trace.bubble import bubble

        return bubble(self, step)

    @cached_property
    def _graph(self) -> Graph:
        from labkit.trace.graph import compile_graph

        return compile_graph(self)

    def retime(
        self,
        cluster: Cluster,
        compute: str = "flops",
        group_size: Mapping[str, int] | None = None,
        *,
        efficiency: float | None = None,
        dtype: str | None = None,
        without_flops: float = 0.0,
        scale: Mapping[Pick | str, float] | None = None,
    ) -> Trace:
        """The same events on a cluster of one's choice, on the clock "modelled".

        The first call compiles the trace, later ones only evaluate; so do calls on the result.
        What the model assumes is in `engine`, what collectives cost in `hardware`.

        Parameters
        ----------
        cluster : devices, and the links between them
        compute : where durations come from: "flops" (counted, at the device's rate), "cpu" (time
            measured here) or "set" (by the spans' tag ``seconds=``); `work` says more
        group_size : counts a group, by its description, as so many ranks: {"data": 1000}. The whole
            tensor keeps its size; only the group's collectives get another cost
        efficiency : share of the device's peak; None: that of its best measured matrix product
        dtype : whose peak; None: bfloat16, or else the first that the device knows
        without_flops : with "flops", what counts none takes so many times its CPU time
        scale : what takes how many times as long, by name or `pick.Pick`: {"backward": 0.5}

        Raises
        ------
        ValueError : the trace could not have happened (a receive without its send, a collective
            that one rank never enters, ranks that wait for each other …): names rank, operation
            and place. Or an argument is not what it has to be
        """
        from labkit.trace.engine import retime

        result = retime(
            self._graph, cluster, compute, group_size=group_size, efficiency=efficiency,
            dtype=dtype, without_flops=without_flops, scale=scale,
        )  # fmt: skip
        result.__dict__["_graph"] = self._graph  # its rows are the same, and so is their order
        return result

    def what_if(
        self,
        cluster: Cluster,
        scale: Mapping[Pick | str, float],
        compute: str = "flops",
        **options: Any,
    ) -> Any:
        """The trace retimed as it is and with `scale`, as a `whatif.WhatIf`: what it gains.

        Parameters
        ----------
        scale : how many times as long what is picked takes: {Pick("backward", rank=1): 0.5}
        compute, options : as `retime` takes them
        """
        from labkit.trace.whatif import what_if

        return what_if(self, cluster, scale, compute, **options)

    def sensitivity(
        self, cluster: Cluster, compute: str = "flops", factor: float = 0.5, **options: Any
    ) -> Any:
        """What a step gains if one thing at a time takes `factor` × as long, largest gain first."""
        from labkit.trace.whatif import sensitivity

        return sensitivity(self, cluster, compute, factor, **options)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace to one file (`files.save`)."""
        from labkit.trace.files import save

        save(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Trace:
        """Read a trace that `save` wrote; runs no code from it (`files.load`)."""
        from labkit.trace.files import load

        return load(path)

    def to_chrome(self, path: str | PathLike[str]) -> None:
        """Write Chrome's trace format, for Perfetto and chrome://tracing (`chrome.to_chrome`)."""
        from labkit.trace.chrome import to_chrome

        to_chrome(self, path)

    def timeline(self, **options: Any) -> Any:
        """Draw the trace (`labkit.widgets.Timeline`)."""
        from labkit.widgets import Timeline

        return Timeline(self, **options)


def _none(value: int) -> int | None:
    return None if value < 0 else value


def _frozen(array: NDArray[Any], kind: str) -> NDArray[Any]:
    copy = np.array(array, dtype=kind)
    copy.flags.writeable = False
    return copy


def _check(
    columns: Mapping[str, NDArray[Any]],
    strings: Sequence[str],
    groups: Sequence[Group],
    tags: Sequence[Mapping[str, Any]],
    about: About,
) -> None:
    if missing := [n for n in COLUMNS if n not in columns]:
        raise ValueError(f"a trace needs the column {missing[0]!r}")
    if unknown := [n for n in columns if n not in COLUMNS]:
        raise ValueError(f"a trace has no column {unknown[0]!r}")
    for name, kind in COLUMNS.items():
        array = columns[name]
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise ValueError(f"column {name!r} is not one row of numbers")
        if len(array) != len(columns["rank"]):
            raise ValueError(
                f"column {name!r} has {len(array)} rows, 'rank' has {len(columns['rank'])}"
            )
        if array.dtype.kind == "f" and kind != "f8":
            raise ValueError(f"column {name!r} holds fractions where whole numbers belong")
        if kind != "f8" and len(array):
            span, low, high = np.iinfo(kind), int(array.min()), int(array.max())
            if low < span.min or high > span.max:
                outside = low if low < span.min else high
                raise ValueError(f"column {name!r} holds {outside}, too large for its type {kind}")
    for group in groups:
        if not group.ranks or not all(0 <= rank < about.ranks for rank in group.ranks):
            raise ValueError(f"group {group.name!r} has ranks {group.ranks} of {about.ranks}")
    limits = {
        "rank": (0, about.ranks), "kind": (0, len(KINDS)), "name": (-1, len(strings)),
        "dtype": (-1, len(strings)), "reduction": (-1, len(strings)), "where": (-1, len(strings)),
        "group": (-1, len(groups)), "tags": (-1, len(tags)), "peer": (-1, about.ranks),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        bad = (columns[name] < low) | (columns[name] >= high)
        if bad.any():
            raise ValueError(f"column {name!r} holds {columns[name][bad][0]}, outside its table")
    changes = np.flatnonzero(np.diff(columns["rank"]))
    if len(changes) + 1 > len(np.unique(columns["rank"])) > 0:
        raise ValueError("column 'rank': the rows of a rank do not stand together")
    if np.isinf(columns["done"]).any():
        raise ValueError("column 'done' holds a time that is not finite")
    for name in ("start", "end", "cpu_start", "cpu_end"):
        if not np.isfinite(columns[name]).all():
            raise ValueError(f"column {name!r} holds a time that is not finite")
    if (columns["end"] < columns["start"]).any():
        row = int(np.flatnonzero(columns["end"] < columns["start"])[0])
        raise ValueError(f"event {row} ends before it starts")
