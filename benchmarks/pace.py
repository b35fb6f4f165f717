"""How near paced runs come to the model, all ranks on one core: median ratio of step times.

Claim: within 15 % for spans of 20 ms and more. Each run is set against its own trace, retimed with
``compute="set"``, and against the closed formula. Of two steps the second counts: torch's DDP sends
a single bucket in its first.

    python benchmarks/pace.py                     # about four minutes
    python benchmarks/pace.py --cores 2 --runs 40
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from pairs import ratio, table
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import labkit
from labkit import mark, span
from labkit.techniques import DataParallel
from labkit.trace import Cluster, Device, Link

DEVICE = Device("lesson device", {"float32": 1e12}, {"float32": 1e12})
F, B = 0.02, 0.04  # seconds of one micro-batch on one stage
STAGES, MICROBATCHES = 4, 8
LAYERS, WIDTH = 8, 64
REDUCED = 0.016  # seconds of the all-reduce of one layer, on 4 ranks
SLOW = 0.170  # of the whole gradient, on 2


def pipeline(order: str) -> None:
    """Two steps of GPipe or 1F1B, by hand."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(1000)
    sent: list[dist.Work] = []

    def work(name: str, seconds: float, source: int, target: int) -> None:
        if 0 <= source < ranks:
            dist.recv(x, source)
        with span(name, seconds=seconds):
            pass
        if 0 <= target < ranks:
            sent.append(dist.isend(x.clone(), target))

    forward = partial(work, "forward", F, rank - 1, rank + 1)
    backward = partial(work, "backward", B, rank + 1, rank - 1)
    warm = MICROBATCHES if order == "GPipe" else min(ranks - rank, MICROBATCHES)
    for step in range(2):
        dist.barrier()
        with span("step", step=step):
            for _ in range(warm):
                forward()
            for done in range(MICROBATCHES):
                backward()
                if warm + done < MICROBATCHES:
                    forward()
            for work_sent in sent:
                work_sent.wait()
            sent.clear()


def data_parallel(way: str) -> None:
    """Two steps of a real module whose layers are marked."""
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    for i, layer in enumerate(net):
        mark(layer, f"layer {i}", forward=F / 2, backward=F)
    model: nn.Module
    if way == "DDP":
        model = DDP(net, bucket_cap_mb=4 * WIDTH**2 / 2**20)
    else:
        each = [[p] for p in net.parameters()][::-1]
        model = DataParallel(net, overlap=way == "overlapped", buckets=each)
    for step in range(2):
        with span("step", step=step):
            model(torch.ones(4, WIDTH)).sum().backward()
            if isinstance(model, DataParallel):
                model.finish()


def same_batch() -> None:
    """Two steps on one batch, which the ranks share: 320 ms of compute on one."""
    gradient = torch.ones(WIDTH**2)
    for step in range(2):
        with span("step", step=step):
            for _ in range(8):
                with span("forward and backward", seconds=0.04 / dist.get_world_size()):
                    pass
            dist.all_reduce(gradient)


@dataclass(frozen=True)
class Row:
    """A program, its cluster, and how long the formula says that a step takes."""

    name: str
    program: Callable[[], None]
    link: Link
    seconds: float
    ranks: int = 4


def network(size: float, ranks: int, seconds: float) -> Link:
    """A link over which `ranks` ranks all-reduce `size` bytes in `seconds`."""
    return Link(0, 2 * (ranks - 1) / ranks * size / seconds, "slow network")


def rows() -> list[Row]:
    free, p, m = float("inf"), STAGES, MICROBATCHES
    busy = (m + p - 1) * (F + B)
    found = []
    for c in (0.0, 0.01):
        later = {"GPipe": 2 * (p - 1), "1F1B": 2 * (p - 1) * m / p + 2 * (p - 2)}
        for order, times in later.items():
            name = f"{order}, transfer {c * 1e3:g} ms"
            found.append(Row(name, partial(pipeline, order), Link(c, free), busy + times * c))
    layer = network(4 * WIDTH**2, 4, REDUCED)
    computed = LAYERS * F * 1.5
    for way, exposed in (("after", LAYERS * REDUCED), ("overlapped", REDUCED), ("DDP", REDUCED)):
        name = f"all-reduce {way}" if way != "DDP" else "all-reduce by torch's DDP"
        found.append(Row(name, partial(data_parallel, way), layer, computed + exposed))
    for n in (1, 2, 4):
        cost = 2 * (n - 1) / n * SLOW
        slow = network(4 * WIDTH**2, 2, SLOW)
        found.append(Row(f"one batch on {n} ranks", same_batch, slow, 0.32 / n + cost, n))
    return found


def measure(row: Row, runs: int) -> tuple[list[float], list[float], list[str]]:
    """Step times, those of the model, and what was noted."""
    paced, model, notes = [], [], []
    on = Cluster(DEVICE, row.link, name="lesson")
    for _ in range(runs):
        trace = labkit.launch(row.program, ranks=row.ranks, threads=1, seed=0, pace=on).trace
        paced.append(trace.steps[1].duration)
        model.append(trace.retime(on, "set").steps[1].duration)
        notes.append(trace.about.note)
    return paced, model, notes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--json", action="store_true", help="lists, for a test")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    head = ["step time", "formula", "model", "paced", "paced / model", "late"]
    shown, raw = [], {}
    for row in rows():
        if options.only not in row.name:
            continue
        paced, model, notes = measure(row, options.runs)
        raw[row.name] = {"paced": paced, "model": model, "formula": row.seconds}
        if not options.json:
            late = sum("slower than the pace" in note for note in notes)
            ms = [f"{1e3 * sorted(x)[len(x) // 2]:.1f} ms" for x in (model, paced)]
            shown.append([row.name, f"{1e3 * row.seconds:.1f} ms", *ms,
                          str(ratio(paced, model)), f"{late} of {len(paced)}"])  # fmt: skip
    print(json.dumps(raw) if options.json else table(head, shown))


if __name__ == "__main__":
    main()
