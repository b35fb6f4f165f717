"""Traces of programs, written call by call; recorded times mean nothing in them.

Every rank's rows stand at 0, 1, 2 … on the recorded clock, whatever they take: a model that leans
on recorded times is found out. Compute rows hold their seconds as CPU time, and as FLOPs of a
device of 1 TFLOP/s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from labkit.trace import Cluster, Device, Link, Trace
from tests.trace.conftest import build

DEVICE = Device("test", {"float32": 1e12}, {"float32": 1e12})


def cluster(latency: float = 0.0, bandwidth: float = 1.0, **more: Any) -> Cluster:
    """One link between all ranks."""
    return Cluster(DEVICE, Link(latency, bandwidth, **more))


class Program:
    """What each rank does, in order; `self.rows` by rank."""

    def __init__(self, ranks: int, groups: Sequence[Sequence[int]] = ()) -> None:
        self.ranks = ranks
        self.groups = groups or [range(ranks)]
        self.rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.ops: dict[int, int] = defaultdict(int)
        self.seqs: dict[Any, int] = defaultdict(int)
        self.cpu: dict[int, float] = defaultdict(float)
        self.flops: dict[int, int] = defaultdict(int)

    def row(self, rank: int, kind: str, name: str, **more: Any) -> dict[str, Any]:
        at = len(self.rows[rank])
        self.rows[rank].append(
            {"rank": rank, "kind": kind, "name": name, "start": at, "end": at + 1,
             "cpu_start": self.cpu[rank], "cpu_end": self.cpu[rank],
             "flops_start": self.flops[rank], "flops_end": self.flops[rank],
             "where": f"train.py:{at + 1}"} | more
        )  # fmt: skip
        return self.rows[rank][-1]

    def compute(self, rank: int, seconds: float, name: str = "compute", **more: Any) -> None:
        row = self.row(rank, "compute", name, **more)
        self.cpu[rank] += seconds
        self.flops[rank] += round(seconds * 1e12)
        row |= {"cpu_end": self.cpu[rank], "flops_end": self.flops[rank]}

    def span(self, rank: int, name: str, rows: int, **tags: Any) -> None:
        """A span around the last `rows` rows."""
        start = self.rows[rank][-rows]["start"]
        self.row(rank, "span", name, start=start, end=len(self.rows[rank]), tags=tags)

    def collective(
        self, rank: int, size: float = 0, name: str = "all_reduce", group: int = 0, **more: Any
    ) -> int:
        seq = self._next(self.seqs, (rank, group))
        op = self._next(self.ops, rank)
        self.row(rank, "collective", name, bytes=int(size), group=group, seq=seq, op=op, **more)
        return op

    def send(self, rank: int, to: int, size: float = 0, tag: int = 0) -> int:
        return self._message("send", rank, to, (rank, to, tag), size)

    def recv(self, rank: int, source: int, size: float = 0, tag: int = 0) -> int:
        return self._message("recv", rank, source, (source, rank, tag), size)

    def _message(self, kind: str, rank: int, peer: int, key: Any, size: float) -> int:
        seq, op = self._next(self.seqs, (kind, *key)), self._next(self.ops, rank)
        ends = {"group": 0, "peer": peer, "tag": key[2], "seq": seq}
        self.row(rank, kind, kind, bytes=int(size), op=op, **ends)
        return op

    def wait(self, rank: int, op: int) -> None:
        self.row(rank, "wait", "wait", op=op)

    def receive(self, rank: int, source: int, size: float = 0, tag: int = 0) -> None:
        """A receive, and the wait for it."""
        self.wait(rank, self.recv(rank, source, size, tag))

    def reduce(self, rank: int, size: float = 0, **more: Any) -> None:
        """An all-reduce, and the wait for it."""
        self.wait(rank, self.collective(rank, size, **more))

    def trace(self, **about: Any) -> Trace:
        rows = [row for rank in range(self.ranks) for row in self.rows[rank]]
        return build(rows, self.ranks, self.groups, **about)

    @staticmethod
    def _next(counts: dict[Any, int], key: Any) -> int:
        counts[key] += 1
        return counts[key] - 1


def pipeline(order: str, stages: int, microbatches: int, forward: float, backward: float) -> Trace:
    """GPipe or 1F1B, stage by stage on a rank each; sends are asynchronous and never waited for."""
    p = Program(stages)

    def run(rank: int, step: int, seconds: float, name: str) -> None:
        if 0 <= rank - step < stages:
            p.receive(rank, rank - step, tag=step)
        p.compute(rank, seconds, name)
        if 0 <= rank + step < stages:
            p.send(rank, rank + step, tag=step)

    for rank in range(stages):
        warm = microbatches if order == "GPipe" else min(stages - rank, microbatches)
        for _ in range(warm):
            run(rank, 1, forward, "forward")
        for done in range(microbatches):
            run(rank, -1, backward, "backward")
            if warm + done < microbatches:
                run(rank, 1, forward, "forward")
    return p.trace()
