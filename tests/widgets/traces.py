"""Small traces for the pictures' tests, written row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.trace.events import COLUMNS, KINDS, About, Group, Trace

_TABLES = ("name", "dtype", "reduction", "where")


def trace_of(rows: Sequence[dict[str, Any]], **about: Any) -> Trace:
    """A trace of `rows`; each names its rank, kind, name, start and end, and what else it needs."""
    strings: dict[str, int] = {}
    tags: list[dict[str, Any]] = []
    groups: list[Group] = []
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in sorted(rows, key=lambda r: r["rank"]):
        full = dict.fromkeys(COLUMNS, -1) | {
            "cpu_start": 0.0, "cpu_end": 0.0, "flops_start": 0, "flops_end": 0, "thread": 0,
            "bytes": 0, "count": 0, "done": math.nan,
        } | row  # fmt: skip
        full["kind"] = KINDS.index(row["kind"])
        for table in _TABLES:
            if isinstance(full[table], str):
                full[table] = strings.setdefault(full[table], len(strings))
        if isinstance(full["tags"], dict):
            tags.append(full["tags"])
            full["tags"] = len(tags) - 1
        if isinstance(full["group"], Group):
            if full["group"] not in groups:
                groups.append(full["group"])
            full["group"] = groups.index(full["group"])
        for name in COLUMNS:
            columns[name].append(full[name])
    named = {row["rank"] for row in rows}.union(*(group.ranks for group in groups))
    ranks = about.pop("ranks", 1 + max(named, default=0))
    arrays = {name: np.array(columns[name], kind) for name, kind in COLUMNS.items()}
    return Trace(arrays, tuple(strings), groups, tags, About(ranks, **about))


def data_parallel(ranks: int = 4, steps: int = 3, layers: int = 4, **about: Any) -> Trace:
    """Forward, layer by layer a backward whose all-reduces overlap it, wait, optimizer; seconds."""
    world = Group("0", "default_pg", tuple(range(ranks)))
    rows: list[dict[str, Any]] = []
    for rank in range(ranks):
        at, seq = 0.0003 * rank, 0
        for step in range(steps):
            begin = at
            slow = 1 + 0.08 * ((rank + step) % ranks)

            def add(kind: str, name: str, lasts: float, *, rank: int = rank, **more: Any) -> None:
                nonlocal at
                rows.append(
                    {"rank": rank, "kind": kind, "name": name, "start": at, "end": at + lasts}
                    | more
                )
                at += lasts if kind != "span" else 0.0

            add("span", "forward", 0.010 * slow)
            add("compute", "forward", 0.010 * slow)
            add("span", "backward", 0.020 * slow + 0.0002 * layers)
            ops = []
            for layer in range(layers):
                add("compute", "backward", 0.020 * slow / layers)
                ready = begin + 0.033 + 0.006 * layer
                add("collective", "all_reduce", 0.0002, op=seq, group=world, seq=seq,
                    done=max(ready, at + 0.001), bytes=1 << 20 + layer, count=1 << 18 + layer,
                    dtype="float32", reduction="sum", where="train.py:31")  # fmt: skip
                ops.append((seq, max(ready, at + 0.001)))
                seq += 1
            for op, done in ops:
                if done > at:
                    add("wait", "all_reduce", done - at, op=op, where="train.py:40")
            add("span", "optimizer", 0.003)
            add("compute", "optimizer", 0.003)
            rows.append({"rank": rank, "kind": "span", "name": "step", "start": begin, "end": at,
                         "tags": {"step": step}})  # fmt: skip
            at = (step + 1) * 0.064 + 0.0003 * rank
    return trace_of(rows, **about)


def skewed(steps: int = 3) -> Trace:
    """Two ranks, each step of the second half a step later; its waits lie inside calls, seconds."""
    world = Group("0", "default_pg", (0, 1))
    rows: list[dict[str, Any]] = []
    for rank in range(2):
        for step in range(steps):
            at = step + 0.5 * rank
            shared = {"rank": rank, "name": "all_reduce", "group": world, "seq": step, "op": step,
                      "where": "/home/me/course/lab/train.py:7"}  # fmt: skip
            rows += [
                {"rank": rank, "kind": "span", "name": "step", "start": at, "end": at + 1,
                 "tags": {"step": step}},
                {"rank": rank, "kind": "compute", "name": "forward", "start": at, "end": at + 0.6},
                {"kind": "collective", "start": at + 0.6, "end": at + 0.9, "done": at + 1.2,
                 "bytes": 1000 << step} | shared,
                {"kind": "wait", "start": at + 0.7, "end": at + 0.8} | shared,
                {"rank": rank, "kind": "compute", "name": "loss", "start": at + 0.9,
                 "end": at + 1.0},
            ]  # fmt: skip
    return trace_of(rows)


def pipeline(stages: int = 4, microbatches: int = 8, **about: Any) -> Trace:
    """GPipe in units of one forward, with a message between neighbours after each action."""
    world = Group("0", "default_pg", tuple(range(stages)))
    rows: list[dict[str, Any]] = []

    def message(sender: int, receiver: int, at: float, tag: int, seq: int) -> None:
        shared = {"group": world, "tag": tag, "seq": seq, "bytes": 4096, "count": 1024,
                  "dtype": "float32", "where": "pipeline.py:12"}  # fmt: skip
        rows.append({"rank": sender, "kind": "send", "name": "send", "start": at, "end": at,
                     "done": at + 0.2, "peer": receiver} | shared)  # fmt: skip
        rows.append({"rank": receiver, "kind": "recv", "name": "recv", "start": at, "end": at,
                     "done": at + 0.2, "peer": sender} | shared)  # fmt: skip

    for micro in range(microbatches):
        for stage in range(stages):
            at = micro + stage * 1.2
            rows.append({"rank": stage, "kind": "compute", "name": "forward", "start": at,
                         "end": at + 1, "tags": {"microbatch": micro}})  # fmt: skip
            if stage + 1 < stages:
                message(stage, stage + 1, at + 1, 0, micro)
    turn = microbatches + (stages - 1) * 1.2
    for micro in range(microbatches):
        for stage in reversed(range(stages)):
            at = turn + 2 * micro + (stages - 1 - stage) * 2.2
            rows.append({"rank": stage, "kind": "compute", "name": "I", "start": at,
                         "end": at + 1, "tags": {"microbatch": micro}})  # fmt: skip
            rows.append({"rank": stage, "kind": "compute", "name": "W", "start": at + 1,
                         "end": at + 2, "tags": {"microbatch": micro}})  # fmt: skip
            if stage:
                message(stage, stage - 1, at + 2, 1, micro)
    for rank in range(stages):
        mine = sorted(r["start"] for r in rows if r["rank"] == rank and r["kind"] == "compute")
        stop = mine[microbatches]
        rows.append({"rank": rank, "kind": "wait", "name": "recv",
                     "start": mine[microbatches - 1] + 1, "end": stop})  # fmt: skip
    return trace_of(rows, **({"clock": "modelled", "unit": ""} | about))


def many(events: int, ranks: int = 8) -> Trace:
    """About `events` bars: half compute, a quarter collectives, a quarter messages."""
    rows: list[dict[str, Any]] = []
    world = Group("0", "default_pg", tuple(range(ranks)))
    names = ("forward", "backward", "optimizer", "loss")
    rng = np.random.default_rng(0)
    each = events // (2 * ranks)
    for rank in range(ranks):
        lasts = rng.uniform(2e-4, 2e-3, each)
        starts = np.cumsum(lasts) - lasts
        for i, (at, length) in enumerate(zip(starts.tolist(), lasts.tolist(), strict=True)):
            compute = {"rank": rank, "kind": "compute", "name": names[i % 4]}
            rows.append(compute | {"start": at, "end": at + 0.9 * length})
            shared = {"start": at, "end": at, "seq": i, "group": world, "bytes": 4096,
                      "where": "many.py:1", "done": at + 0.8 * length}  # fmt: skip
            if i % 4 < 2:
                rows.append({"rank": rank, "kind": "collective", "name": "all_reduce"} | shared)
            elif i % 4 == 2:
                other = (rank + 1) % ranks
                message = shared | {"tag": 0}
                rows.append({"rank": rank, "kind": "send", "name": "send", "peer": other} | message)
                rows.append({"rank": other, "kind": "recv", "name": "recv", "peer": rank} | message)
    return trace_of(rows, ranks=ranks)
