"""Is our DataParallel as fast as torch's DDP? Median ratio of step times, on plain gloo.

In each pair of runs every rank trains both, one after the other, on the same data; which goes
first alternates. A run is a few steps; its time is that of the slowest rank. Nothing is recorded.
DDP runs with ``gradient_as_bucket_view=True``, which spares it a copy, as ours does.

    python benchmarks/data_parallel.py            # about three minutes on two cores
    python benchmarks/data_parallel.py --pairs 60
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from pairs import ratio, table
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import labkit
from labkit.lessons import GPT, GPTConfig, Windows, text
from labkit.techniques import DataParallel

MODELS = {
    "lesson": (GPTConfig(), 4),  # windows a rank
    "bigger": (GPTConfig(width=384, layers=4, context=64), 2),
}


class Loss(nn.Module):
    """A GPT whose forward is its loss, as both wrappers need it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.model = GPT(config)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.model.loss(tokens, targets)


def trainer(which: str, config: GPTConfig, windows: int) -> Callable[[int], float]:
    """A function that trains for some steps and returns their wall time in seconds."""
    module = Loss(config)
    model = DataParallel(module) if which == "ours" else DDP(module, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    data = Windows(text(), config.context)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens, targets = data.batch([rank + ranks * i for i in range(windows)])

    def train(steps: int) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            model(tokens, targets).backward()
            if isinstance(model, DataParallel):
                model.finish()
            optimizer.step()
        seconds = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    return train


def compare(name: str, pairs: int, steps: int) -> dict[str, list[float]]:
    """On each rank: seconds of each run."""
    config, windows = MODELS[name]
    trainers = {which: trainer(which, config, windows) for which in ("ours", "ddp")}
    for train in trainers.values():
        train(3)  # buckets are cut anew after the first step
    times: dict[str, list[float]] = {"ours": [], "ddp": []}
    for pair in range(pairs):
        for which in ("ours", "ddp") if pair % 2 == 0 else ("ddp", "ours"):
            times[which].append(trainers[which](steps))
    return times


def main() -> None:
    options = argparse.ArgumentParser(description="Our DataParallel against torch's DDP.")
    options.add_argument("--pairs", type=int, default=40, help="pairs of runs (at least 20)")
    options.add_argument("--steps", type=int, default=6, help="steps in a run")
    chosen = options.parse_args()
    if chosen.pairs < 20:
        options.error(f"--pairs {chosen.pairs}: give at least 20")
    rows = []
    for name in MODELS:
        for ranks in (2, 4):
            times = labkit.launch(
                compare, name, chosen.pairs, chosen.steps,
                ranks=ranks, threads=1, timeout=900, trace=False,
            ).results[0]  # fmt: skip
            found = ratio(times["ours"], times["ddp"])
            ms = [1000 * sorted(t)[len(t) // 2] / chosen.steps for t in times.values()]
            size = sum(p.numel() for p in GPT(MODELS[name][0]).parameters()) / 1e6
            verdict = "yes" if found.low <= 1 and found.median <= 1.03 else "no"
            rows.append([
                f"{name}, {size:.1f} M", str(ranks), f"{ms[0]:.1f}", f"{ms[1]:.1f}",
                str(found), verdict,
            ])  # fmt: skip
    header = ["model", "ranks", "ours ms/step", "DDP ms/step", "ratio [95 %]", "as fast"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
