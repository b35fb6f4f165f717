"""Train the lessons' GPT: in one process, and on many ranks with the same result.

Both go through the same global batches. With N ranks, rank r works on items r, r+N, r+2N … of each.
`train_one` is the reference: it works through the same shards one after the other and adds their
gradients in the order of the ranks. (With dropout the two differ: ranks draw numbers of their own.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from labkit.lessons.data import ShardedSampler, Windows, text
from labkit.lessons.model import GPT, GPTConfig
from labkit.techniques.data_parallel import DataParallel
from labkit.trace import span


@dataclass(frozen=True)
class Trained:
    """What a training run ends with.

    Parameters
    ----------
    losses : mean loss of each step's global batch, before the step, in nats a token
    checksum : SHA-256 of all weights: equal bits, equal checksum
    weights : the parameters, by name
    """

    losses: tuple[float, ...]
    checksum: str
    weights: dict[str, torch.Tensor]


def train_one(
    steps: int = 40,
    batch: int = 16,
    shards: int = 1,
    config: GPTConfig | None = None,
    lr: float = 4e-3,
    seed: int = 0,
    path: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> Trained:
    """Train in this process alone, each global batch in `shards` pieces.

    Parameters
    ----------
    steps : optimizer steps
    batch : windows in a global batch
    shards : 1: the whole batch at once; N: what N ranks do, added up in their order
    config : shape of the GPT
    lr : AdamW's learning rate
    seed : of the starting weights and of the order of the data
    path : a text of one's own
    device : where to train
    """
    model, optimizer, windows = _start(config, lr, seed, path, device)
    parameters = list(model.parameters())
    samplers = [ShardedSampler(len(windows), r, shards, seed) for r in range(shards)]
    steps_of = zip(*[_shares(s, batch, steps) for s in samplers], strict=True)
    losses = []
    for step, shares in enumerate(steps_of):
        with span("step", step=step):
            optimizer.zero_grad()
            loss_sum = 0.0
            items = sum(len(share) for share in shares)
            for share in shares:
                if not share:
                    continue
                tokens, targets = windows.batch(share)
                with span("forward"):
                    loss = model.loss(tokens, targets)
                with span("backward"):
                    gradient = torch.autograd.grad(loss, parameters)
                # As on ranks: each shard's gradient is weighted, then added.
                for p, g in zip(parameters, gradient, strict=True):
                    g *= len(share) / items
                    p.grad = g if p.grad is None else p.grad + g
                loss_sum += loss.item() * len(share)
            with span("optimizer"):
                optimizer.step()
            losses.append(loss_sum / items)
    return _end(losses, model)


def train_data_parallel(
    steps: int = 40,
    batch: int = 16,
    config: GPTConfig | None = None,
    lr: float = 4e-3,
    seed: int = 0,
    path: str | Path | None = None,
    bucket_mb: float = 25.0,
    overlap: bool = True,
) -> Trained:
    """Train on every rank of the default group: the same on all, and the same as `train_one`.

    Runs inside ``labkit.launch`` or under ``torchrun``. Parameters as in `train_one`; `batch` is
    still the global batch, of which each rank takes its share. A rank of an NCCL group trains on
    its current CUDA device.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda" if dist.get_backend() == dist.Backend.NCCL else "cpu")
    plain, optimizer, windows = _start(config, lr, seed, path, device)
    model = DataParallel(_Loss(plain), bucket_mb=bucket_mb, overlap=overlap)
    sampler = ShardedSampler(len(windows), rank, ranks, seed)
    # Of each step: the sum of this rank's losses, and how many.
    sums = torch.zeros(steps, 2, dtype=torch.float64, device=device)
    for step, share in enumerate(_shares(sampler, batch, steps)):
        with span("step", step=step):
            optimizer.zero_grad()
            model.weigh(len(share))
            if share:
                tokens, targets = windows.batch(share)
                with span("forward"):
                    loss = model(tokens, targets)
                with span("backward"):
                    loss.backward()
                sums[step, 0], sums[step, 1] = loss.item() * len(share), len(share)
            model.finish()
            with span("optimizer"):
                optimizer.step()
    dist.all_reduce(sums)  # sums and counts, not means: each rank waits for all, once, at the end
    return _end((sums[:, 0] / sums[:, 1]).tolist(), plain)


class _Loss(nn.Module):
    """A GPT whose forward is its loss, so that a wrapper sees the whole of it."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.model.loss(tokens, targets)


def _start(
    config: GPTConfig | None,
    lr: float,
    seed: int,
    path: str | Path | None,
    device: torch.device | str,
) -> tuple[GPT, torch.optim.Optimizer, Windows]:
    model = GPT(config, seed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    return model, optimizer, Windows(text(path).to(device), model.config.context)


def _shares(sampler: ShardedSampler, batch: int, steps: int) -> Iterator[list[int]]:
    """The rank's share of each of `steps` global batches, epoch after epoch."""
    if steps < 1:
        raise ValueError(f"steps={steps}: give at least 1")
    epoch = 0
    while True:
        for share in sampler.batches(batch, epoch):
            yield share
            steps -= 1
            if not steps:
                return
        epoch += 1


def _end(losses: list[float], model: GPT) -> Trained:
    weights = {name: p.detach().cpu().clone() for name, p in model.named_parameters()}
    digest = hashlib.sha256()
    for weight in weights.values():
        digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return Trained(tuple(losses), digest.hexdigest(), weights)
