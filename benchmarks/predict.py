"""Does retiming on this machine predict its step times? Median ratio of predicted to happened.

Two ranks, one core each, one thread a rank: the lessons' GPT and a wider one, trained by torch's
DDP, FSDP2 (``fully_shard``), DTensor (``parallelize_module``) and pipelining. In each pair one run
is recorded, as `labkit.launch` records, and retimed on the machine as `measure` found it just
before, and another run, not recorded, is timed; which goes first alternates. A run's step time is
the median of its steps, and in a row of its own the shortest, predicted and happened: on a machine
that does other things besides. The last columns set the prediction beside the recorded run itself.

    python benchmarks/predict.py                     # all, some twenty minutes on two quiet cores
    python benchmarks/predict.py --only ddp fsdp2 --shapes wider --pairs 30
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist
from pairs import ratio, table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import labkit
from labkit.lessons import GPT, GPTConfig, Windows, text
from labkit.runtime.measure import measure_machine
from labkit.trace import Cluster, Trace, span

WARM, STEPS = 3, 12
SHAPES = {
    "lesson": (GPTConfig(), 8),  # windows a rank
    "wider": (GPTConfig(width=384, layers=4, context=64), 4),
}


def ddp(config: GPTConfig) -> tuple[nn.Module, Callable[[Tensor, Tensor], None]]:
    model = GPT(config)
    wrapped = DistributedDataParallel(model)

    def step(tokens: Tensor, targets: Tensor) -> None:
        cross_entropy(wrapped(tokens).flatten(0, 1), targets.flatten()).backward()

    return model, step


def fsdp2(config: GPTConfig) -> tuple[nn.Module, Callable[[Tensor, Tensor], None]]:
    model = GPT(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def step(tokens: Tensor, targets: Tensor) -> None:
        cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()

    return model, step


def dtensor(config: GPTConfig) -> tuple[nn.Module, Callable[[Tensor, Tensor], None]]:
    model = GPT(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def step(tokens: Tensor, targets: Tensor) -> None:
        cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()

    return model, step


class Stage(nn.Module):
    """A half of a GPT."""

    def __init__(self, model: GPT, first: bool) -> None:
        super().__init__()
        half = (len(model.blocks) + 1) // 2
        self.first = first
        self.blocks = model.blocks[:half] if first else model.blocks[half:]
        self.ends = nn.ModuleList(
            [model.tokens, model.positions] if first else [model.norm, model.head]
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            tokens, positions = self.ends
            x = tokens(x) + positions.weight[: x.shape[1]]
        x = self.blocks(x)
        if not self.first:
            norm, head = self.ends
            x = head(norm(x))
        return x


def pipeline(config: GPTConfig) -> tuple[nn.Module, Callable[[Tensor, Tensor], None]]:
    rank = dist.get_rank()
    model = Stage(GPT(config), rank == 0)
    stage = PipelineStage(model, rank, dist.get_world_size(), torch.device("cpu"))

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    schedule = Schedule1F1B(stage, 4, loss)

    def step(tokens: Tensor, targets: Tensor) -> None:
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=[])

    return model, step


TECHNIQUES = {"ddp": ddp, "fsdp2": fsdp2, "dtensor": dtensor, "pipeline": pipeline}


def train(technique: str, shape: str) -> list[float]:
    """Seconds of each step of this rank; the first few are left out."""
    config, windows = SHAPES[shape]
    model, step = TECHNIQUES[technique](config)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    data = Windows(text(), config.context)
    rank, taken = dist.get_rank(), []
    shared = technique in ("dtensor", "pipeline")  # all ranks work on one batch
    tokens, targets = data.batch([i + (0 if shared else windows * rank) for i in range(windows)])
    for i in range(WARM + STEPS):
        began = time.perf_counter()
        with span("step", step=i):
            optimizer.zero_grad()
            step(tokens, targets)
            optimizer.step()
        taken.append(time.perf_counter() - began)
    return taken[WARM:]


TYPICAL: dict[str, Callable[[list[float]], float]] = {"median": median, "shortest": min}


def predicted(trace: Trace, here: Cluster) -> list[float]:
    """The steps' times on `here`, each from one step's end to the next one's."""
    ends = [step.end for step in trace.retime(here, "cpu").steps]
    return [b - a for a, b in pairwise(ends[WARM - 1 :])]


def compare(technique: str, shape: str, pairs: int) -> list[list[str]]:
    """A row of the table for each typical step."""
    run = partial(labkit.launch, train, technique, shape, ranks=2, threads=1, backend="gloo",
                  seed=0, timeout=120)  # fmt: skip
    guesses: list[list[float]] = []  # of each pair: its steps
    happened: list[list[list[float]]] = []  # and its ranks' steps
    recorded: list[list[list[float]]] = []
    loads = [os.getloadavg()[0]]
    for pair in range(pairs):
        here = measure_machine(ranks=2)
        for what in ("record", "time") if pair % 2 == 0 else ("time", "record"):
            if what == "time":
                happened.append(list(run(trace=False).results))
            else:
                result = run()
                guesses.append(predicted(result.trace, here))
                recorded.append(list(result.results))
        loads.append(os.getloadavg()[0])
    rows = []
    for name, typical in TYPICAL.items():
        times = [
            [typical(steps) for steps in guesses],
            [max(map(typical, ranks)) for ranks in happened],
            [max(map(typical, ranks)) for ranks in recorded],
        ]
        found, own = ratio(times[0], times[1]), ratio(times[0], times[2])
        ms = [f"{median(those) * 1e3:.1f}" for those in times]
        within = ["yes" if abs(r.median - 1) <= 0.15 else "no" for r in (found, own)]
        load = f"{min(loads):.1f} to {max(loads):.1f}"
        rows.append([technique, shape, name, *ms, str(found), within[0], str(own), within[1], load])
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description="Predicted step times beside those of runs.")
    options.add_argument("--pairs", type=int, default=20, help="pairs of runs (at least 6)")
    options.add_argument("--only", nargs="*", choices=TECHNIQUES, default=[*TECHNIQUES])
    options.add_argument("--shapes", nargs="*", choices=SHAPES, default=[*SHAPES])
    chosen = options.parse_args()
    rows = []
    for technique in chosen.only:
        for shape in chosen.shapes:
            for row in compare(technique, shape, chosen.pairs):
                print(*row, file=sys.stderr, flush=True)
                rows.append(row)
    print(measure_machine(ranks=2))
    print(f"{chosen.pairs} pairs, on {os.cpu_count()} cores")
    head = ["technique", "shape", "step", "predicted ms", "happened ms", "recorded ms",
            "predicted/happened [95 %]", "within 15 %",
            "predicted/recorded [95 %]", "within 15 %", "load"]  # fmt: skip
    print(table(head, rows))


if __name__ == "__main__":
    main()
