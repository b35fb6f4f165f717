"""How long retiming takes: ``python benchmarks/retime.py [repeats]``.

Claims: 10,000 events that were compiled before are evaluated again in at most 5 ms; 100,000 are
compiled and evaluated in at most 1 s. Two kinds of trace: data parallel, where every backward is
cut by all-reduces, and a pipeline of messages between neighbours. An event is a row of the trace.
"Trace made" also counts building the `Trace` that a timeline draws. The best time is printed beside
the median: this is about what the work costs, not about what else the machine does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from pairs import table

from labkit.trace import CLUSTERS, About, Group, Trace
from labkit.trace.engine import evaluate, retime
from labkit.trace.events import COLUMNS, KINDS
from labkit.trace.graph import compile_graph
from labkit.trace.work import durations

RANKS = 4
H100 = CLUSTERS["H100"]


def trace_of(rows: list[dict[str, Any]]) -> Trace:
    names = {row["name"]: -1 for row in rows}
    names = {name: i for i, name in enumerate(names)}
    none = dict.fromkeys(COLUMNS, -1) | dict.fromkeys(
        ("start", "end", "cpu_start", "cpu_end", "flops_start", "flops_end", "thread", "bytes"), 0
    )
    full = [none | r | {"name": names[r["name"]], "kind": KINDS.index(r["kind"])} for r in rows]
    columns = {name: np.array([r[name] for r in full], t) for name, t in COLUMNS.items()}
    group = Group("0", "default", tuple(range(RANKS)))
    return Trace(columns, list(names), [group], [], About(RANKS))


class Rank:
    """The rows of one rank, one after the other."""

    def __init__(self, rank: int, rows: list[dict[str, Any]]) -> None:
        self.rank, self.rows, self.at, self.op = rank, rows, 0, 0

    def add(self, kind: str, name: str, flops: int = 0, **more: Any) -> None:
        stamps = {"start": self.at, "end": self.at + 1, "flops_end": flops}
        self.rows.append({"rank": self.rank, "kind": kind, "name": name} | stamps | more)
        self.at += 1

    def span(self, name: str, since: int) -> None:
        self.rows.append({"rank": self.rank, "kind": "span", "name": name} |
                         {"start": since, "end": self.at})  # fmt: skip


def data_parallel(events: int, buckets: int = 4) -> Trace:
    """Forward, a backward whose all-reduces overlap it, waits, optimizer, spans."""
    rows: list[dict[str, Any]] = []
    for number in range(RANKS):
        rank, seq = Rank(number, rows), 0
        mine = len(rows)
        while len(rows) - mine < events // RANKS:
            began = rank.at
            for name in ("forward", "backward", "optimizer"):
                since = rank.at
                for _ in range(buckets if name == "backward" else 1):
                    rank.add("compute", name, 10**9 + number)
                    if name == "backward":
                        rank.add("collective", "all_reduce", group=0, seq=seq, op=seq, bytes=10**7)
                        seq += 1
                rank.span(name, since)
                if name == "backward":
                    for op in range(seq - buckets, seq):
                        rank.add("wait", "all_reduce", op=op)
            rank.span("step", began)
    return trace_of(rows)


def pipeline(events: int) -> Trace:
    """Each rank receives from the one before it, computes, and sends to the one behind it."""
    rows: list[dict[str, Any]] = []
    for number in range(RANKS):
        rank, op = Rank(number, rows), 0
        for seq in range(events // 18):
            ends = {"group": 0, "seq": seq, "tag": 0, "bytes": 10**6}
            if number:
                rank.add("recv", "recv", peer=number - 1, op=op, **ends)
                rank.add("wait", "recv", op=op)
                op += 1
            since = rank.at
            rank.add("compute", "forward", 10**9)
            rank.span("forward", since)
            if number < RANKS - 1:
                rank.add("send", "send", peer=number + 1, op=op, **ends)
                op += 1
            if not number:
                rank.add("compute", "load", 10**6)
    return trace_of(rows)


def timed(work: Callable[[], Any], repeats: int) -> str:
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e3)
    return f"{median(taken):.2f} (best {min(taken):.2f})"


def main(repeats: int) -> None:
    rows = []
    for events in (10_000, 100_000):
        for make in (data_parallel, pipeline):
            trace = make(events)
            graph = compile_graph(trace)

            def again(graph: Any = graph) -> None:
                work, _ = durations(graph, "flops", H100.device)
                evaluate(graph, work, H100)

            few = max(repeats // 10, 3)
            rows.append((
                make.__name__, f"{len(trace):,}",
                timed(lambda t=trace: compile_graph(t), few), timed(again, repeats),
                timed(lambda g=graph: retime(g, H100), repeats),
            ))  # fmt: skip
    head = ("milliseconds", "events", "compiled", "evaluated again", "… and Trace made")
    print(table(head, rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
